"""The agent of one host: takes requests from its standard input, and answers on its standard output.

It is started through whatever the site logs in with, listens nowhere, and ends with its controller: when its input
ends, when nothing was heard for long, or when nobody takes what it says. The main thread does what is asked, one
request after the other, for looking at processes needs one; another carries lines in and out, and the links to agents
in ranks.
"""

from __future__ import annotations

import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
import warnings
from collections import deque

import msgspec

from breakranks import __version__
from breakranks.backend.rank_connection import connected
from breakranks.hosts.framing import ALL, MSGPACK, FrameReader, FrameWriter
from breakranks.hosts.host_handlers import HostService
from breakranks.hosts.host_messages import (
    PROTOCOL,
    ClockReply,
    CloseLink,
    Hello,
    LinkData,
    LogLine,
    OpenLink,
    Ping,
    Report,
    Request,
    RequestFailed,
    SendLog,
)
from breakranks.jobs.unreadable_processes import user_name
from breakranks.log import configure_relay
from breakranks.observe.process_table import redact
from breakranks.observe.this_host import addresses, same_host

PATIENCE_SECONDS = 30.0
_END_SECONDS = 3.0  # seconds for what is going on when the controller has gone
_MAX_QUEUED_BYTES = 1 << 25  # bytes that wait to be taken, from which on no link is read
_CHUNK_BYTES = 1 << 16
_SIGN_OF_LIFE_SECONDS = 2.0  # seconds without a word from us


def serve(
    inp: int,
    out: int,
    *,
    nonce: str,
    piece: int = 48_000,
    heard: bytes = b"",
    patience: float = PATIENCE_SECONDS,
    shipped: str = "",
    said: int = 0,
) -> None:
    """Serve until the controller leaves. ``heard``: what has come already; ``said``: how many messages went out."""
    warnings.simplefilter("ignore")  # nobody here reads them
    HostAgent(inp, out, nonce=nonce, piece=piece, patience=patience, said=said).run(heard, shipped)


