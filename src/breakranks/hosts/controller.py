"""The controller's end: an agent on every host of a plan, asked all at once, and those that do not answer.

One thread carries the lines. The user of a :class:`HostController` asks, and takes answers as they come. A host that
cannot be reached, is late or goes away in between is *lost*, with the reason; the others go on.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from breakranks.hosts import host_messages
from breakranks.hosts.framing import ALL, JSON, MSGPACK, FramedMessage
from breakranks.hosts.host_messages import (
    PROTOCOL,
    ClockReply,
    CloseLink,
    Hello,
    LinkData,
    LogLine,
    Ping,
    Reply,
    Report,
    Request,
)
from breakranks.hosts.host_state import HostLinks, HostRoster, HostState, PendingRequest
from breakranks.hosts.input_checks import StageReport
from breakranks.hosts.transport_process import TransportProcess, allow_files
from breakranks.hosts.transports import HostPlan, LostHost, diagnose
from breakranks.log import OFF, Log, level, milliseconds, relay
from breakranks.own_suspension import stalled
from breakranks.snapshot.snapshot_file import is_time

_log = Log("hosts")
_PING_SECONDS = 5.0
_SOON_SECONDS = 1.0  # seconds of waiting until it is said
_TURN_SECONDS = 0.25
_LOOK_SECONDS = 0.1  # seconds between two looks at who is late
_SILENT_SECONDS = 20.0  # seconds; an agent gives a sign of life more often
_CHUNK_BYTES = 1 << 16
_END_SECONDS = 3.0  # seconds; killed by its launcher, an agent could not clear up behind it
_BUFFER_BYTES = 1 << 22
_MAX_LOG_LINES = 100_000  # lines of one host's log


class HostController:
    """Agents on hosts. ``supply`` gives what a host without our code needs, by what it said of itself."""

    def __init__(
        self,
        plan: HostPlan,
        *,
        nonce: str,
        deadline: float,
        fanout: int = 64,
        supply: Callable[[dict[str, object]], Iterator[bytes]],
    ) -> None:
        self.plan = plan
        self.typed = plan.name  # the target with its options, as a person types it
        self.waits_for: Callable[[Sequence[str]], None] = lambda names: None  # told who takes long
        self.deadline = deadline
        self.longer = 3 * deadline  # for what takes its time: to send our code, to read C frames, to get into ranks
        self._scheme = plan.name.partition(":")[0]
        self._nonce = nonce
        self._fanout = fanout
        self._supply = supply
        self.host_states = {name: HostState(name) for name in plan.hosts}
        for name, lost in plan.lost.items():
            self.host_states.setdefault(name, HostState(name)).lost = lost
        self._pending = list(plan.transports)[::-1]
        self._coming = {one.name: one for one in self.host_states.values() if one.lost is None}
        self._under_way = 0  # those of them whose transport runs
        self._same: dict[str, HostState] = {}
        self._strangers: dict[str, HostState] = {}
        self._running: dict[TransportProcess, HostRoster] = {}
        self._looked = time.monotonic()
        self._numbers = itertools.count(1)
        self._asked: dict[int, PendingRequest] = {}
        self._changed = threading.Condition()
        self._todo: list[Callable[[], None]] = []
        self._selector = selectors.DefaultSelector()
        self._links = HostLinks(self._selector, self._tell)
        self._awake, self._wake = os.pipe()
        self._closing = False
        self.newest = time.monotonic()  # when somebody last came or was lost
        self._thread = threading.Thread(target=self._work, daemon=True, name="breakranks hosts")

    def __enter__(self) -> HostController:
        allow_files(len(self.host_states))
        self._selector.register(self._awake, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- who is there

    @property
    def up(self) -> list[str]:
        return [one.name for one in self.host_states.values() if one.hello is not None and one.lost is None]

    @property
    def waiting(self) -> list[str]:
        """Hosts that have not answered yet."""
        return list(self._coming)

    @property
    def lost(self) -> dict[str, LostHost]:
        return {one.name: one.lost for one in self.host_states.values() if one.lost is not None}

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Until something is so; False if it is not in time."""
        with self._changed:
            return self._changed.wait_for(done, seconds)

    # ---- asking

    def ask(self, requests: Mapping[str, Request], seconds: float) -> Iterator[tuple[str, Reply]]:
        """Ask hosts, each its own; their answers as they come. One that does not answer in time is lost."""
        number = next(self._numbers)
        until = time.monotonic() + seconds
        with self._changed:
            asked = PendingRequest(name for name in requests if self.host_states[name].lost is None)
            self._asked[number] = asked
        self._later(lambda: self._ask({name: requests[name] for name in tuple(asked.awaited)}, number))
        try:
            while asked.awaited or asked.answers:
                began = time.monotonic()
                left = until - began
                span = max(0.0, min(left, _SOON_SECONDS))
                with self._changed:
                    some = self._changed.wait_for(lambda: bool(asked.answers or not asked.awaited), span)
                    answers, awaited = asked.take(), tuple(asked.awaited)
                until += stalled(time.monotonic() - began, span)
                yield from answers
                if some:
                    continue
                if until - began > _SOON_SECONDS:
                    self.waits_for(awaited)
                    continue
                for name in awaited:
                    self.lose(
                        name, LostHost(kind="timed-out", what=f"did not answer within {seconds:.0f} s", remedy=_BUSY)
                    )
                return
        finally:
            self.waits_for(())
            del self._asked[number]

    def lose(self, name: str, lost: LostHost) -> None:
        """From now on it is lost, unless it was before; who asks next sees it so."""
        one = self.host_states[name]
        self._later(lambda: self._lose(one, lost))
        while self._thread.is_alive() and not self.wait(lambda: one.lost is not None, _TURN_SECONDS):
            pass

    def connect(self, name: str, path: str) -> socket.socket:
        """A link to the agent of a rank on that host, as a socket of ours."""
        ours, theirs = socket.socketpair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        theirs.settimeout(_END_SECONDS)
        self._later(lambda: self._links.connect(self.host_states[name], path, theirs))
        return ours

    def close(self) -> None:
        """Leave all hosts."""
        self._closing = True
        self._later(lambda: None)
        self._thread.join(10.0)
        if self._wake >= 0 and not self._thread.is_alive():
            self._selector.close()
            os.close(self._awake)
            os.close(self._wake)
            self._wake = -1

    def _later(self, do: Callable[[], None]) -> None:
        """In the thread of the lines."""
        if self._wake >= 0:
            self._todo.append(do)
            os.write(self._wake, b".")

    # ---- the thread of the lines

    def _work(self) -> None:
        try:
            self._start()
            while not self._closing:
                self._turn()
                self._start()
                self._look_after()
        except Exception as error:  # a bug of ours: nobody may wait for ever because of it
            lost = LostHost(kind="failed", what=f"unexpected {type(error).__name__}: {error}", remedy=_BUG)
            with self._changed:
                for one in self.host_states.values():
                    one.lost = one.lost or lost
                for asked in self._asked.values():
                    asked.awaited.clear()
                self._coming.clear()
                self._changed.notify_all()
            if os.environ.get("BREAKRANKS_DEBUG", "") not in ("", "0"):
                raise
        finally:
            self._end()

    def _start(self) -> None:
        """Start transports, but not more at a time than hosts may be on their way up."""
        while self._pending and self._under_way < self._fanout:
            transport = self._pending.pop()
            host_states = [self.host_states[name] for name in transport.hosts if self.host_states[name].lost is None]
            try:
                running = TransportProcess(transport, self._nonce)
            except OSError as error:
                for one in host_states:
                    what = f"{transport.argv[0]} cannot be started: {error.strerror}"
                    many = error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
                    remedy = _TOO_MANY if many else f"Is {transport.argv[0]} installed here?"
                    self._lose(one, LostHost(kind="failed", what=what, remedy=remedy))
                continue
            self._running[running] = HostRoster([self.host_states[name] for name in transport.hosts])
            self._under_way += len(host_states)
            self._selector.register(running.outward, selectors.EVENT_READ, (running, "out"))
            self._selector.register(running.errors, selectors.EVENT_READ, (running, "err"))
            for one in host_states:
                one.running = running
                one.began = time.monotonic()
                one.until = one.began + self.deadline

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TURN_SECONDS):
            if key.fd == self._awake:
                os.read(self._awake, _CHUNK_BYTES)
                todo, self._todo = self._todo, []
                for do in todo:
                    do()
            elif isinstance(key.data, int):
                self._links.carry(key.data)
            else:
                running, what = key.data
                if running not in self._running:
                    continue  # ended by what came before it in this turn
                if what == "out":
                    self._hear(running)
                elif what == "err" and not running.complain():
                    self._selector.unregister(running.errors)
                elif what == "in":
                    self._flush(running)

    def _look_after(self) -> None:
        now = time.monotonic()
        passed = now - self._looked
        if passed < _LOOK_SECONDS:
            return
        self._looked = now
        away = stalled(passed, _TURN_SECONDS)
        for one in list(self._coming.values()):
            one.until += away
            if now > one.until:
                self._late(one)
        for one in self.host_states.values():
            one.heard += away
            if one.hello is not None and one.lost is None and now - one.heard > _SILENT_SECONDS:
                what = f"has said nothing for {now - one.heard:.0f} s"
                self._lose(one, LostHost(kind="lost", what=what, remedy="Is it down, or the way to it?"))
        for running in list(self._running):
            if now - running.pinged > _PING_SECONDS:
                running.pinged = now
                self._send(running, ALL, Ping())

    def _late(self, one: HostState) -> None:
        text = one.running.text if one.running is not None else ""
        self._lose(one, diagnose(self._scheme, one.name, None, text))

    # ---- what hosts say

    def _hear(self, running: TransportProcess) -> None:
        try:
            self._take(running)
        except Exception as error:  # whatever one transport says, the others go on
            self._forget(running)
            running.kill()
            running.end(time.monotonic())
            for name in running.transport.hosts:
                what = f"what it says makes no sense ({type(error).__name__}: {error})"
                self._lose(self.host_states[name], LostHost(kind="failed", what=what[:500], remedy=_VERSION))

    def _take(self, running: TransportProcess) -> None:
        heard = running.hear()
        if heard is None:
            self._ended(running)
            return
        for said in heard:
            if running not in self._running:
                return  # what it said last has lost it
            if said.kind == JSON:
                self._stage(running, said)
            elif said.kind == MSGPACK:
                try:
                    report: Report = msgspec.msgpack.decode(said.body, type=Report)
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    running.reader.broken += 1
                    continue
                self._report(running, said.who, report, len(said.body))

    def _stage(self, running: TransportProcess, said: FramedMessage) -> None:
        """Before an agent runs: it lacks our code, or cannot run at all."""
        try:
            told = json.loads(said.body)
        except (ValueError, RecursionError):
            return
        # One whose own name says nothing to us is known when its agent says hello, and may lack it until then.
        one = self._running[running].of(said.who) or self._strangers.setdefault(said.who, HostState(said.who))
        many = len(self._strangers) > len(self.host_states)
        if not isinstance(told, dict) or one.lost is not None or one.hello is not None or many:
            return
        stage = StageReport(told)
        if stage.word == "need" and not one.supplied:
            one.supplied = True
            one.until = time.monotonic() + self.deadline + self.longer
            need = {name: stage.need[name] for name in ("python", "machine")}
            _log.info("host lacks our code", host=one.name, have=",".join(stage.need["have"]), **need)
            sent = 0
            for body in self._supply(stage.need):
                running.send(said.who, body[:1], body[1:])
                sent += len(body)
            self._flush(running)
            _log.info("code sent", host=one.name, bytes=sent)
        elif stage.word == "no-python":
            what = f"no Python 3.10 or newer there (found: {', '.join(stage.found) or 'none'})"
            self._lose(one, LostHost(kind="no-python", what=what, remedy=_PYTHON))
        elif stage.word == "failed":
            self._lose(one, LostHost(kind="failed", what=stage.what, remedy=stage.help))

    def _report(self, running: TransportProcess, who: str, report: Report, size: int) -> None:
        one = self._running[running].of(who, report.aliases if isinstance(report, Hello) else ())
        if one is None:
            return
        one.heard = time.monotonic()
        if isinstance(report, Hello):
            self._meet(running, one, report)
        elif isinstance(report, ClockReply):
            self._set_clock(one, report)
        elif isinstance(report, LogLine):
            self._logged(one, report)
        elif isinstance(report, LinkData):
            self._links.deliver(one, report)
        elif isinstance(report, CloseLink):
            self._links.shut(report.link, by=one)
        else:
            with self._changed:
                asked = self._asked.get(report.id)
                if asked is not None and one.name in asked.awaited:
                    asked.awaited.discard(one.name)
                    asked.answers.append((one.name, report))
                    self._changed.notify_all()
                    _log.info("host answered", host=one.name, answer=type(report).__name__, id=report.id, bytes=size,
                              why=report.what if isinstance(report, host_messages.RequestFailed) else None,
                              ms=milliseconds(asked.began))  # fmt: skip

    def _logged(self, one: HostState, logged: LogLine) -> None:
        """A line of a host's log, if that was asked for; by our clock."""
        one.logged += 1
        if level() == OFF or one.logged > _MAX_LOG_LINES:
            return
        relay(one.name, logged.time - one.clock, logged.level, logged.room, logged.pid, logged.text)

    def _meet(self, running: TransportProcess, one: HostState, hello: Hello) -> None:
        if one.lost is not None or one.hello is not None:
            return
        if hello.protocol != PROTOCOL:
            lost = LostHost(kind="failed", what=f"speaks protocol {hello.protocol}, not {PROTOCOL}", remedy=_VERSION)
            self._lose(one, lost)
        elif (twin := self._same.setdefault(hello.same, one)) is not one:
            self._lose(one, LostHost(kind="failed", what=f"is the same host as {twin.name}", remedy="Name it once."))
        else:
            if is_time(hello.time):
                one.clock, one.clock_error = hello.time - time.time(), self.deadline
            with self._changed:
                one.hello = hello
                self._arrived(one)
            _log.info("host is there", host=one.name, python=hello.python, user=hello.user, agent=hello.pid,
                      shipped=hello.shipped, ms=milliseconds(one.began))  # fmt: skip
            if level() < OFF:
                self._tell(one, host_messages.SendLog(level()))
            one.pinged = time.time()
            self._tell(one, Ping())

    def _set_clock(self, one: HostState, clock: ClockReply) -> None:
        """By the first ping, which went to it alone: half the way there and back is what we cannot know."""
        sent, one.pinged = one.pinged, 0.0
        if sent and is_time(clock.time):
            now = time.time()
            one.clock, one.clock_error = clock.time - (now + sent) / 2, abs(now - sent) / 2

    def _ended(self, running: TransportProcess) -> None:
        """A transport has ended, and all who came by it are lost."""
        running.complain()
        self._forget(running)
        status = running.end(time.monotonic() + _END_SECONDS)
        for name in running.transport.hosts:
            one = self.host_states[name]
            if one.lost is None and one.running is running:
                lost = diagnose(self._scheme, name, status, running.text)
                if one.hello is not None:
                    lost = replace(lost, kind="lost", what=f"went away: {lost.what}")
                self._lose(one, lost)

    def _lose(self, one: HostState, lost: LostHost) -> None:
        if one.lost is not None:
            return
        with self._changed:
            one.lost = lost
            for asked in self._asked.values():
                asked.awaited.discard(one.name)
            self._arrived(one)
        took = milliseconds(one.began) if one.began else None
        _log.info("host lost", host=one.name, kind=lost.kind, why=lost.what, ms=took)
        self._links.drop(one)
        running = one.running
        if running is not None and len(running.transport.hosts) == 1 and running in self._running:
            self._forget(running)
            running.kill()
            running.end(time.monotonic())

    def _arrived(self, one: HostState) -> None:
        """It is there, or it is known why not."""
        if self._coming.pop(one.name, None) is not None and one.running is not None:
            self._under_way -= 1
        self.newest = time.monotonic()
        self._changed.notify_all()

    def _forget(self, running: TransportProcess) -> None:
        self._running.pop(running, None)
        for fd in (running.outward, running.errors, running.inp):
            if fd >= 0 and fd in self._selector.get_map():
                self._selector.unregister(fd)

    # ---- what they are told

    def _ask(self, requests: dict[str, Request], number: int) -> None:
        by_carrier: dict[int, list[str]] = {}
        for name in requests:
            one = self.host_states[name]
            if one.running is not None and one.lost is None:
                by_carrier.setdefault(id(one.running), []).append(name)
        for running in list(self._running):
            names = by_carrier.get(id(running), [])
            same = names and all(requests[name] == requests[names[0]] for name in names)
            up = sum(self.host_states[name].lost is None for name in running.transport.hosts)
            # A word to all of a transport's hosts goes out once. Those that were lost may hear it, too.
            if same and len(names) == up:
                self._send(running, ALL, replace(requests[names[0]], id=number))
                continue
            for name in names:
                request = replace(requests[name], id=number)
                self._tell(self.host_states[name], request)

    def _send(self, running: TransportProcess, who: str, request: Request) -> None:
        body = msgspec.msgpack.encode(request)
        if not isinstance(request, (Ping, LinkData)):
            number = getattr(request, "id", None)
            _log.info("asked", to=who, request=type(request).__name__, id=number, bytes=len(body))
        running.send(who, MSGPACK, body)
        self._flush(running)

    def _tell(self, one: HostState, request: Request) -> None:
        if one.running is not None:
            self._send(one.running, one.who, request)

    def _flush(self, running: TransportProcess) -> None:
        running.write()
        known = running.inp >= 0 and running.inp in self._selector.get_map()
        if running.waits and not known and running.inp >= 0:
            self._selector.register(running.inp, selectors.EVENT_WRITE, (running, "in"))
        elif known and not running.waits:
            self._selector.unregister(running.inp)

    def _end(self) -> None:
        self._links.close()
        for running in self._running:
            self._flush(running)
            running.finish()
        until = time.monotonic() + _END_SECONDS
        for running in self._running:
            running.end(until)


_TOO_MANY = "This machine allows no more at a time: ulimit -n, ulimit -u. Name fewer hosts, or raise them."
_BUSY = "Is it overloaded? Give it longer: --deadline 30"
_BUG = "This is a bug of breakranks, not of your job: BREAKRANKS_DEBUG=1 shows where."
_PYTHON = "Name one that is there: --python /path/to/python3, or what makes one known: --setup 'module load python'"
_VERSION = "Have the same version of breakranks on both sides, or none there."
