"""The command that is run when a hang is found: by the shell, with the verdict on its standard input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from breakranks.log import Log

COMMAND_SECONDS = 60.0
_GRACE_SECONDS = 5.0
_log = Log("run")


def run_hang_command(
    command: str, verdict: str, variables: Mapping[str, str], *, seconds: float = COMMAND_SECONDS
) -> str:
    """Run a command for at most some seconds; return how it failed, or "". Its output goes to standard error."""
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            env={**os.environ, **variables},
            start_new_session=True,  # at its deadline it is ended with all that it has started
        )
    except (OSError, ValueError) as error:
        return f"could not be started: {error}"
    try:
        process.communicate(verdict.encode(errors="replace"), timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"did not end within {seconds:.0f} s and was ended"
    except BaseException:
        _end(process)
        raise
    _log.info("command ended", command=command, status=process.returncode)
    if process.returncode < 0:
        return f"was ended by signal {-process.returncode}"
    return f"ended with status {process.returncode}" if process.returncode else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the session of a command."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_GRACE_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
