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
from typing import TYPE_CHECKING, Any

from breakranks.inside.rank import AGENT_THREAD, armed, folder, forks, interrupt
from breakranks.inside.rank.haste import Haste, wake_on_time
from breakranks.inside.rank.identity import Me, remember_parent
from breakranks.inside.rank.looker import Looker
from breakranks.inside.rank.seat import GONE, Seat, Stop
from breakranks.inside.rank.timeouts import Timeouts
from breakranks.inside.rank.watch import Watch
from breakranks.inside.rank.wire import Client, Wire

if TYPE_CHECKING:
    from breakranks.inside.rank.leaving import Leaving
    from breakranks.inside.rank.terminal import Opened

VERSION = 1
_CONSOLE_ENDS = 0.5  # seconds that a console takes to end, once it has let go of us
_NOBODY = 15.0  # seconds for which an agent that was brought here waits for whoever brought it,
_SLOW = 120.0  # and for one that lives, on a machine that stands still now and then


class Agent:
    """``me`` is who this process is, ``seat`` where its stopped thread sits, ``watch`` what it knows of the others."""

    def __init__(self, me: Me, leaving: Leaving | None = None, guest: dict[str, Any] | None = None) -> None:
        self.me = me
        self._attached = leaving  # not None: it goes with its last console, and takes all of ours along
        self.leaving = False
        self.expected = int(leaving is not None)  # how many consoles are about to come,
        self._guest, self._since = guest or {}, time.monotonic()  # the last of them, and when it said so
        self.pid = os.getpid()
        self.name = f"helper-{self.pid}" if me.helper else f"rank-{me.rank}"
        self.path = f"{folder.private(folder.base())}/{me.job}"
        self.wire = self._listen()
        self.seat = Seat(self.serves)
        self.timeouts = Timeouts()
        self.watch = Watch(self)
        self.looker = Looker(self)
        self._haste = Haste()
        self.console: Opened | None = None  # one that this rank has opened in its own terminal
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
            self.wire.close()
            folder.remove(self.path, f"{self.pid}.sock", f"{self.name}.json")
            raise
        atexit.register(self.end)
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:  # its children end without atexit
            self._finalizer = multiprocessing.Finalize(None, self.end, exitpriority=0)

    def enter(self, stop: Stop) -> None:
        """A thread of the job stops here."""
        self.seat.take(stop)
        self.watch.publish()
        if stop.holds:  # after it: who holds for a rank that is not stopped goes on at once
            self.watch.announce({"do": "hold", "ranks": str(stop.holds), "reason": f"rank {self.me.rank} crashed"})
        self.wire.wake()

    def leave(self, *, tracing: bool) -> None:
        self.seat.give(tracing=tracing)
        self.watch.publish()
        self.wire.tell({"event": "state", **self.state()})

    def loose(self) -> None:
        """The rank runs and is not traced any more."""
        self.seat.tracing = False
        self.watch.publish()
        self.wire.tell({"event": "state", **self.state()})

    def end(self) -> None:
        """Leave nothing behind, before the interpreter ends: a thread in C++ could take the process along then."""
        if os.getpid() != self.pid or self._ending:
            return
        self._ending = True
        self.wire.wake()
        self._thread.join(2.0)
        if self.leaving:
            return
        self.wire.hang_up()
        # The entry stays while others are here: to those that hold for this rank it says that it will not come.
        self.watch.end()
        if self.console is not None:
            self.console.ended(2.0)  # it must have left the terminal before a shell takes it back
        folder.remove(self.path, f"{self.pid}.sock")

    def abandon(self) -> None:
        """In a forked child: the thread is not here, and what it had open is its parent's."""
        self.pid = -1  # also where the child has the number of its parent, in a namespace of its own
        remember_parent(self.me.rank, self.me.job)
        self._haste.end()
        self.timeouts.abandon()
        self.seat.abandon()
        self.wire.abandon()

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
        return any(client.console for client in self.wire.clients)

    def state(self) -> dict[str, Any]:
        """What a console is told of this rank."""
        seat = self.seat
        turn = seat.turn  # before the rest: that is then at least as new
        stop = seat.stop
        found: dict[str, Any] = {
            "turn": turn,
            "rank": self.me.rank,
            "world": self.me.world,
            "pid": self.pid,
            "host": self.me.host,
            "helper": self.me.helper,
            "state": seat.state,
            "tracing": seat.tracing,
            "off": self.watch.off,
            "consoles": sum(client.console for client in self.wire.clients),
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
            self._haste.begin(time.monotonic())  # whoever brought us is about to ask
        try:
            looked = 0.0
            while not self._ending:
                pause = self.watch.pause
                self.wire.turn(pause)
                now = time.monotonic()
                if now - looked >= pause * 0.9 or self.seat.stop is not None:
                    looked = now
                    self.watch.look(now)
                    self.looker.tidy()
                    self._haste.look(now)
                if self._attached is not None and self._deserted and self._leave():
                    return
            self._haste.end()
            self.wire.flush()
        except Exception as error:
            self._haste.end()
            # A thread of ours never brings the job down, and never prints a traceback into it.
            self.seat.release(f"the agent failed: {error!r}")
            self.timeouts.restore()
            if os.environ.get("BREAKRANKS_DEBUG", "") not in ("", "0"):
                sys.excepthook(type(error), error, error.__traceback__)
            if self._attached is not None:
                with contextlib.suppress(Exception):
                    self._leave()

    def _leave(self) -> bool:
        """The last console has gone, and nobody called us here: nothing of ours stays. False: a console has come."""
        from breakranks.inside.rank import api
        from breakranks.inside.rank.leaving import wait_for_threads

        leaving = self._attached
        assert leaving is not None
        self.seat.release(GONE)
        interrupt.withdraw(self)
        armed.disarm(self)
        visitor = sys.modules.get("breakranks.inside.rank.dap")
        if visitor is not None:
            visitor.stop()
        if not wait_for_threads(leaving, self._wanted) or not self._deserted:
            return False
        self.leaving = True  # whoever comes now starts anew
        self.timeouts.restore()
        self.watch.end()
        self.wire.close()
        folder.remove(self.path, f"{self.pid}.sock", f"{self.name}.json")
        atexit.unregister(self.end)  # until here the process, should it end, waits for this
        if self._finalizer is not None:
            self._finalizer.cancel()
        api.forget(self)
        end_haste = self._haste.ending()
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
        return not self.expected or waited >= _SLOW or (waited >= _NOBODY and not folder.alive(self._guest))

    def _wanted(self, pause: float) -> bool:
        self.seat.release(GONE)  # a thread may have sat down since
        self.wire.turn(pause)
        return self._ending or not self._deserted

    def _listen(self) -> Wire:
        for _ in range(10):
            with folder.alone(self.path) as sure:
                folder.private(self.path)
                if sure:
                    folder.sweep(self.path)
                try:
                    return Wire(f"{self.path}/{self.pid}.sock", self._obey, self._gone)
                except FileNotFoundError:  # the last of those that were here has just cleared up
                    continue
        raise folder.NotPrivate(f"{self.path} vanishes again and again.")

    def _obey(self, client: Client, message: dict[str, Any]) -> None:
        with forks.Paused():
            from breakranks.inside.rank import obey

        self._haste.begin(time.monotonic())
        obey.obey(self, client, message)

    def _gone(self, client: Client) -> None:
        """The last console has left, whatever became of it: what it held goes on, and does not stop again."""
        self.seat.drop(client)
        for number in client.probes:
            armed.unprobe(self, number)
        if self.console is not None and self.console.ended(_CONSOLE_ENDS):
            self.console = None
        if not client.console or self.watched or client.polite:
            return
        self.watch.off = True
        self.watch.announce({"do": "off"})
        if self.seat.evaluating:
            interrupt.stop_evaluating(self.seat)
        self.seat.release(GONE)
        interrupt.stop_tracing(self.seat)


def _name_thread() -> None:
    """The kernel's name for it is that of the thread that has started it: one of ours that is awaited to end."""
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
            file.write(AGENT_THREAD)
    except OSError:
        pass
