"""The controller's end: an agent on every host of a plan, asked all at once, and those that do not answer.

A thread of ours carries lines; whoever uses a :class:`Fleet` asks, and takes answers as they come. A host that cannot
be reached, is late or goes away in between is *lost*, with the reason; the others go on.
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

from breakranks.log import OFF, Log, level, milliseconds, relay
from breakranks.reach import messages
from breakranks.reach.carrying import Running, allow_files
from breakranks.reach.checking import Stage
from breakranks.reach.lines import ALL, JSON, MSGPACK, Said
from breakranks.reach.messages import PROTOCOL, Clock, Data, Hello, LogLine, Ping, Reply, Report, Request, Shut
from breakranks.reach.station import Asked, Links, Roster, Station
from breakranks.reach.ways import Lost, Plan, diagnose
from breakranks.snapshot.file import is_time
from breakranks.stall import stalled

_log = Log("reach")
_PING = 5.0
_SOON = 1.0  # seconds of waiting until it is said
_TURN = 0.25
_LOOK = 0.1  # seconds between two looks at who is late
_SILENT = 20.0  # seconds; an agent gives a sign of life more often
_CHUNK = 1 << 16
_ENDING = 3.0  # seconds; killed by its launcher, an agent could not clear up behind it
_BUFFER = 1 << 22
_MOST_LOGGED = 100_000  # lines of one host's log


class Fleet:
    """Agents on hosts. ``supply`` gives what a host without our code needs, by what it said of itself."""

    def __init__(
        self,
        plan: Plan,
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
        self.stations = {name: Station(name) for name in plan.hosts}
        for name, lost in plan.lost.items():
            self.stations.setdefault(name, Station(name)).lost = lost
        self._pending = list(plan.carriers)[::-1]
        self._coming = {one.name: one for one in self.stations.values() if one.lost is None}
        self._under_way = 0  # those of them whose carrier runs
        self._same: dict[str, Station] = {}
        self._strangers: dict[str, Station] = {}
        self._running: dict[Running, Roster] = {}
        self._looked = time.monotonic()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Asked] = {}
        self._changed = threading.Condition()
        self._todo: list[Callable[[], None]] = []
        self._selector = selectors.DefaultSelector()
        self._links = Links(self._selector, self._tell)
        self._awake, self._wake = os.pipe()
        self._closing = False
        self.newest = time.monotonic()  # when somebody last came or was lost
        self._thread = threading.Thread(target=self._work, daemon=True, name="breakranks fleet")

    def __enter__(self) -> Fleet:
        allow_files(len(self.stations))
        self._selector.register(self._awake, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- who is there

    @property
    def up(self) -> list[str]:
        return [one.name for one in self.stations.values() if one.hello is not None and one.lost is None]

    @property
    def waiting(self) -> list[str]:
        """Hosts that have not answered yet."""
        return list(self._coming)

    @property
    def lost(self) -> dict[str, Lost]:
        return {one.name: one.lost for one in self.stations.values() if one.lost is not None}

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
            asked = Asked(name for name in requests if self.stations[name].lost is None)
            self._asked[number] = asked
        self._later(lambda: self._ask({name: requests[name] for name in tuple(asked.awaited)}, number))
        try:
            while asked.awaited or asked.answers:
                began = time.monotonic()
                left = until - began
                span = max(0.0, min(left, _SOON))
                with self._changed:
                    some = self._changed.wait_for(lambda: bool(asked.answers or not asked.awaited), span)
                    answers, awaited = asked.take(), tuple(asked.awaited)
                until += stalled(time.monotonic() - began, span)
                yield from answers
                if some:
                    continue
                if until - began > _SOON:
                    self.waits_for(awaited)
                    continue
                for name in awaited:
                    self.lose(name, Lost(kind="timed-out", what=f"did not answer within {seconds:.0f} s", remedy=_BUSY))
                return
        finally:
            self.waits_for(())
            del self._asked[number]

    def lose(self, name: str, lost: Lost) -> None:
        """From now on it is lost, unless it was before; who asks next sees it so."""
        one = self.stations[name]
        self._later(lambda: self._lose(one, lost))
        while self._thread.is_alive() and not self.wait(lambda: one.lost is not None, _TURN):
            pass

    def connect(self, name: str, path: str) -> socket.socket:
        """A link to the agent of a rank on that host, as a socket of ours."""
        ours, theirs = socket.socketpair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        theirs.settimeout(_ENDING)
        self._later(lambda: self._links.connect(self.stations[name], path, theirs))
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
            lost = Lost(kind="failed", what=f"unexpected {type(error).__name__}: {error}", remedy=_BUG)
            with self._changed:
                for one in self.stations.values():
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
        """Start carriers, but not more at a time than hosts may be on their way up."""
        while self._pending and self._under_way < self._fanout:
            carrier = self._pending.pop()
            stations = [self.stations[name] for name in carrier.hosts if self.stations[name].lost is None]
            try:
                running = Running(carrier, self._nonce)
            except OSError as error:
                for one in stations:
                    what = f"{carrier.argv[0]} cannot be started: {error.strerror}"
                    many = error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
                    remedy = _TOO_MANY if many else f"Is {carrier.argv[0]} installed here?"
                    self._lose(one, Lost(kind="failed", what=what, remedy=remedy))
                continue
            self._running[running] = Roster([self.stations[name] for name in carrier.hosts])
            self._under_way += len(stations)
            self._selector.register(running.outward, selectors.EVENT_READ, (running, "out"))
            self._selector.register(running.errors, selectors.EVENT_READ, (running, "err"))
            for one in stations:
                one.running = running
                one.began = time.monotonic()
                one.until = one.began + self.deadline

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TURN):
            if key.fd == self._awake:
                os.read(self._awake, _CHUNK)
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
        if passed < _LOOK:
            return
        self._looked = now
        away = stalled(passed, _TURN)
        for one in list(self._coming.values()):
            one.until += away
            if now > one.until:
                self._late(one)
        for one in self.stations.values():
            one.heard += away
            if one.hello is not None and one.lost is None and now - one.heard > _SILENT:
                what = f"has said nothing for {now - one.heard:.0f} s"
                self._lose(one, Lost(kind="lost", what=what, remedy="Is it down, or the way to it?"))
        for running in list(self._running):
            if now - running.pinged > _PING:
                running.pinged = now
                self._send(running, ALL, Ping())

    def _late(self, one: Station) -> None:
        text = one.running.text if one.running is not None else ""
        self._lose(one, diagnose(self._scheme, one.name, None, text))

    # ---- what hosts say

    def _hear(self, running: Running) -> None:
        try:
            self._take(running)
        except Exception as error:  # whatever one carrier says, the others go on
            self._forget(running)
            running.kill()
            running.end(time.monotonic())
            for name in running.carrier.hosts:
                what = f"what it says makes no sense ({type(error).__name__}: {error})"
                self._lose(self.stations[name], Lost(kind="failed", what=what[:500], remedy=_VERSION))

    def _take(self, running: Running) -> None:
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

    def _stage(self, running: Running, said: Said) -> None:
        """Before an agent runs: it lacks our code, or cannot run at all."""
        try:
            told = json.loads(said.body)
        except (ValueError, RecursionError):
            return
        # One whose own name says nothing to us is known when its agent says hello, and may lack it until then.
        one = self._running[running].of(said.who) or self._strangers.setdefault(said.who, Station(said.who))
        many = len(self._strangers) > len(self.stations)
        if not isinstance(told, dict) or one.lost is not None or one.hello is not None or many:
            return
        stage = Stage(told)
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
            self._lose(one, Lost(kind="no-python", what=what, remedy=_PYTHON))
        elif stage.word == "failed":
            self._lose(one, Lost(kind="failed", what=stage.what, remedy=stage.help))

    def _report(self, running: Running, who: str, report: Report, size: int) -> None:
        one = self._running[running].of(who, report.aliases if isinstance(report, Hello) else ())
        if one is None:
            return
        one.heard = time.monotonic()
        if isinstance(report, Hello):
            self._meet(running, one, report)
        elif isinstance(report, Clock):
            self._set_clock(one, report)
        elif isinstance(report, LogLine):
            self._logged(one, report)
        elif isinstance(report, Data):
            self._links.deliver(one, report)
        elif isinstance(report, Shut):
            self._links.shut(report.link, by=one)
        else:
            with self._changed:
                asked = self._asked.get(report.id)
                if asked is not None and one.name in asked.awaited:
                    asked.awaited.discard(one.name)
                    asked.answers.append((one.name, report))
                    self._changed.notify_all()
                    _log.info("host answered", host=one.name, answer=type(report).__name__, id=report.id, bytes=size,
                              why=report.what if isinstance(report, messages.Failed) else None,
                              ms=milliseconds(asked.began))  # fmt: skip

    def _logged(self, one: Station, logged: LogLine) -> None:
        """A line of a host's log, if that was asked for; by our clock."""
        one.logged += 1
        if level() == OFF or one.logged > _MOST_LOGGED:
            return
        relay(one.name, logged.time - one.clock, logged.level, logged.room, logged.pid, logged.text)

    def _meet(self, running: Running, one: Station, hello: Hello) -> None:
        if one.lost is not None or one.hello is not None:
            return
        if hello.protocol != PROTOCOL:
            lost = Lost(kind="failed", what=f"speaks protocol {hello.protocol}, not {PROTOCOL}", remedy=_VERSION)
            self._lose(one, lost)
        elif (twin := self._same.setdefault(hello.same, one)) is not one:
            self._lose(one, Lost(kind="failed", what=f"is the same host as {twin.name}", remedy="Name it once."))
        else:
            if is_time(hello.time):
                one.clock, one.clock_error = hello.time - time.time(), self.deadline
            with self._changed:
                one.hello = hello
                self._arrived(one)
            _log.info("host is there", host=one.name, python=hello.python, user=hello.user, agent=hello.pid,
                      shipped=hello.shipped, ms=milliseconds(one.began))  # fmt: skip
            if level() < OFF:
                self._tell(one, messages.SendLog(level()))
            one.pinged = time.time()
            self._tell(one, Ping())

    def _set_clock(self, one: Station, clock: Clock) -> None:
        """By the first ping, which went to it alone: half the way there and back is what we cannot know."""
        sent, one.pinged = one.pinged, 0.0
        if sent and is_time(clock.time):
            now = time.time()
            one.clock, one.clock_error = clock.time - (now + sent) / 2, abs(now - sent) / 2

    def _ended(self, running: Running) -> None:
        """A carrier has ended, and all who came by it are lost."""
        running.complain()
        self._forget(running)
        status = running.end(time.monotonic() + _ENDING)
        for name in running.carrier.hosts:
            one = self.stations[name]
            if one.lost is None and one.running is running:
                lost = diagnose(self._scheme, name, status, running.text)
                if one.hello is not None:
                    lost = replace(lost, kind="lost", what=f"went away: {lost.what}")
                self._lose(one, lost)

    def _lose(self, one: Station, lost: Lost) -> None:
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
        if running is not None and len(running.carrier.hosts) == 1 and running in self._running:
            self._forget(running)
            running.kill()
            running.end(time.monotonic())

    def _arrived(self, one: Station) -> None:
        """It is there, or it is known why not."""
        if self._coming.pop(one.name, None) is not None and one.running is not None:
            self._under_way -= 1
        self.newest = time.monotonic()
        self._changed.notify_all()

    def _forget(self, running: Running) -> None:
        self._running.pop(running, None)
        for fd in (running.outward, running.errors, running.inp):
            if fd >= 0 and fd in self._selector.get_map():
                self._selector.unregister(fd)

    # ---- what they are told

    def _ask(self, requests: dict[str, Request], number: int) -> None:
        by_carrier: dict[int, list[str]] = {}
        for name in requests:
            one = self.stations[name]
            if one.running is not None and one.lost is None:
                by_carrier.setdefault(id(one.running), []).append(name)
        for running in list(self._running):
            names = by_carrier.get(id(running), [])
            same = names and all(requests[name] == requests[names[0]] for name in names)
            up = sum(self.stations[name].lost is None for name in running.carrier.hosts)
            # A word to all of a carrier's hosts goes out once. Those that were lost may hear it, too.
            if same and len(names) == up:
                self._send(running, ALL, replace(requests[names[0]], id=number))
                continue
            for name in names:
                request = replace(requests[name], id=number)
                self._tell(self.stations[name], request)

    def _send(self, running: Running, who: str, request: Request) -> None:
        body = msgspec.msgpack.encode(request)
        if not isinstance(request, (Ping, Data)):
            number = getattr(request, "id", None)
            _log.info("asked", to=who, request=type(request).__name__, id=number, bytes=len(body))
        running.send(who, MSGPACK, body)
        self._flush(running)

    def _tell(self, one: Station, request: Request) -> None:
        if one.running is not None:
            self._send(one.running, one.who, request)

    def _flush(self, running: Running) -> None:
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
        until = time.monotonic() + _ENDING
        for running in self._running:
            running.end(until)


_TOO_MANY = "This machine allows no more at a time: ulimit -n, ulimit -u. Name fewer hosts, or raise them."
_BUSY = "Is it overloaded? Give it longer: --deadline 30"
_BUG = "This is a bug of breakranks, not of your job: BREAKRANKS_DEBUG=1 shows where."
_PYTHON = "Name one that is there: --python /path/to/python3, or what makes one known: --setup 'module load python'"
_VERSION = "Have the same version of breakranks on both sides, or none there."
