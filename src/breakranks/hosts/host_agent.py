"""The agent of one host: reads requests from its standard input, and writes answers to its standard output.

It is started by ssh, srun or another transport, and listens on no port. It ends with its controller: when its input
ends, when it receives nothing for long, or when its output is closed. The main thread serves one request after another,
since a tracer of processes must be one thread. A second thread carries the lines, and the links to agents in ranks.
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

from breakranks import __version__
from breakranks.hosts.framing import ALL, MESSAGE, FrameReader, FrameWriter
from breakranks.hosts.host_handlers import HostService
from breakranks.hosts.host_messages import (
    PROTOCOL,
    ClockReply,
    CloseLink,
    Hello,
    HostLogLine,
    LinkData,
    OpenLink,
    Ping,
    Report,
    Request,
    RequestFailed,
    SendLog,
    decode_request,
    encode,
)
from breakranks.log import configure_relay
from breakranks.observe.redaction import redact
from breakranks.observe.this_host import addresses, same_host, user_name

PATIENCE_SECONDS = 30.0
_END_SECONDS = 3.0  # for the current request when the controller has gone
_MAX_QUEUED_BYTES = 1 << 25  # of output, from which on no link is read
_CHUNK_BYTES = 1 << 16
_SIGN_OF_LIFE_SECONDS = 2.0  # without other output


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
    """Serve until the controller leaves. ``heard``: input that was read already. ``said``: number of sent messages."""
    warnings.simplefilter("ignore")  # no terminal shows them
    HostAgent(inp, out, nonce=nonce, piece=piece, patience=patience, said=said).run(heard, shipped)


class HostAgent:
    """Both threads of an agent. ``tell`` may be called from either."""

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
        """Serve until the controller leaves."""
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
        """Send a report to the controller."""
        try:
            body = encode(report)
        except (ValueError, RecursionError) as error:  # a number that is not finite, or values nested too deeply
            body = encode(RequestFailed(getattr(report, "id", 0), f"its answer cannot be sent: {error}"))
        with self._lock:
            lines = self._writer.lines(self.host, MESSAGE, body)
            self._outward.append(lines)
            self._backlog += len(lines)
        os.write(self._wake, b".")

    # ---- the thread that carries lines

    def _talk(self, heard: bytes) -> None:
        # The main thread waits for its children by this signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            os.set_blocking(self._out, False)
            self._selector.register(self._awake, selectors.EVENT_READ, "wake")
            self._selector.register(self._inp, selectors.EVENT_READ, "in")  # raises for a file or /dev/null
            self._hear(heard)
            while self._turn():
                pass
        except OSError:  # the output is closed
            pass
        finally:
            self._leave()

    def _turn(self) -> bool:
        ready = self._selector.select(min(_SIGN_OF_LIFE_SECONDS, self._patience))
        if not any(key.data == "in" for key, _ in ready) and time.monotonic() - self._heard > self._patience:
            return False  # the controller is gone, even if ranks still send data
        if not ready:
            # A sign of life. Writing it also shows whether the output is still open.
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
        """Write queued lines until the pipe is full."""
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
        for message in self._reader.feed(data):
            if message.who not in (ALL, self.host) or message.kind != MESSAGE:
                continue
            try:
                request = decode_request(message.body)
            except (ValueError, RecursionError) as error:
                self.tell(
                    RequestFailed(0, f"not understood: {error}", "Use the same version of breakranks on both sides.")
                )
                continue
            self._take(request)

    def _tell_log(self, time: float, level: int, room: str, pid: int, text: str) -> None:
        self.tell(HostLogLine(time=time, level=level, room=room, pid=pid, text=text))

    def _take(self, request: Request) -> None:
        if isinstance(request, Ping):
            self.tell(ClockReply(time.time()))
        elif isinstance(request, SendLog):
            configure_relay(request.level, self._tell_log, redact)
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
        """Connect a link, only to sockets that this agent has reported. They are in a private folder of its user."""
        from breakranks.backend.found_agents import connected  # imported by what reported the socket

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
        """The controller is gone: held ranks resume, and this process ends, even in the middle of a sample."""
        for number in list(self._links):
            self._shut(number, told=True)
        self._requests.put(None)
        if self._idle.wait(_END_SECONDS) and self._shipped:
            return  # the cleanup process removes the code that was sent
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
