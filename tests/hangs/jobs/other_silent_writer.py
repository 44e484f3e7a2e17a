"""Not a rank: it has the feed open for writing, and nothing to say."""

import os
import signal

from mark import ready, work_path

feed = os.open(work_path("feed"), os.O_RDWR)
ready("other")
signal.pause()
