"""The agent of a rank: one daemon thread on a private socket, from the first breakpoint on.

It passes lines between consoles and the stopped thread, tells the other ranks what this one is at, lets it go when its
reason to wait is gone, and keeps the timeouts of its groups long meanwhile. Idle it wakes once a second. It takes no
signal, and no lock of the job's.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from breakranks.rank import AGENT_THREAD, fork_hooks, handlers, run_dir
from breakranks.rank.breakpoints import Breakpoints
from breakranks.rank.coordination import Coordination
from breakranks.rank.inspector import Inspector
from breakranks.rank.pdb_registry import PdbRegistry
from breakranks.rank.pg_timeouts import GroupTimeouts
from breakranks.rank.rank_identity import RankIdentity, remember_parent
from breakranks.rank.stop_state import GONE, StopInfo, StopState
from breakranks.rank.switch_interval import SwitchInterval, wake_on_time
from breakranks.rank.unix_server import Client, UnixServer
from breakranks.rank.unload import wait_for_threads

if TYPE_CHECKING:
    from breakranks.rank.rank_pdb import RankPdb
    from breakranks.rank.stop_notice import OpenedConsole
    from breakranks.rank.unload import Unload

_CONSOLE_END_SECONDS = 0.5  # seconds that a console takes to end, once it has let go of us
_CONSOLE_LOOK_SECONDS = 0.1
_SHARED_CONSOLE_SECONDS = 2.0  # how long a rank that ends waits for a console that other ranks may have, too
_LAST_CONSOLE_SECONDS = 30.0  # and the last rank
_NOBODY_SECONDS = 15.0  # seconds for which an agent that was brought here waits for whoever brought it,
_SLOW_SECONDS = 120.0  # and for one that lives, on a machine that stands still now and then


class RankAgent:
    """``me`` is who this process is, ``stop_state`` its stopped thread, ``watch`` what it knows of the others."""

    def __init__(
        self,
        me: RankIdentity,
        *,
        forked: Callable[[], object],
        left: Callable[[RankAgent], None],
        leaving: Unload | None = None,
        guest: dict[str, Any] | None = None,
    ) -> None:
        self.me = me
        self.forked = forked  # in a forked child: nothing of this agent is there
        self._left = left
        self._attached = leaving  # not None: it goes with its last console, and takes all of ours along
        self.leaving = False
        self.expected = int(leaving is not None)  # how many consoles are about to come,
        self._guest, self._since = guest or {}, time.monotonic()  # the last of them, and when it said so
        self.pid = os.getpid()
        self.name = f"helper-{self.pid}" if me.helper else f"rank-{me.rank}"
        self.path = f"{run_dir.private(run_dir.base())}/{me.job}"
        self.server = self._listen()
        self.stop_state = StopState(self.serves)
        self.timeouts = GroupTimeouts()
        self.watch = Coordination(self)
        self.inspector = Inspector(self)
        self.pdbs = PdbRegistry(lambda: _rank_pdb()(self), _rank_pdb)
        self.breakpoints = Breakpoints(self)
        self._switch_interval = SwitchInterval()
        self.console: OpenedConsole | None = None  # one that this rank has opened in its own terminal
        self._ending = False
        self._finalizer: Any = None
        self._thread = threading.Thread(target=self._run, name="breakranks", daemon=True)

    # ---- from the job's threads

    def start(self) -> None:
        try:
            self.watch.meet()
            self.watch.publish()
            self._thread.start()
        except BaseException:  # no more threads: 3.12 has none left once the main one has ended
            self.server.close()
            run_dir.remove(self.path, f"{self.pid}.sock", f"{self.name}.json")
            raise
        atexit.register(self.end)
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:  # its children end without atexit
            self._finalizer = multiprocessing.Finalize(None, self.end, exitpriority=0)

    def enter(self, stop: StopInfo) -> None:
        """A thread of the job stops here."""
        self.stop_state.take(stop)
        self.watch.publish()
        if stop.holds:  # after it: who holds for a rank that is not stopped goes on at once
            self.watch.announce({"do": "hold", "ranks": str(stop.holds), "reason": f"rank {self.me.rank} crashed"})
        self.server.wake()

    def leave(self, *, tracing: bool) -> None:
        self.stop_state.give(tracing=tracing)
        self.watch.publish()
        self.server.tell({"event": "state", **self.state()})

    def loose(self) -> None:
        """The rank runs and is not traced any more."""
        self.stop_state.tracing = False
        self.watch.publish()
        self.server.tell({"event": "state", **self.state()})

    def end(self) -> None:
        """Leave nothing behind, before the interpreter ends: a thread in C++ could take the process along then."""
        if os.getpid() != self.pid or self._ending:
            return
        self._ending = True
        self.server.wake()
        self._thread.join(2.0)
        if self.leaving:
            return
        self.server.hang_up()
        # The entry stays while others are here: to those that hold for this rank it says that it will not come.
        self.watch.end()
        self._wait_for_console()
        run_dir.remove(self.path, f"{self.pid}.sock")

    def _wait_for_console(self) -> None:
        """The one that this rank has opened must have left the terminal before a shell takes it back. When the job
        ends, the console may be killed with it, at its terminal. It stays as long as other ranks are there."""
        began = time.monotonic()
        while self.console is not None and not self.console.ended(_CONSOLE_LOOK_SECONDS):
            limit = _SHARED_CONSOLE_SECONDS if run_dir.inhabited(self.path) else _LAST_CONSOLE_SECONDS
            if time.monotonic() - began > limit:
                return

    def abandon(self) -> None:
        """In a forked child: the thread is not here, and what it had open is its parent's."""
        self.pid = -1  # also where the child has the number of its parent, in a namespace of its own
        remember_parent(self.me.rank, self.me.job)
        self._switch_interval.end()
        self.timeouts.abandon()
        self.stop_state.abandon()
        self.server.abandon()

    @property
    def here(self) -> bool:
        """False in a forked child: nobody is there who could let a stopped thread go on."""
        return os.getpid() == self.pid

    def serves(self) -> bool:
        """Whether the thread is there that a stopped one waits for."""
        return self.here and self._thread.is_alive()

    @property
    def attached(self) -> bool:
        """Whether somebody has brought it here, and the job has not called for it."""
        return self._attached is not None

    @property
    def watched(self) -> bool:
        """Whether a console is here."""
        return any(client.console for client in self.server.clients)

    def state(self) -> dict[str, Any]:
        """What a console is told of this rank."""
        stop_state = self.stop_state
        turn = stop_state.turn  # before the rest: that is then at least as new
        stop = stop_state.stop
        found: dict[str, Any] = {
            "turn": turn,
            "rank": self.me.rank,
            "world": self.me.world,
            "pid": self.pid,
            "host": self.me.host,
            "helper": self.me.helper,
            "state": stop_state.state,
            "tracing": stop_state.tracing,
            "off": self.watch.off,
            "consoles": sum(client.console for client in self.server.clients),
        }
        if stop is not None:
            found |= {
                "role": stop.role,
                "stoppers": str(stop.stoppers),
                "until_go": stop.until_go,
                "reason": stop.reason,
                "site": stop.site,
                "thread": stop.thread,
                "since": stop.since,
                "where": stop.where,
                "inside": stop.inside,
                "notes": stop.notes,
            }
        return found

    # ---- the thread

    def _run(self) -> None:
        _name_thread()
        wake_on_time()
        if self._attached is not None:
            self._switch_interval.begin(time.monotonic())  # whoever brought us is about to ask
        try:
            looked = 0.0
            while not self._ending:
                pause = self.watch.pause
                self.server.turn(pause)
                now = time.monotonic()
                if now - looked >= pause * 0.9 or self.stop_state.stop is not None:
                    looked = now
                    self.watch.look(now)
                    self.inspector.tidy()
                    self._switch_interval.look(now)
                if self._attached is not None and self._deserted and self._leave():
                    return
            self._switch_interval.end()
            self.server.flush()
        except Exception as error:
            self._switch_interval.end()
            # A thread of ours never brings the job down, and never prints a traceback into it.
            self.stop_state.release(f"the agent failed: {error!r}")
            self.timeouts.restore()
            if os.environ.get("BREAKRANKS_DEBUG", "") not in ("", "0"):
                sys.excepthook(type(error), error, error.__traceback__)
            if self._attached is not None:
                with contextlib.suppress(Exception):
                    self._leave()

    def _leave(self) -> bool:
        """The last console has gone, and nobody called us here: nothing of ours stays. False: a console has come."""
        leaving = self._attached
        assert leaving is not None
        self.stop_state.release(GONE)
        self.breakpoints.withdraw()
        self.breakpoints.disarm()
        visitor = sys.modules.get("breakranks.rank.debugpy_session")
        if visitor is not None:
            visitor.stop()
        if not wait_for_threads(leaving, self._wanted) or not self._deserted:
            return False
        self.leaving = True  # whoever comes now starts anew
        self.timeouts.restore()
        self.watch.end()
        self.server.close()
        run_dir.remove(self.path, f"{self.pid}.sock", f"{self.name}.json")
        atexit.unregister(self.end)  # until here the process, should it end, waits for this
        if self._finalizer is not None:
            self._finalizer.cancel()
        self._left(self)
        end_haste = self._switch_interval.ending()
        leaving.unload()
        end_haste()
        return True

    def expect(self, guest: dict[str, Any]) -> None:
        """Somebody is about to come: this process."""
        self.expected += 1
        self._guest, self._since = guest, time.monotonic()

    @property
    def _deserted(self) -> bool:
        """Whether nobody is here, and nobody is about to come."""
        if self.watched:
            return False
        waited = time.monotonic() - self._since
        return (
            not self.expected
            or waited >= _SLOW_SECONDS
            or (waited >= _NOBODY_SECONDS and not run_dir.alive(self._guest))
        )

    def _wanted(self, pause: float) -> bool:
        self.stop_state.release(GONE)  # a thread may have sat down since
        self.server.turn(pause)
        return self._ending or not self._deserted

    def _listen(self) -> UnixServer:
        for _ in range(10):
            with run_dir.alone(self.path) as sure:
                run_dir.private(self.path)
                if sure:
                    run_dir.sweep(self.path)
                try:
                    return UnixServer(f"{self.path}/{self.pid}.sock", self._obey, self._gone)
                except FileNotFoundError:  # the last of those that were here has just cleared up
                    continue
        raise run_dir.NotPrivateFolder(f"{self.path} vanishes again and again.")

    def _obey(self, client: Client, message: dict[str, Any]) -> None:
        self._switch_interval.begin(time.monotonic())
        handlers.handle(self, client, message)

    def _gone(self, client: Client) -> None:
        """The last console has left, whatever became of it: what it held goes on, and does not stop again."""
        self.stop_state.drop(client)
        for number in client.probes:
            self.breakpoints.drop_probe(number)
        if self.console is not None and self.console.ended(_CONSOLE_END_SECONDS):
            self.console = None
        if not client.console or self.watched or client.polite:
            return
        self.watch.off = True
        self.watch.announce({"do": "off"})
        if self.stop_state.evaluating:
            self.stop_state.interrupt_evaluation()
        self.stop_state.release(GONE)
        self.breakpoints.disarm()


def _rank_pdb() -> type[RankPdb]:
    """Imported when it is needed: pdb and what it needs take a tenth of a second on a busy machine."""
    with fork_hooks.ForksPaused():
        from breakranks.rank.rank_pdb import RankPdb

    return RankPdb


def _name_thread() -> None:
    """The kernel's name for it is that of the thread that has started it: one of ours that is awaited to end."""
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
            file.write(AGENT_THREAD)
    except OSError:
        pass
