"""Python 3.14 and later: the interpreter's own way to run a script in another process (PEP 768).

It is refused between minor versions, so the process's own interpreter does it. Like a pending call it waits until
the main thread comes back to Python.
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
# One expression, that no name stays in __main__.
SCRIPT = "__import__('_thread').start_new_thread(exec, ({source!r}, {{}}))\n"


def can(version: tuple[int, int]) -> bool:
    return version >= _SINCE


def send(pid: int, script: str) -> bool:
    """Have a process run a script, by its path there. False: it does not allow that."""
    words = [f"/proc/{pid}/exe", "-I", "-S", "-c", _SEND, str(pid), script]
    # Its libraries may be where only its own environment says.
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
