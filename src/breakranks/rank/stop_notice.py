"""The notice of a stopped rank: how to connect to it. In a terminal of the user, the console opens there at once."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from breakranks.rank import rank_output, run_dir
from breakranks.rankset import ranks_text

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent
    from breakranks.rank.stop_state import StopInfo

_MAX_WORLD = 16  # in a larger job one held rank per host prints a notice
_MAX_NOTICES = 4  # of more ranks that stop, only the first prints a notice
_FIRST_NOTICE_SECONDS, _LATE_NOTICE_SECONDS = 1.0, 3.0  # after which a held rank may print, and does print
_START = "import sys; sys.path.insert(0, {path!r}); from breakranks.cli.main import entry; entry()"


def announce(agent: RankAgent, stop: StopInfo) -> None:
    """Print which rank stopped, where, and how to connect to it; or open the console. Held ranks print later."""
    if agent.watched or (stop.role == "held" and not stop.until_go):
        return
    if stop.role == "prompt" and _may_open(agent):
        if agent.me.rank == stop.stoppers.first:
            stop.announced = open_console(agent)
        return
    stop.announced = True
    if len(stop.stoppers) <= _MAX_NOTICES or agent.me.rank == stop.stoppers.first:
        _print(agent, _summary(stop))


def announce_late(agent: RankAgent, stop: StopInfo, now: float) -> None:
    """Print what ``announce`` could not: another console had the terminal, or another rank might have printed."""
    waited = now - stop.began
    if agent.watched or agent.coordination.off or agent.stop_state.releasing or waited < _FIRST_NOTICE_SECONDS:
        return
    if stop.role == "prompt":
        stop.announced = open_console(agent)
        if not stop.announced and waited > _LATE_NOTICE_SECONDS:
            stop.announced = True
            _print(agent, _summary(stop))
        return
    _announce_held(agent, stop, waited)


def _announce_held(agent: RankAgent, stop: StopInfo, waited: float) -> None:
    """Print for a held rank, if the notice of the rank that it is held for goes to another file or does not come."""
    if agent.me.world > _MAX_WORLD and agent.me.local_rank != 0:
        stop.announced = True
        return
    entries = [agent.coordination.stores.entry(rank) for rank in stop.stoppers]
    absent = [entry is None or not entry.get("debugging") for entry in entries]
    if any(absent) and waited < _LATE_NOTICE_SECONDS:
        return
    stop.announced = True
    if any(absent):
        if not open_console(agent):
            hint = f"call it on all ranks, or name the ranks that reach it: breakpoint({agent.me.rank})"
            have = "has" if len(stop.stoppers) == 1 else "have"
            stoppers = ranks_text(stop.stoppers)
            _print(agent, f"{_summary(stop)} for {stoppers}, which {have} not reached this line ({hint})")
    elif not all(entry is not None and entry.get("stderr") == rank_output.standard_error() for entry in entries):
        _print(agent, f"{_summary(stop)} for {ranks_text(stop.stoppers)}")


def say(agent: RankAgent, stop: StopInfo) -> None:
    """Print the notice now."""
    stop.announced = True
    _print(agent, _summary(stop))


def _summary(stop: StopInfo) -> str:
    if stop.role == "held":
        return f"is held at {_place(stop)}"
    return f"{stop.reason if stop.crashed else 'stopped'} at {_place(stop)}"


def _place(stop: StopInfo) -> str:
    where = stop.where
    return f"{os.path.basename(str(where.get('file')))}:{where.get('line')} in {where.get('function')}"


def _print(agent: RankAgent, summary: str) -> None:
    helper = f" (helper, pid {agent.pid})" if agent.me.helper else ""
    more = ""
    if agent.coordination.alone:
        more = (
            "\nranks on other hosts are neither held nor released: this job has no torch store. "
            "Set BREAKRANKS_DIR to a shared folder"
        )
    rank_output.say(f"rank {agent.me.rank}{helper} {summary}; connect with: {command(agent)}{more}")


def command(agent: RankAgent) -> str:
    """Return the command that opens the console of this job. It names the job if this user has others on this host."""
    base = run_dir.base()
    try:
        others = [f"{base}/{name}" for name in os.listdir(base) if name != agent.me.job]
        several = any(os.path.isdir(path) and run_dir.inhabited(path) for path in others)
    except OSError:
        several = False
    return f"breakranks console --job {agent.me.job}" if several else "breakranks console"


def open_console(agent: RankAgent) -> bool:
    """Open the console in the terminal of this rank. Return False if it has none, or if another console is open."""
    if not _may_open(agent):
        return False
    path = _terminal()
    try:
        lock = os.open(f"{agent.path}/console.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the console inherits the lock and keeps it until it ends
        os.set_inheritable(lock, True)
        with open(path, "r+b", buffering=0) as terminal:
            agent.console = OpenedConsole(path, terminal.fileno(), f"{agent.path}/console.lock")
            agent.console.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _start_text(),
                    "console",
                    "local",
                    "--job",
                    agent.me.job,
                    "--opened-by",
                    str(agent.pid),
                ],
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                pass_fds=(lock,),
            )
    except Exception:  # termios.error is none of the operating system's
        agent.console = None
        return False
    finally:
        os.close(lock)
    return True


def _may_open(agent: RankAgent) -> bool:
    return not agent.me.hosts and os.environ.get("BREAKRANKS_CONSOLE", "") != "0" and bool(_terminal())


class OpenedConsole:
    """A console that a rank has opened. When it ends, for any reason, the modes of the terminal are restored."""

    def __init__(self, path: str, terminal: int, kept: str) -> None:
        import termios  # an extension module, needed only in a terminal

        self.path = path
        self.process: subprocess.Popen[bytes] | None = None
        self._kept = kept
        # A console that was killed may have left other modes: then the modes that it saved are the right ones.
        saved = run_dir.read(kept)
        if isinstance(saved, list) and len(saved) == 7:
            self.modes: list[Any] = [*saved[:6], [bytes(key) for key in saved[6]]]
            return
        self.modes = termios.tcgetattr(terminal)
        with open(kept, "w") as file:
            json.dump(
                [*self.modes[:6], [list(key) if isinstance(key, bytes) else [key] for key in self.modes[6]]], file
            )

    def ended(self, wait: float = 0.0) -> bool:
        """Return whether the console has ended. The agent calls this regularly."""
        import termios  # as above

        try:
            if self.process is None or self.process.wait(wait) is None:
                return False
        except subprocess.TimeoutExpired:
            return False
        try:
            with open(self.path, "r+b", buffering=0) as terminal:
                termios.tcsetattr(terminal.fileno(), termios.TCSANOW, self.modes)
            os.truncate(self._kept, 0)
        except (OSError, termios.error):
            pass
        return True


def _start_text() -> str:
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return _START.format(path=package)


def _terminal() -> str:
    try:
        if os.isatty(0) and os.isatty(2):
            return os.ttyname(0)
        if os.isatty(2):  # children of multiprocessing have no standard input
            handle = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
            try:
                return "/dev/tty" if os.tcgetpgrp(handle) == os.getpgrp() else ""
            finally:
                os.close(handle)
    except OSError:
        pass
    return ""