class HostAgent:
    """Both threads of it. ``tell`` may be called from either."""

    def __init__(self, inp: int, out: int, *, nonce: str, piece: int, patience: float, said: int = 0) -> None:
        self.host = os.uname().nodename
        self._inp, self._out = inp, out
        self._reader, self._writer = FrameReader(nonce), FrameWriter(nonce, piece, said)
        self._patience = patience
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._service = HostService()
        self._lock = threading.Lock()
        self._outward: deque[bytes] = deque()
        self._backlog = 0
        self._awake, self._wake = os.pipe()
        self._links: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._idle = threading.Event()
        self._heard = time.monotonic()
        self._shipped = False

    def run(self, heard: bytes, shipped: str) -> None:
        self._shipped = bool(shipped)
        self.tell(_hello(self.host, self._shipped))
        talker = threading.Thread(target=self._talk, args=(heard,), daemon=True, name="breakranks lines")
        talker.start()
        while (request := self._requests.get()) is not None:
            self.tell(self._service.answer(request))
        self._service.close()
        self._idle.set()
        talker.join()

    def tell(self, report: Report) -> None:
        try:
            body = msgspec.msgpack.encode(report)
        except UnicodeEncodeError:  # a name that is not UTF-8 in a place where nobody expected one
            body = msgspec.msgpack.encode(RequestFailed(getattr(report, "id", 0), "its answer is no text"))
        with self._lock:
            lines = self._writer.lines(self.host, MSGPACK, body)
            self._outward.append(lines)
            self._backlog += len(lines)
        os.write(self._wake, b".")

    # ---- the thread of the lines

    def _talk(self, heard: bytes) -> None:
        # The other thread waits for its children by this signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            os.set_blocking(self._out, False)
            self._selector.register(self._awake, selectors.EVENT_READ, "wake")
            self._selector.register(self._inp, selectors.EVENT_READ, "in")  # not a file, nor /dev/null
            self._hear(heard)
            while self._turn():
                pass
        except OSError:  # nobody takes what we say
            pass
        finally:
            self._leave()

    def _turn(self) -> bool:
        ready = self._selector.select(min(_SIGN_OF_LIFE_SECONDS, self._patience))
        if not any(key.data == "in" for key, _ in ready) and time.monotonic() - self._heard > self._patience:
            return False  # nobody is there, however much ranks have to say
        if not ready:
            # A sign of life; and if nobody takes it, we learn of that.
            self.tell(ClockReply(time.time()))
            return True
        full = self._backlog > _MAX_QUEUED_BYTES
        for key, _ in ready:
            if key.data == "in":
                data = os.read(self._inp, _CHUNK_BYTES)
                if not data:
                    return False
                self._heard = time.monotonic()
                self._hear(data)
            elif key.data == "wake":
                os.read(self._awake, _CHUNK_BYTES)
            elif isinstance(key.data, int):
                if full:
                    time.sleep(0.005)
                else:
                    self._carry(key.data)
        self._write()
        return True

    def _write(self) -> None:
        """What waits to be taken; the rest when there is room again."""
        with self._lock:
            while self._outward:
                lines = self._outward[0]
                try:
                    done = os.write(self._out, lines)
                except BlockingIOError:
                    done = 0
                self._backlog -= done
                if done < len(lines):
                    self._outward[0] = lines[done:]
                    break
                self._outward.popleft()
            waits = bool(self._outward)
        known = self._out in self._selector.get_map()
        if waits and not known:
            self._selector.register(self._out, selectors.EVENT_WRITE, "out")
        elif known and not waits:
            self._selector.unregister(self._out)

    def _hear(self, data: bytes) -> None:
        for said in self._reader.feed(data):
            if said.who not in (ALL, self.host) or said.kind != MSGPACK:
                continue
            try:
                request: Request = msgspec.msgpack.decode(said.body, type=Request)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                self.tell(
                    RequestFailed(0, f"not understood: {error}", "Is it the same version of breakranks on both sides?")
                )
                continue
            self._take(request)

    def _take(self, request: Request) -> None:
        if isinstance(request, Ping):
            self.tell(ClockReply(time.time()))
        elif isinstance(request, SendLog):
            configure_relay(request.level, lambda *record: self.tell(LogLine(*record)), redact)
        elif isinstance(request, OpenLink):
            self._connect(request)
        elif isinstance(request, LinkData):
            self._send(request)
        elif isinstance(request, CloseLink):
            self._shut(request.link, told=True)
        else:
            self._requests.put(request)

    # ---- links

    def _connect(self, request: OpenLink) -> None:
        """Only to what this host itself has told, which is in a private folder of its user's."""
        try:
            if request.path not in self._service.sockets or request.link in self._links:
                raise ConnectionRefusedError
            link = connected(request.path)
        except OSError:
            self.tell(CloseLink(request.link))
            return
        self._links[request.link] = link
        self._selector.register(link, selectors.EVENT_READ, request.link)

    def _send(self, request: LinkData) -> None:
        link = self._links.get(request.link)
        if link is None:
            return
        try:
            link.sendall(request.data)
        except OSError:
            self._shut(request.link)

    def _carry(self, number: int) -> None:
        link = self._links.get(number)
        if link is None:
            return
        try:
            data = link.recv(_CHUNK_BYTES)
        except OSError:
            data = b""
        if data:
            self.tell(LinkData(number, data))
        else:
            self._shut(number)

    def _shut(self, number: int, *, told: bool = False) -> None:
        link = self._links.pop(number, None)
        if link is None:
            return
        self._selector.unregister(link)
        link.close()
        if not told:
            self.tell(CloseLink(number))

    def _leave(self) -> None:
        """The controller has gone: ranks that somebody held go on, and we end, also from the middle of a look."""
        for number in list(self._links):
            self._shut(number, told=True)
        self._requests.put(None)
        if self._idle.wait(_END_SECONDS) and self._shipped:
            return  # whoever brought our code here clears it away
        os._exit(0)


def _hello(host: str, shipped: bool) -> Hello:
    node = os.environ.get("SLURMD_NODENAME", "")
    return Hello(
        protocol=PROTOCOL,
        version=__version__,
        python=".".join(map(str, sys.version_info[:3])),
        host=host,
        user=user_name(os.geteuid()),
        pid=os.getpid(),
        time=time.time(),
        same=same_host(),
        aliases=(node,) if node else (),
        addresses=addresses(),
        shipped=shipped,
    )
