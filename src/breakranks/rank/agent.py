"""The agent of a rank: one daemon thread on a private socket, from the first breakpoint on.

It passes lines between consoles and the stopped thread, publishes the state of this rank to the others, resumes it when
its reason to wait is gone, and keeps the timeouts of its groups long until then. While idle it wakes once a second. It
takes no signals and no locks of the job.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

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
from breakranks.rank_messages import CodePlace, RankState, StacksRequest, StateEvent

if TYPE_CHECKING:
    from breakranks.rank.rank_pdb import RankPdb
    from breakranks.rank.stop_notice import OpenedConsole
    from breakranks.rank.unload import Unload

_CONSOLE_END_SECONDS = 0.5  # that a console takes to end after it has hung up
_CONSOLE_POLL_SECONDS = 0.1
_SHARED_CONSOLE_SECONDS = 2.0  # that a rank waits at its end for a console which other ranks may use as well
_LAST_CONSOLE_SECONDS = 30.0  # the same, for the last rank
_DEAD_CLIENT_SECONDS = 15.0  # that an injected agent waits for its client, if that has died,
_SLOW_CLIENT_SECONDS = 120.0  # and if it lives, on a machine that is suspended now and then

State = TypeVar("State", bound=RankState)


class RankAgent:
    """``me`` is the identity of this process, ``stop_state`` its stopped thread, ``watch`` the state of other ranks."""

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
        self.forked = forked  # called in a forked child, where the agent does not run
        self._left = left
        self._attached = leaving  # not None: the agent was injected, and unloads itself after its last console
        self.leaving = False
        self.expected = int(leaving is not None)  # consoles that are about to connect
        self._guest, self._since = guest or {}, time.monotonic()  # the process of the last one, and since when
        self.pid = os.getpid()
        self.name = f"helper-{self.pid}" if me.helper else f"rank-{me.rank}"
        self.path = f"{run_dir.private(run_dir.base())}/{me.job}"
        self.server = self._listen()
        self.stop_state = StopState(self.serves)
        self.timeouts = GroupTimeouts()
        self.coordination = Coordination(self)
        self.inspector = Inspector(self)
        self.pdbs = PdbRegistry(lambda: _rank_pdb()(self), _rank_pdb)
        self.breakpoints = Breakpoints(self)
        self._switch_interval = SwitchInterval()
        self.console: OpenedConsole | None = None  # the one that this rank has opened in its own terminal
        self._ending = False
        self._finalizer: Any = None
        self._thread = threading.Thread(target=self._run, name="breakranks", daemon=True)

    # ---- from the job's threads

    def start(self) -> None:
        try:
            self.coordination.meet()
            self.coordination.publish()
            self._thread.start()
        except BaseException:  # no thread can be started: from 3.12 on, none after the main thread has ended
            self.server.close()
            run_dir.remove(self.path, f"{self.pid}.sock", f"{self.name}.json")
            raise
        atexit.register(self.end)
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:  # its children end without running atexit functions
            self._finalizer = multiprocessing.Finalize(None, self.end, exitpriority=0)

    def enter(self, stop: StopInfo) -> None:
        """A thread of the job stops here."""
        self.stop_state.take(stop)
        self.coordination.publish()
        if stop.holds:  # after publish: a rank that holds for one that is not stopped resumes at once
            reason = f"rank {self.me.rank} crashed"
            self.coordination.announce({"do": "hold", "ranks": str(stop.holds), "reason": reason})
        self.server.wake()

    def leave(self, *, tracing: bool) -> None:
        self.stop_state.give(tracing=tracing)
        self.coordination.publish()
        self.server.tell(self.report(StateEvent))

    def loose(self) -> None:
        """The rank runs and is no longer traced."""
        self.stop_state.tracing = False
        self.coordination.publish()
        self.server.tell(self.report(StateEvent))

    def end(self) -> None:
        """Clean up before the interpreter ends: after that, a thread in C++ could end the process at any time."""
        if os.getpid() != self.pid or self._ending:
            return
        self._ending = True
        self.server.wake()
        self._thread.join(2.0)
        if self.leaving:
            return
        self.server.hang_up()
        # The entry stays while other ranks run: it tells those that hold for this rank that it has ended.
        self.coordination.end()
        self._wait_for_console()
        run_dir.remove(self.path, f"{self.pid}.sock")

    def _wait_for_console(self) -> None:
        """The console that this rank has opened must leave the terminal before a shell takes it back.

        When the job ends, the console may be killed with it. It stays as long as there are other ranks.
        """
        began = time.monotonic()
        while self.console is not None and not self.console.ended(_CONSOLE_POLL_SECONDS):
            limit = _SHARED_CONSOLE_SECONDS if run_dir.inhabited(self.path) else _LAST_CONSOLE_SECONDS
            if time.monotonic() - began > limit:
                return

    def abandon(self) -> None:
        """In a forked child: the agent's thread does not exist, and its open files belong to the parent."""
        self.pid = -1  # a child in a pid namespace of its own may have the pid of its parent
        remember_parent(self.me.rank, self.me.job)
        self._switch_interval.end()
        self.timeouts.abandon()
        self.stop_state.abandon()
        self.server.abandon()

    @property
    def here(self) -> bool:
        """False in a forked child, where no thread could resume a stopped one."""
        return os.getpid() == self.pid

    def serves(self) -> bool:
        """Whether the agent's thread runs, for which a stopped thread waits."""
        return self.here and self._thread.is_alive()

    @property
    def attached(self) -> bool:
        """Whether the agent was injected, and not started by a breakpoint of the job."""
        return self._attached is not None

    @property
    def watched(self) -> bool:
        """Whether a console is connected."""
        return any(client.console for client in self.server.clients)

    def state(self) -> RankState:
        """The state of this rank, as consoles get it."""
        return self.report(RankState)

    def report(self, kind: type[State], **fields: Any) -> State:
        """An event that contains the state, with these fields of its own."""
        stop_state = self.stop_state
        with stop_state.changed:  # read together: a console names a stop by its turn
            turn, stop, state, tracing = stop_state.turn, stop_state.stop, stop_state.state, stop_state.tracing
        if stop is not None:
            fields = {
                "role": stop.role,
                "stoppers": str(stop.stoppers),
                "until_go": stop.until_go,
                "reason": stop.reason,
                "crashed": stop.crashed,
                "exception": stop.exception,
                "site": stop.site,
                "thread": stop.thread,
                "since": stop.since,
                "where": CodePlace(**stop.where) if stop.where else None,
                "inside": stop.inside,
                "notes": tuple(stop.notes),
                **fields,
            }
        return kind(
            turn=turn,
            rank=self.me.rank,
            world=self.me.world,
            pid=self.pid,
            host=self.me.host,
            helper=self.me.helper,
            state=state,
            tracing=tracing,
            off=self.coordination.off,
            consoles=sum(client.console for client in self.server.clients),
            **fields,
        )

    # ---- the thread

    def _run(self) -> None:
        _name_thread()
        wake_on_time()
        if self._attached is not None:
            self._switch_interval.begin(time.monotonic())  # the client is about to send requests
        try:
            checked = 0.0
            while not self._ending:
                pause = self.coordination.pause
                self.server.turn(pause)
                now = time.monotonic()
                if now - checked >= pause * 0.9 or self.stop_state.stop is not None:
                    checked = now
                    self.coordination.look(now)
                    self.inspector.tidy()
                    self._switch_interval.look(now)
                if self._attached is not None and self._deserted and self._leave():
                    return
            self._switch_interval.end()
            self.server.flush()
        except Exception as error:
            self._switch_interval.end()
            # The agent's thread never ends the job, and prints no traceback into its output.
            self.stop_state.release(f"the agent failed: {error!r}")
            self.timeouts.restore()
            if os.environ.get("BREAKRANKS_DEBUG", "") not in ("", "0"):
                sys.excepthook(type(error), error, error.__traceback__)
            if self._attached is not None:
                with contextlib.suppress(Exception):
                    self._leave()

    def _leave(self) -> bool:
        """Unload an injected agent after its last console. False: another console has connected."""
        leaving = self._attached
        assert leaving is not None
        self.stop_state.release(GONE)
        self.breakpoints.withdraw()
        self.breakpoints.disarm()
        session = sys.modules.get("breakranks.rank.debugpy_session")
        if session is not None:
            session.stop()
        if not wait_for_threads(leaving, self._wanted) or not self._deserted:
            return False
        self.leaving = True  # from now on, an attach starts a new agent
        self.inspector.forget()
        for pdb in self.pdbs.all():
            pdb.release_frames()
        self.timeouts.restore()
        self.coordination.end()
        self.server.close()
        run_dir.remove(self.path, f"{self.pid}.sock", f"{self.name}.json")
        atexit.unregister(self.end)  # up to here, the end of the process waits for the agent
        if self._finalizer is not None:
            self._finalizer.cancel()
        self._left(self)
        end_haste = self._switch_interval.ending()
        leaving.unload()
        end_haste()
        return True

    def expect(self, guest: dict[str, Any]) -> None:
        """A console is about to connect: the process ``guest``."""
        self.expected += 1
        self._guest, self._since = guest, time.monotonic()

    @property
    def _deserted(self) -> bool:
        """Whether no console is connected, and none is about to connect."""
        if self.watched:
            return False
        waited = time.monotonic() - self._since
        return (
            not self.expected
            or waited >= _SLOW_CLIENT_SECONDS
            or (waited >= _DEAD_CLIENT_SECONDS and not run_dir.alive(self._guest))
        )

    def _wanted(self, pause: float) -> bool:
        self.stop_state.release(GONE)  # a thread may have stopped since
        self.server.turn(pause)
        return self._ending or not self._deserted

    def _listen(self) -> UnixServer:
        for _ in range(10):
            with run_dir.alone(self.path) as locked:
                run_dir.private(self.path)
                if locked:
                    run_dir.sweep(self.path)
                try:
                    return UnixServer(f"{self.path}/{self.pid}.sock", self._handle, self._gone)
                except FileNotFoundError:  # the last process of the job has just removed the folder
                    continue
        raise run_dir.NotPrivateFolder(f"{self.path} is removed repeatedly by another process.")

    def _handle(self, client: Client, message: dict[str, Any]) -> None:
        # Stacks are requested again and again, by programs that watch the job: its interval is restored at once.
        brief = message.get("do") == StacksRequest.do and not self._switch_interval.is_short
        self._switch_interval.begin(time.monotonic())
        handlers.handle(self, client, message)
        if brief:
            self._switch_interval.end()

    def _gone(self, client: Client) -> None:
        """When the last console has left or died, the rank resumes and does not stop again."""
        self.stop_state.drop(client)
        for number in client.probes:
            self.breakpoints.drop_probe(number)
        if self.console is not None and self.console.ended(_CONSOLE_END_SECONDS):
            self.console = None
        if not client.console or self.watched or client.polite:
            return
        self.coordination.off = True
        self.coordination.announce({"do": "off"})
        if self.stop_state.evaluating:
            self.stop_state.interrupt_evaluation()
        self.stop_state.release(GONE)
        self.breakpoints.disarm()


def _rank_pdb() -> type[RankPdb]:
    """Import it when it is needed: pdb and its imports take a tenth of a second on a busy machine."""
    with fork_hooks.ForksPaused():
        from breakranks.rank.rank_pdb import RankPdb

    return RankPdb


def _name_thread() -> None:
    """Name the thread in the kernel: it has inherited the name of the thread that injected it."""
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
            file.write(AGENT_THREAD)
    except OSError:
        pass
