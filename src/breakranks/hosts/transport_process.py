"""One transport while it runs: its process, the lines that come out of it, and those that wait to get in."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence

from breakranks.hosts.framing import FramedMessage, FrameReader, FrameWriter
from breakranks.hosts.transports import Transport
from breakranks.log import Log, milliseconds

_log = Log("hosts")
_CHUNK_BYTES = 1 << 18
_MAX_ERROR_BYTES = 8_000  # bytes kept of what it complains of, of one host
_FILES = 4  # open, a host
_TERM_SECONDS = 2.0  # seconds to end in, when it was told to


class TransportProcess:
    """``outward`` and ``errors`` are to be watched for reading, ``inp`` for writing while ``waits``."""

    def __init__(self, transport: Transport, nonce: str) -> None:
        self.transport = transport
        self.reader = FrameReader(nonce)
        self._writer = FrameWriter(nonce, transport.piece)
        self._waiting: deque[bytes] = deque()
        self._stderr = b""
        self._began = self.pinged = time.monotonic()
        self.received = 0
        # A session of its own: Ctrl-C is ours to handle, and all of it can be ended at once.
        self.process = subprocess.Popen(
            transport.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **transport.env},
            start_new_session=True,
        )
        _log.info("started", argv=_shown(transport.argv), child=self.process.pid, hosts=len(transport.hosts))
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.outward = self.process.stdout.fileno()
        self.errors = self.process.stderr.fileno()
        os.set_blocking(self.errors, False)  # at its end it is read without waiting
        self.inp = self.process.stdin.fileno()
        os.set_blocking(self.inp, False)

    # ---- out of it

    def hear(self) -> Iterator[FramedMessage] | None:
        """What came; None at its end."""
        data = os.read(self.outward, _CHUNK_BYTES)
        self.received += len(data)
        return self.reader.feed(data) if data else None

    def complain(self) -> bool:
        """Keep what it complains of; False at the end of that."""
        try:
            data = os.read(self.errors, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._stderr = (self._stderr + data)[-(_MAX_ERROR_BYTES + 500 * len(self.transport.hosts)) :]
        return bool(data)

    @property
    def text(self) -> str:
        """All that was said and is not ours."""
        return (self._stderr + b"\n" + self.reader.strays).decode(errors="replace").strip()

    # ---- into it

    def send(self, who: str, kind: bytes, body: bytes) -> None:
        self._waiting.append(self._writer.lines(who, kind, body))
        self.write()

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def write(self) -> None:
        while self._waiting and self.inp >= 0:
            lines = self._waiting[0]
            try:
                done = os.write(self.inp, lines[:_CHUNK_BYTES])
            except BlockingIOError:
                return
            except OSError:  # it has ended, which is told where it is read
                self._waiting.clear()
                return
            if done < len(lines):
                self._waiting[0] = lines[done:]
            else:
                self._waiting.popleft()

    # ---- its end

    def finish(self) -> None:
        """Nothing more goes in: agents end by that, and it does then."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.write()
            self.process.stdin.close()
            self.inp = -1

    def end(self, until: float) -> int | None:
        """Its exit status; it is ended if it has not by itself."""
        for number, seconds in (
            (0, until - time.monotonic()),
            (signal.SIGTERM, _TERM_SECONDS),
            (signal.SIGKILL, _TERM_SECONDS),
        ):
            if number:
                self._signal(number)
            try:
                self.process.wait(max(0.0, seconds))
                break
            except subprocess.TimeoutExpired:
                continue
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        _log.info("ran", argv=_shown(self.transport.argv)[:1], child=self.process.pid, status=self.process.returncode,
                  received=self.received, ms=milliseconds(self._began))  # fmt: skip
        return self.process.returncode

    def kill(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        """To all of its session: what it started goes with it."""
        if self.process.returncode is None:
            try:
                os.killpg(self.process.pid, number)
            except (ProcessLookupError, PermissionError):
                pass


def _shown(argv: Sequence[str]) -> list[str]:
    """Without the command that starts an agent: it is long, and has the set-up in it, coded, so that no secret in that
    could be told from the rest."""
    shown = list(itertools.takewhile(lambda word: "br_say" not in word, argv))
    return [*shown, "(agent)"] if len(shown) < len(argv) else shown


def allow_files(hosts: int) -> None:
    """A host takes a few open files, and shells often allow a thousand in all, where the system allows many more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES * hosts + 200
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
