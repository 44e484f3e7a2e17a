"""The user's command: started with its output in files, so that it does not need run to be alive."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType

from breakranks.errors import BreakranksError, UsageError
from breakranks.log import Log
from breakranks.run.run_folder import RunFolder

TERMINATE_SECONDS = 10.0
_log = Log("run")


def check_command(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise UsageError if there is no such program, before anything is written."""
    program = command[0]
    found = shutil.which(program, path=environ.get("PATH", os.defpath))
    if found is None and os.path.isfile(program) and os.sep in program:
        raise UsageError(f"{program} is not executable", f"Try: chmod +x {program}, or: python {program}")
    if found is None:
        script = os.path.isfile(program)
        remedy = f"A program of this folder is started as ./{program}" if script else "Check its name and your PATH."
        raise UsageError(f"no such command: {program}", remedy)


class CommandProcess:
    """The command, once it was started. ``own_session``: it has nothing of this terminal, neither Ctrl-C nor its input.

    Leaving a ``with`` because of an error ends the command: no job is left behind that nothing waits for.
    """

    def __init__(
        self, command: Sequence[str], folder: RunFolder, environ: Mapping[str, str], *, own_session: bool = False
    ) -> None:
        self.command = tuple(command)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        out, err = (os.open(path, flags, 0o644) for path in (folder.launcher_out, folder.launcher_err))
        try:
            # mpirun and srun would take what is typed for a rank.
            stdin = subprocess.DEVNULL if own_session else None
            self._process = subprocess.Popen(
                command, stdin=stdin, stdout=out, stderr=err, env=dict(environ), start_new_session=own_session
            )
        except OSError as error:
            raise BreakranksError(*_refusal(command[0], error)) from error
        finally:
            os.close(out)
            os.close(err)
        _log.info("started", argv=list(command), pid=self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status as a shell has it, 128 + N after signal N; None while the command runs."""
        status = self._process.poll()
        return status if status is None or status >= 0 else 128 - status

    def send_signal(self, number: int) -> None:
        """Send a signal, if the command still runs."""
        self._process.send_signal(number)

    def end(self) -> None:
        """End the command: its launcher first gets the chance to end its ranks."""
        self.send_signal(signal.SIGTERM)
        try:
            self._process.wait(TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> CommandProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.poll() is None:
            _log.info("ending the command", pid=self.pid, why=f"{type(error).__name__}: {error}")
            self.end()


def _refusal(program: str, error: OSError) -> tuple[str, str]:
    if error.errno == errno.ENOEXEC:
        return f"{program} cannot be executed: its first line names no interpreter", f"Try: sh {program}"
    if error.errno == errno.ENOENT:
        return f"{program} cannot be executed: its interpreter does not exist", "Check the first line of the script."
    return f"{program} cannot be executed: {(error.strerror or str(error)).lower()}", "Check its permissions."
