"""Telling a person how to get to a stopped rank; in a terminal of theirs, by opening the console there at once."""

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

_MAX_SPEAKERS = 16
_FEW = 4
_POLITE_SECONDS, _IMPATIENT_SECONDS = 1.0, 3.0  # seconds after which a held rank speaks
_START = "import sys; sys.path.insert(0, {path!r}); from breakranks.cli.main import entry; entry()"


def announce(agent: RankAgent, stop: StopInfo) -> None:
    """One line that says who stopped where and how to get there, or the console itself. The rest speak later."""
    if agent.watched or (stop.role == "held" and not stop.until_go):
        return
    if stop.role == "prompt" and _may_open(agent):
        if agent.me.rank == stop.stoppers.first:
            stop.spoken = open_console(agent)
        return
    stop.spoken = True
    if len(stop.stoppers) <= _FEW or agent.me.rank == stop.stoppers.first:
        _say(agent, _what(stop))


def announce_late(agent: RankAgent, stop: StopInfo, now: float) -> None:
    """What could not be told at once: the terminal was another console's, or it was not clear who would speak."""
    waited = now - stop.began
    if agent.watched or agent.watch.off or agent.stop_state.releasing or waited < _POLITE_SECONDS:
        return
    if stop.role == "prompt":
        stop.spoken = open_console(agent)
        if not stop.spoken and waited > _IMPATIENT_SECONDS:
            stop.spoken = True
            _say(agent, _what(stop))
        return
    _announce_held(agent, stop, waited)


def _announce_held(agent: RankAgent, stop: StopInfo, waited: float) -> None:
    """A held rank speaks only where the words of the rank that it holds for cannot be seen, or do not come."""
    if agent.me.world > _MAX_SPEAKERS and agent.me.local_rank != 0:
        stop.spoken = True
        return
    entries = [agent.watch.stores.entry(rank) for rank in stop.stoppers]
    absent = [entry is None or not entry.get("debugging") for entry in entries]
    if any(absent) and waited < _IMPATIENT_SECONDS:
        return
    stop.spoken = True
    if any(absent):
        if not open_console(agent):
            hint = f"call it on all ranks, or name those that come here: breakpoint({agent.me.rank})"
            one = "which has" if len(stop.stoppers) == 1 else "which have"
            _say(agent, f"{_what(stop)}, for {ranks_text(stop.stoppers)}, {one} not come to this line ({hint})")
    elif not all(entry is not None and entry.get("stderr") == rank_output.standard_error() for entry in entries):
        _say(agent, f"{_what(stop)}, for {ranks_text(stop.stoppers)}")


def say(agent: RankAgent, stop: StopInfo) -> None:
    """The line itself."""
    stop.spoken = True
    _say(agent, _what(stop))


def _what(stop: StopInfo) -> str:
    if stop.role == "held":
        return f"is held at {_place(stop)}"
    return f"{stop.reason if stop.reason.startswith('crashed') else 'stopped'} at {_place(stop)}"


def _place(stop: StopInfo) -> str:
    where = stop.where
    return f"{os.path.basename(str(where.get('file')))}:{where.get('line')} in {where.get('function')}"


def _say(agent: RankAgent, what: str) -> None:
    helper = f" (helper, pid {agent.pid})" if agent.me.helper else ""
    more = ""
    if agent.watch.alone:
        more = "\nranks on other hosts cannot be told of it (no store of torch's); BREAKRANKS_DIR names a shared folder"
    rank_output.say(f"rank {agent.me.rank}{helper} {what}; get to it with: {command(agent)}{more}")


def command(agent: RankAgent) -> str:
    """The console's command line for this job, with its name where this user has others here."""
    base = run_dir.base()
    try:
        others = [f"{base}/{name}" for name in os.listdir(base) if name != agent.me.job]
        several = any(os.path.isdir(path) and run_dir.inhabited(path) for path in others)
    except OSError:
        several = False
    return f"breakranks console --job {agent.me.job}" if several else "breakranks console"


def open_console(agent: RankAgent) -> bool:
    """Open the console in the terminal that this rank was started in; False where there is none, or one is open."""
    if not _may_open(agent):
        return False
    path = _terminal()
    try:
        lock = os.open(f"{agent.path}/console.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the console inherits it, and has it until it ends
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
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _may_open(agent: RankAgent) -> bool:
    return not agent.me.hosts and os.environ.get("BREAKRANKS_CONSOLE", "") != "0" and bool(_terminal())


class OpenedConsole:
    """A console that a rank has opened: when it ends, however it does, the terminal is as it was."""

    def __init__(self, path: str, terminal: int, kept: str) -> None:
        import termios

        self.path = path
        self.process: subprocess.Popen[bytes] | None = None
        self._kept = kept
        # One that was killed before may have left it otherwise: then what that one found counts.
        found = run_dir.read(kept)
        if isinstance(found, list) and len(found) == 7:
            self.modes: list[Any] = [*found[:6], [bytes(key) for key in found[6]]]
            return
        self.modes = termios.tcgetattr(terminal)
        with open(kept, "w") as file:
            json.dump(
                [*self.modes[:6], [list(key) if isinstance(key, bytes) else [key] for key in self.modes[6]]], file
            )

    def ended(self, wait: float = 0.0) -> bool:
        """Whether it has; called now and then by the agent."""
        import termios

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
