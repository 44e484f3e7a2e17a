"""What a rank writes about itself into the folder of its run: its registration, an uncaught exception, its end."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

from breakranks.rank.launch.launch_config import LAUNCH, LaunchConfig, host_key
from breakranks.rank.launch.launched_rank import LaunchedRank, TaskProcess, started, started_by

_MAX_ATTEMPTS = 10000
_MAX_TRACEBACK_CHARS = 1 << 16
_MAX_MESSAGE_CHARS = 4000
_MAX_FILE_BYTES = 1 << 20


class RankRecord:
    """The files of one attempt of a rank. Its number is taken when the record is made."""

    def __init__(self, config: LaunchConfig, rank: LaunchedRank) -> None:
        self.config = config
        self.rank = rank
        self.pid = os.getpid()
        self._task = started_by(config.names, os.environ)
        self._restart = _restart_count()
        self.replaces_rank = False  # by exec: the process was this rank already
        self.attempt, self._entry = self._claim()

    @property
    def stem(self) -> str:
        """The path of the output files of this attempt, without ``.out``."""
        attempt = f".attempt-{self.attempt}" if self.attempt else ""
        return f"{self.config.run_folder}/rank-{self.rank.rank}{attempt}"

    @property
    def redirected(self) -> list[int]:
        """The standard streams that are not those of the launcher, as registered."""
        return [fd for fd, name in ((1, "shown_out"), (2, "shown_err")) if self._entry[name] != "launcher"]

    @property
    def mark(self) -> str:
        """The value of the variable from which children know that this process is the rank."""
        rank = self.rank
        return f"{self.config.token}:{rank.launcher}:{rank.rank}:{self.attempt}:{self.pid}"

    def update(self, **fields: Any) -> None:
        """Add to the registration."""
        self._entry.update(fields)
        write_json(self.path(), self._entry)

    def raised(self, kind: type[BaseException], error: BaseException, text: str) -> None:
        """An exception that nothing has caught ends this rank."""
        about = {"time": time.time(), "type": kind.__name__, "message": _message(error)}
        write_json(self.path("exception"), {**about, "traceback": text[-_MAX_TRACEBACK_CHARS:]})

    def ended(self) -> None:
        """The program has come to its end."""
        write_json(self.path("end"), {"time": time.time()})

    def path(self, kind: str = "", attempt: int = -1) -> str:
        """The registration, or another file about this attempt."""
        number = self.attempt if attempt < 0 else attempt
        stem = f"{self.config.ranks}/rank-{self.rank.rank}.attempt-{number}"
        return f"{stem}.{kind}.json" if kind else f"{stem}.json"

    def _claim(self) -> tuple[int, dict[str, Any]]:
        """Take the first number that is free, or that this task has already: it may run several programs in turn."""
        for attempt in range(max(self._restart, 0), _MAX_ATTEMPTS):
            path = self.path(attempt=attempt)
            entry = self._new_entry(attempt)
            known = _read_json(path) if os.path.exists(path) else None
            if known is None and _create_json(path, entry):
                return attempt, entry
            known = known or _read_json(path)
            if known is not None and all(known.get(name) == entry[name] for name in ("task", "host_key", "restart")):
                self._forget_end(attempt)
                self.replaces_rank = (known.get("pid"), known.get("start")) == (entry["pid"], entry["start"])
                entry = {**known, "python": entry["python"]} if self.replaces_rank else entry
                write_json(path, entry)
                return attempt, entry
        raise OSError(f"rank {self.rank.rank} has too many registrations")

    def _new_entry(self, attempt: int) -> dict[str, Any]:
        rank, task = self.rank, self._task
        return {
            "rank": rank.rank,
            "world": rank.world,
            "local_rank": rank.local_rank,
            "attempt": attempt,
            "launcher": rank.launcher,
            "host": socket.gethostname(),
            "host_key": host_key(),
            "pid": self.pid,
            "start": started(self.pid),
            "parent": os.getppid(),
            "task": list(TaskProcess(task.pid, task.start)),
            "restart": self._restart,
            "python": f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}",
            "executable": sys.executable,
            "out": "",
            "err": "",
            "shown": "launcher",
            "shown_out": "launcher",
            "shown_err": "launcher",
            "time": time.time(),
            "slurm_job": os.environ.get("SLURM_JOB_ID", ""),
        }

    def _forget_end(self, attempt: int) -> None:
        """The program before this one of the same task has ended; the task has not."""
        for kind in ("end", "exception"):
            try:
                os.unlink(self.path(kind, attempt))
            except OSError:
                pass


def export_mark(mark: str, values: str) -> None:
    """Tell children with the same variables that they are not the rank. Sitecustomize compares ``values``."""
    os.environ[LAUNCH] = f"{mark}:{values}"


def is_in_rank(token: str) -> bool:
    """Whether a rank of the same run has started this process, which is a rank as well: that of a job of its own."""
    known = os.environ.get(LAUNCH, "").split(":", 5)
    return len(known) == 6 and known[0] == token and known[1] != "" and known[4] != str(os.getpid())


def write_json(path: str, value: dict[str, Any]) -> None:
    """Replace a file atomically."""
    os.rename(_temporary(path, value), path)


def _create_json(path: str, value: dict[str, Any]) -> bool:
    """Make a file with its content at once. False: it exists."""
    temporary = _temporary(path, value)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if os.path.exists(path):
            return False
        os.rename(temporary, path)
        return True
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return True


def _temporary(path: str, value: dict[str, Any]) -> str:
    folder, name = os.path.split(path)
    temporary = f"{folder}/.{name}.{socket.gethostname()}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(value, file)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
    return temporary


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.loads(file.read(_MAX_FILE_BYTES))
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None


def _restart_count() -> int:
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(count) if count.isascii() and count.isdigit() and len(count) < 4 else -1


def _message(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_MESSAGE_CHARS]
    except Exception:
        return ""
