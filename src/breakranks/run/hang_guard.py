"""The watch over the job of a run: `breakranks watch` in a process of its own, so that output is never late for it."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from breakranks.log import Log
from breakranks.rank.launch.launch_config import host_key
from breakranks.run.rank_registry import RankRegistration
from breakranks.run.run_folder import RunFolder
from breakranks.run.run_session import RunSession
from breakranks.snapshot.host_names import fold

KEEP, KILL = "keep", "kill"
MIN_HANG_SECONDS, MAX_HANG_SECONDS = 2.0, 86400.0
_REGISTER_SECONDS = 20.0  # after the first rank, for those of other hosts
_POLL_SECONDS = 1.0
_END_SECONDS = 10.0
_log = Log("run")


@dataclass(frozen=True, slots=True, kw_only=True)
class HangOptions:
    """What to do when no rank makes progress for ``seconds``. ``target``: where the ranks are, if not on this host."""

    seconds: float
    save: str = ""
    then: str = KEEP
    execute: str = ""
    target: str = ""


class HangGuard:
    """Starts the watch when the ranks have registered, and ends it with the run. ``has_killed``: the watch has ended
    the job, after a hang that it explained."""

    def __init__(self, options: HangOptions, folder: RunFolder) -> None:
        self._options = options
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.time() - 1.0  # file systems have coarse times
        self._first = 0.0
        self._next = 0.0
        self.has_killed = False

    def __enter__(self) -> HangGuard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def snapshots(self) -> list[str]:
        """The snapshots of the hangs that were found, the oldest first."""
        folder = Path(self._options.save or self._folder.path)
        found = [path for path in folder.glob("*.brk") if path.stat().st_mtime >= self._began]
        return [str(path) for path in sorted(found, key=lambda path: path.stat().st_mtime)]

    def turn(self, session: RunSession) -> None:
        """Start the watch once it is known on which hosts the ranks are."""
        now = time.monotonic()
        if self._process is not None or now < self._next:
            return
        self._next = now + _POLL_SECONDS
        ranks = session.registry.registrations
        if not ranks:
            return
        self._first = self._first or now
        if len({found.rank for found in ranks}) >= ranks[0].world or now - self._first > _REGISTER_SECONDS:
            words = watch_words(self._options, self._folder, ranks, session.command.pid)
            _log.info("watch", argv=words)
            # In a session of its own: Ctrl-C is for the job, and the watch sees how that ends.
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), start_new_session=True
            )

    def end(self, session: RunSession, status: int) -> None:
        """End the watch: the command has ended."""
        self._stop()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            # It sees the end of the job itself; a verdict that it prints at this moment is whole.
            self.has_killed = process.wait(_END_SECONDS) == 1 and self._options.then == KILL
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def watch_words(options: HangOptions, folder: RunFolder, ranks: list[RankRegistration], pid: int) -> list[str]:
    """Return the command line of the watch."""
    target = options.target or target_of(ranks)
    words = [sys.executable, "-m", "breakranks", "watch", *([target] if target else ["--below", str(pid)])]
    words += ["--on-hang", f"{options.seconds:g}", "--then", options.then, "--save", options.save or str(folder.path)]
    return words + (["--exec", options.execute] if options.execute else [])


def target_of(ranks: list[RankRegistration]) -> str:
    """Return how the hosts of these ranks are reached; "" if all are on this host."""
    hosts = {found.host for found in ranks}
    if {found.host_key for found in ranks} == {host_key()}:
        return ""
    slurm = next((found.slurm_job for found in ranks if found.slurm_job), "")
    return f"slurm:{slurm}" if slurm else f"ssh:{fold(sorted(hosts))}"
