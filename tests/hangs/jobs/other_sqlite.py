"""Not a rank: somebody's dashboard in the middle of a transaction."""

import signal
import sqlite3

from mark import ready, work_path

database = sqlite3.connect(work_path("runs.db"), isolation_level=None)
database.execute("create table runs (name text)")
database.execute("begin exclusive")
ready("other")
signal.pause()
