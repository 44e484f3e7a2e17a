"""Python 3.14 and later: ``sys.remote_exec``, which runs a script in another process (PEP 768).

It works only between equal minor versions, so the interpreter of the target process is started for it. Like a pending
call, the script waits until the main thread returns to Python code.
"""

from __future__ import annotations

import os
import subprocess
import time

from breakranks.log import Log, milliseconds

_SINCE = (3, 14)
_DEADLINE_SECONDS = 3.0
_log = Log("inject")
_SEND = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
# One expression, so that no name is left in __main__.
SCRIPT = "__import__('_thread').start_new_thread(exec, ({source!r}, {{}}))\n"


def can(version: tuple[int, int]) -> bool:
    return version >= _SINCE


def send(pid: int, script: str) -> bool:
    """Make a process run a script, named by its path in the process. Return False if it does not allow that."""
    words = [f"/proc/{pid}/exe", "-I", "-S", "-c", _SEND, str(pid), script]
    # The interpreter may need LD_LIBRARY_PATH to find its libraries.
    environment = {key: value for key, value in os.environ.items() if key == "LD_LIBRARY_PATH"}
    began = time.monotonic()
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, timeout=_DEADLINE_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.info("not run", argv=words[:5], why=error, ms=milliseconds(began))
        return False
    _log.debug("ran", argv=words[:5], status=done.returncode, ms=milliseconds(began))
    return done.returncode == 0
