"""The thread that carries lines to and from the hosts of a plan, and follows the state of each host.

It starts the transports, reads what the hosts report, sends what the controller asks, and loses hosts that are late.
A host that cannot be reached, is late or disconnects is *lost*, with the reason; the others continue.

Thread safety. The loop alone uses the transports, the selector and the links. Callers reach it only by :meth:`call`,
which appends to a deque and wakes the thread, both atomic. What callers wait for (``hello`` and ``lost`` of a host, the
hosts still awaited, the answers of a request) changes under ``changed`` only, and the dictionary of hosts never changes
its keys. So a caller may read a host's state at any time, and sees it complete after it has waited for it.
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
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from breakranks.hosts import host_messages
from breakranks.hosts.framing import ALL, MESSAGE, STAGE, FramedMessage
from breakranks.hosts.host_message_checks import VERSION_REMEDY, StageReport, report_of
from breakranks.hosts.host_messages import (
    PROTOCOL,
    ClockReply,
    CloseLink,
    Hello,
    HostLogLine,
    LinkData,
    Ping,
    Report,
    Request,
)
from breakranks.hosts.host_state import HostLinks, HostRoster, HostState, PendingRequest
from breakranks.hosts.transport_process import TransportProcess
from breakranks.hosts.transports import HostPlan, LostHost, diagnose
from breakranks.log import OFF, Log, level, milliseconds, relay
from breakranks.machine_suspension import stalled
from breakranks.snapshot.snapshot_file import is_time

_log = Log("hosts")
_PING_SECONDS = 5.0
_TURN_SECONDS = 0.25
_CHECK_SECONDS = 0.1  # between two checks for late hosts
_SILENT_SECONDS = 20.0  # an agent sends something more often than that
_END_SECONDS = 3.0  # an agent that is killed by its launcher cannot clean up
_CHUNK_BYTES = 1 << 16
_MAX_LOG_LINES = 100_000  # of one host

_TOO_MANY = "This machine allows no more open files or processes. Name fewer hosts, or raise ulimit -n and ulimit -u."
_BUG = "This is a bug of breakranks, not of your job: BREAKRANKS_DEBUG=1 shows where."
_PYTHON = "Name one: --python /path/to/python3, or make one available: --setup 'module load python'"


class TransportLoop:
    """The hosts of a plan. ``supply`` returns the code that a host lacks, from what the host reported of itself."""

    def __init__(
        self,
        plan: HostPlan,
        *,
        nonce: str,
        deadline: float,
        longer: float,
        fanout: int,
        supply: Callable[[dict[str, object]], Iterator[bytes]],
    ) -> None:
        self._scheme = plan.scheme
        self._nonce = nonce
        self._deadline = deadline
        self._longer = longer
        self._fanout = fanout
        self._supply = supply
        self.host_states = {name: HostState(name) for name in plan.hosts}
        for name, lost in plan.lost.items():
            self.host_states.setdefault(name, HostState(name)).lost = lost
        self.coming = {host.name: host for host in self.host_states.values() if host.lost is None}
        self.newest = time.monotonic()  # when a host last connected or was lost
        self.changed = threading.Condition()
        self._pending = list(plan.transports)[::-1]
        self._under_way = 0  # hosts in ``coming`` whose transport has been started
        self._same: dict[str, HostState] = {}
        self._strangers: dict[str, HostState] = {}
        self._running: dict[TransportProcess, HostRoster] = {}
        self._checked = time.monotonic()
        self._numbers = itertools.count(1)
        self._asked: dict[int, PendingRequest] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._links = HostLinks(self._selector, self._tell)
        self._awake, self._wake = os.pipe()
        self._closing = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="breakranks hosts")

    # ---- for callers

    def start(self) -> None:
        self._selector.register(self._awake, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> None:
        """End every transport and the thread."""
        self._closing = True
        self.call(lambda: None)
        self._thread.join(10.0)
        if self._wake >= 0 and not self._thread.is_alive():
            self._selector.close()
            os.close(self._awake)
            os.close(self._wake)
            self._wake = -1

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, do: Callable[[], None]) -> None:
        """Run a function in the thread of the loop."""
        if self._wake >= 0:
            self._calls.append(do)
            os.write(self._wake, b".")

    def begin(self, requests: Mapping[str, Request]) -> tuple[int, PendingRequest]:
        """Send each host its request; return a number for :meth:`forget`, and the answers until then."""
        number = next(self._numbers)
        with self.changed:
            pending = PendingRequest(name for name in requests if self.host_states[name].lost is None)
            self._asked[number] = pending
        self.call(lambda: self._ask({name: requests[name] for name in tuple(pending.awaited)}, number))
        return number, pending

    def forget(self, number: int) -> None:
        """Ignore answers to this request from now on."""
        with self.changed:
            del self._asked[number]

    def lose(self, name: str, lost: LostHost) -> None:
        """Give up a host, unless it is already lost."""
        self.call(lambda: self._lose(self.host_states[name], lost))

    def connect(self, name: str, path: str, far: socket.socket) -> None:
        """Link a socket to the agent of a rank, which listens at a path of the host."""
        self.call(lambda: self._links.connect(self.host_states[name], path, far))

    # ---- the loop

    def _work(self) -> None:
        try:
            self._start_transports()
            while not self._closing:
                self._turn()
                self._start_transports()
                self._check_deadlines()
        except Exception as error:  # a bug of breakranks: no caller may wait forever because of it
            lost = LostHost(kind="failed", what=f"unexpected {type(error).__name__}: {error}", remedy=_BUG)
            with self.changed:
                for host in self.host_states.values():
                    host.lost = host.lost or lost
                for pending in self._asked.values():
                    pending.awaited.clear()
                self.coming.clear()
                self.changed.notify_all()
            if os.environ.get("BREAKRANKS_DEBUG", "") not in ("", "0"):
                raise
        finally:
            self._end()

    def _start_transports(self) -> None:
        """Start transports, as long as no more than ``fanout`` hosts are on their way up."""
        while self._pending and self._under_way < self._fanout:
            transport = self._pending.pop()
            hosts = [self.host_states[name] for name in transport.hosts if self.host_states[name].lost is None]
            try:
                running = TransportProcess(transport, self._nonce)
            except OSError as error:
                for host in hosts:
                    what = f"{transport.argv[0]} cannot be started: {error.strerror}"
                    many = error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
                    remedy = _TOO_MANY if many else f"Is {transport.argv[0]} installed here?"
                    self._lose(host, LostHost(kind="failed", what=what, remedy=remedy))
                continue
            self._running[running] = HostRoster([self.host_states[name] for name in transport.hosts])
            self._under_way += len(hosts)
            self._selector.register(running.outward, selectors.EVENT_READ, (running, "out"))
            self._selector.register(running.errors, selectors.EVENT_READ, (running, "err"))
            for host in hosts:
                host.running = running
                host.began = time.monotonic()
                host.until = host.began + self._deadline

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TURN_SECONDS):
            if key.fd == self._awake:
                os.read(self._awake, _CHUNK_BYTES)
                while self._calls:
                    self._calls.popleft()()
            elif isinstance(key.data, int):
                self._links.carry(key.data)
            else:
                running, stream = key.data
                if running not in self._running:
                    continue  # ended by an earlier event of this turn
                if stream == "out":
                    self._read(running)
                elif stream == "err" and not running.complain():
                    self._selector.unregister(running.errors)
                elif stream == "in":
                    self._flush(running)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        passed = now - self._checked
        if passed < _CHECK_SECONDS:
            return
        self._checked = now
        away = stalled(passed, _TURN_SECONDS)
        for host in list(self.coming.values()):
            host.until += away
            if now > host.until:
                text = host.running.text if host.running is not None else ""
                self._lose(host, diagnose(self._scheme, host.name, None, text))
        for host in self.host_states.values():
            host.heard += away
            if host.hello is not None and host.lost is None and now - host.heard > _SILENT_SECONDS:
                what = f"has sent nothing for {now - host.heard:.0f} s"
                self._lose(host, LostHost(kind="lost", what=what, remedy="Is the host down, or its network?"))
        for running in list(self._running):
            if now - running.pinged > _PING_SECONDS:
                running.pinged = now
                self._send(running, ALL, Ping())

    # ---- what hosts report

    def _read(self, running: TransportProcess) -> None:
        try:
            self._take(running)
        except Exception as error:  # a fault of one transport must not affect the others
            self._end_transport(running)
            for name in running.transport.hosts:
                what = f"its messages cannot be understood ({type(error).__name__}: {error})"
                self._lose(self.host_states[name], LostHost(kind="failed", what=what[:500], remedy=VERSION_REMEDY))

    def _take(self, running: TransportProcess) -> None:
        messages = running.hear()
        if messages is None:
            self._ended(running)
            return
        for message in messages:
            if running not in self._running:
                return  # its hosts were lost because of an earlier message
            if message.kind == STAGE:
                self._take_stage(running, message)
            elif message.kind == MESSAGE:
                try:
                    report = report_of(message.body)
                except (ValueError, RecursionError):
                    running.reader.broken += 1
                    continue
                self._take_report(running, message.who, report, len(message.body))

    def _take_stage(self, running: TransportProcess, message: FramedMessage) -> None:
        """A message from before an agent runs: the host lacks code, or no agent can run there."""
        try:
            fields = json.loads(message.body)
        except (ValueError, RecursionError):
            return
        # A host whose own name is unknown is identified when its agent sends Hello, and may lack code until then.
        who = message.who
        host = self._running[running].of(who) or self._strangers.setdefault(who, HostState(who))
        many = len(self._strangers) > len(self.host_states)
        if not isinstance(fields, dict) or host.lost is not None or host.hello is not None or many:
            return
        stage = StageReport(fields)
        if stage.word == "need" and not host.supplied:
            host.supplied = True
            host.until = time.monotonic() + self._deadline + self._longer
            need = {name: stage.need[name] for name in ("python", "machine")}
            _log.info("host lacks code", host=host.name, have=",".join(stage.need["have"]), **need)
            sent = 0
            for body in self._supply(stage.need):
                running.send(who, body[:1], body[1:])
                sent += len(body)
            self._flush(running)
            _log.info("code sent", host=host.name, bytes=sent)
        elif stage.word == "no-python":
            what = f"no Python 3.10 or newer there (found: {', '.join(stage.found) or 'none'})"
            self._lose(host, LostHost(kind="no-python", what=what, remedy=_PYTHON))
        elif stage.word == "failed":
            self._lose(host, LostHost(kind="failed", what=stage.what, remedy=stage.help))

    def _take_report(self, running: TransportProcess, who: str, report: Report, size: int) -> None:
        host = self._running[running].of(who, report.aliases if isinstance(report, Hello) else ())
        if host is None:
            return
        host.heard = time.monotonic()
        if isinstance(report, Hello):
            self._take_hello(host, report)
        elif isinstance(report, ClockReply):
            self._set_clock(host, report)
        elif isinstance(report, HostLogLine):
            self._relay_log(host, report)
        elif isinstance(report, LinkData):
            self._links.deliver(host, report)
        elif isinstance(report, CloseLink):
            self._links.shut(report.link, by=host)
        else:
            with self.changed:
                pending = self._asked.get(report.id)
                if pending is not None and host.name in pending.awaited:
                    pending.awaited.discard(host.name)
                    pending.answers.append((host.name, report))
                    self.changed.notify_all()
                    _log.info("host answered", host=host.name, answer=type(report).__name__, id=report.id, bytes=size,
                              why=report.what if isinstance(report, host_messages.RequestFailed) else None,
                              ms=milliseconds(pending.began))  # fmt: skip

    def _relay_log(self, host: HostState, line: HostLogLine) -> None:
        """Log a line of a host at the time of this clock, if a log was asked for."""
        host.logged += 1
        if level() == OFF or host.logged > _MAX_LOG_LINES:
            return
        relay(host.name, line.time - host.clock, line.level, line.room, line.pid, line.text)

    def _take_hello(self, host: HostState, hello: Hello) -> None:
        if host.lost is not None or host.hello is not None:
            return
        if hello.protocol != PROTOCOL:
            what = f"uses protocol {hello.protocol}; this breakranks uses {PROTOCOL}"
            self._lose(host, LostHost(kind="failed", what=what, remedy=VERSION_REMEDY))
        elif (twin := self._same.setdefault(hello.same, host)) is not host:
            what = f"is the same host as {twin.name}"
            self._lose(host, LostHost(kind="failed", what=what, remedy="Name it once."))
        else:
            if is_time(hello.time):
                host.clock, host.clock_error = hello.time - time.time(), self._deadline
            with self.changed:
                host.hello = hello
                self._arrived(host)
            _log.info("host connected", host=host.name, python=hello.python, user=hello.user, agent=hello.pid,
                      shipped=hello.shipped, ms=milliseconds(host.began))  # fmt: skip
            if level() < OFF:
                self._tell(host, host_messages.SendLog(level()))
            host.pinged = time.time()
            self._tell(host, Ping())

    def _set_clock(self, host: HostState, clock: ClockReply) -> None:
        """Set the host's clock from the reply to the first ping, which went to it alone. The error is half the round
        trip."""
        sent, host.pinged = host.pinged, 0.0
        if sent and is_time(clock.time):
            now = time.time()
            host.clock, host.clock_error = clock.time - (now + sent) / 2, abs(now - sent) / 2

    # ---- hosts that connect, and hosts that are lost

    def _arrived(self, host: HostState) -> None:
        """The host is connected, or lost. ``changed`` must be held."""
        if self.coming.pop(host.name, None) is not None and host.running is not None:
            self._under_way -= 1
        self.newest = time.monotonic()
        self.changed.notify_all()

    def _lose(self, host: HostState, lost: LostHost) -> None:
        if host.lost is not None:
            return
        with self.changed:
            host.lost = lost
            for pending in self._asked.values():
                pending.awaited.discard(host.name)
            self._arrived(host)
        took = milliseconds(host.began) if host.began else None
        _log.info("host lost", host=host.name, kind=lost.kind, why=lost.what, ms=took)
        self._links.drop(host)
        running = host.running
        if running is not None and len(running.transport.hosts) == 1 and running in self._running:
            self._end_transport(running)

    def _ended(self, running: TransportProcess) -> None:
        """A transport has ended by itself: every host that it carried is lost."""
        running.complain()
        self._remove(running)
        status = running.end(time.monotonic() + _END_SECONDS)
        for name in running.transport.hosts:
            host = self.host_states[name]
            if host.lost is None and host.running is running:
                lost = diagnose(self._scheme, name, status, running.text)
                if host.hello is not None:
                    lost = LostHost(kind="lost", what=f"disconnected: {lost.what}", remedy=lost.remedy)
                self._lose(host, lost)

    def _end_transport(self, running: TransportProcess) -> None:
        self._remove(running)
        running.kill()
        running.end(time.monotonic())

    def _remove(self, running: TransportProcess) -> None:
        self._running.pop(running, None)
        for fd in (running.outward, running.errors, running.inp):
            if fd >= 0 and fd in self._selector.get_map():
                self._selector.unregister(fd)

    # ---- what hosts are sent

    def _ask(self, requests: dict[str, Request], number: int) -> None:
        by_transport: dict[int, list[str]] = {}
        for name in requests:
            host = self.host_states[name]
            if host.running is not None and host.lost is None:
                by_transport.setdefault(id(host.running), []).append(name)
        for running in list(self._running):
            names = by_transport.get(id(running), [])
            same = names and all(requests[name] == requests[names[0]] for name in names)
            up = sum(self.host_states[name].lost is None for name in running.transport.hosts)
            # A request for every host of a transport is sent once. Lost hosts may receive it as well.
            if same and len(names) == up:
                self._send(running, ALL, _numbered(requests[names[0]], number))
                continue
            for name in names:
                self._tell(self.host_states[name], _numbered(requests[name], number))

    def _tell(self, host: HostState, request: Request) -> None:
        if host.running is not None:
            self._send(host.running, host.who, request)

    def _send(self, running: TransportProcess, who: str, request: Request) -> None:
        body = host_messages.encode(request)
        if not isinstance(request, (Ping, LinkData)):
            number = getattr(request, "id", None)
            _log.info("asked", to=who, request=type(request).__name__, id=number, bytes=len(body))
        running.send(who, MESSAGE, body)
        self._flush(running)

    def _flush(self, running: TransportProcess) -> None:
        running.write()
        watched = running.inp >= 0 and running.inp in self._selector.get_map()
        if running.waits and not watched and running.inp >= 0:
            self._selector.register(running.inp, selectors.EVENT_WRITE, (running, "in"))
        elif watched and not running.waits:
            self._selector.unregister(running.inp)

    def _end(self) -> None:
        self._links.close()
        for running in self._running:
            self._flush(running)
            running.finish()
        until = time.monotonic() + _END_SECONDS
        for running in self._running:
            running.end(until)


def _numbered(request: Any, number: int) -> Request:
    """Return the request with its number, which its answer will have."""
    numbered: Request = replace(request, id=number)
    return numbered
