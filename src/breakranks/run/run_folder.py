"""The folder of one run: the output of the launcher and of each rank, and the registrations of the ranks.

breakranks-logs/latest -> 20261119-205536-4711
breakranks-logs/20261119-205536-4711/launcher.out  launcher.err  rank-0.out  rank-0.err  ranks/  startup/
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path

from breakranks.errors import BreakranksError
from breakranks.log import Log
from breakranks.rank.launch.launch_config import ENDED, STARTUP

DEFAULT_LOG_DIR = "breakranks-logs"
LATEST = "latest"
_PROBE_BYTES = 1 << 20  # a folder with less room than this is full
_FULL = (errno.ENOSPC, errno.EDQUOT)
_log = Log("run")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where the files of one run are."""

    path: Path

    @property
    def launcher_out(self) -> Path:
        return self.path / "launcher.out"

    @property
    def launcher_err(self) -> Path:
        return self.path / "launcher.err"

    @property
    def registrations(self) -> Path:
        return self.path / "ranks"

    def rank_file(self, rank: int, attempt: int, stream: str) -> Path:
        """The output of one attempt of a rank; ``stream`` is ``out`` or ``err``."""
        return self.path / f"rank-{rank}{f'.attempt-{attempt}' if attempt else ''}.{stream}"

    def mark_ended(self) -> None:
        """From now on no process is of this run. A job that a rank has submitted with sbatch has its variables."""
        try:
            (self.path / STARTUP / ENDED).touch()
        except OSError as error:
            _log.info("cannot mark the end", path=str(self.path), why=str(error))


def create_run_folder(log_dir: Path, keep_free_bytes: int = 0) -> RunFolder:
    """Make a folder for a new run, and let ``latest`` point to it. Raise BreakranksError if it cannot be written, or
    if so little is free that the ranks would not write there."""
    # Python finds the code for the ranks through PYTHONPATH, which separates folders with colons.
    log_dir = Path(os.path.abspath(log_dir))
    if ":" in str(log_dir) or "\n" in str(log_dir):
        raise BreakranksError(
            f"the log folder {str(log_dir)!r} has a colon or a newline in its path",
            "Choose another one, because PYTHONPATH cannot hold it: --log-dir DIR",
        )
    try:
        folder = RunFolder(_new_folder(log_dir))
        folder.registrations.mkdir()
        _probe(folder.path / "probe")
        free_bytes = _free_bytes(folder.path)
    except OSError as error:
        raise BreakranksError(*_refusal(log_dir, error)) from error
    if free_bytes < keep_free_bytes:
        raise BreakranksError(
            f"the log folder {log_dir} has {free_bytes >> 20} MiB left, less than --keep-free",
            "Free some space, write elsewhere with --log-dir DIR, or keep less: --keep-free 0",
        )
    _point_latest(log_dir / LATEST, folder.path.name)
    _log.info("run folder", path=str(folder.path))
    return folder


def _new_folder(log_dir: Path) -> Path:
    log_dir.mkdir(parents=True, exist_ok=True)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    for again in range(100):  # a process of another container may have the same id
        path = log_dir / (f"{name}-{again}" if again else name)
        try:
            path.mkdir(0o755)
            return path
        except FileExistsError:
            continue
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(log_dir / name))


def _probe(path: Path) -> None:
    """Write as much as a short log needs, and remove it again."""
    try:
        with open(path, "wb") as file:
            file.write(bytes(_PROBE_BYTES))
    finally:
        path.unlink(missing_ok=True)


def _free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _refusal(log_dir: Path, error: OSError) -> tuple[str, str]:
    if error.errno in _FULL:
        return f"the log folder {log_dir} is full", "Free some space, or write elsewhere: --log-dir DIR"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"the log folder {log_dir} cannot be made: a file is in the way", "Choose another one: --log-dir DIR"
    reason = (error.strerror or str(error)).lower()
    return f"the log folder {log_dir} cannot be written: {reason}", "Choose another one: --log-dir DIR"


def _point_latest(link: Path, name: str) -> None:
    """Replace the link at once: another run may read it. What is no link stays."""
    temporary = link.with_name(f".{LATEST}-{name}")
    try:
        if link.is_symlink() or not link.exists():
            temporary.symlink_to(name)
            temporary.replace(link)
    except OSError as error:  # a file system without links
        _log.info("no link to the latest run", path=str(link), why=str(error))
