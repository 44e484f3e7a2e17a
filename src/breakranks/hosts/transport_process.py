"""One running transport: its process, the lines that it writes, and the lines that wait to be written to it."""

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
_MAX_ERROR_BYTES = 8_000  # kept of standard error; more for a transport of several hosts
_FILES_PER_HOST = 4
_TERM_SECONDS = 2.0  # to end in, after a signal


class TransportProcess:
    """The loop watches ``outward`` and ``errors`` for reading, and ``inp`` for writing while ``waits``."""

    def __init__(self, transport: Transport, nonce: str) -> None:
        self.transport = transport
        self.reader = FrameReader(nonce)
        self._writer = FrameWriter(nonce, transport.piece)
        self._waiting: deque[bytes] = deque()
        self._stderr = b""
        self._began = self.pinged = time.monotonic()
        self.received = 0
        # A session of its own: Ctrl-C reaches breakranks only, and the whole session can be ended at once.
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
        os.set_blocking(self.errors, False)  # the last read, at its end, must not block
        self.inp = self.process.stdin.fileno()
        os.set_blocking(self.inp, False)

    # ---- its output

    def hear(self) -> Iterator[FramedMessage] | None:
        """Read messages; None at the end of its output."""
        data = os.read(self.outward, _CHUNK_BYTES)
        self.received += len(data)
        return self.reader.feed(data) if data else None

    def complain(self) -> bool:
        """Read and keep standard error; return False at its end."""
        try:
            data = os.read(self.errors, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._stderr = (self._stderr + data)[-(_MAX_ERROR_BYTES + 500 * len(self.transport.hosts)) :]
        return bool(data)

    @property
    def text(self) -> str:
        """The newest output that is not from an agent, and standard error."""
        return (self._stderr + b"\n" + self.reader.strays).decode(errors="replace").strip()

    # ---- its input

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
            except OSError:  # it has ended; reading its output reports that
                self._waiting.clear()
                return
            if done < len(lines):
                self._waiting[0] = lines[done:]
            else:
                self._waiting.popleft()

    # ---- its end

    def finish(self) -> None:
        """Close its input. The agents end because of that, and then the transport."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.write()
            self.process.stdin.close()
            self.inp = -1

    def end(self, until: float) -> int | None:
        """Return its exit status. End it if it has not ended by itself at the time ``until``."""
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
        """Signal its whole session, with every process that it started."""
        if self.process.returncode is None:
            try:
                os.killpg(self.process.pid, number)
            except (ProcessLookupError, PermissionError):
                pass


def _shown(argv: Sequence[str]) -> list[str]:
    """Return a command line for the log, without the command that starts an agent.

    That command is long, and contains --setup in encoded form, in which secrets cannot be recognized.
    """
    shown = list(itertools.takewhile(lambda word: "br_say" not in word, argv))
    return [*shown, "(agent)"] if len(shown) < len(argv) else shown


def allow_files(hosts: int) -> None:
    """Raise the limit of open files as far as the hosts need. Shells often set it far below what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_PER_HOST * hosts + 200
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
