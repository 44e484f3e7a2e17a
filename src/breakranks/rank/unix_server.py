"""The agent's socket: a private one of this process, and the consoles that are connected to it."""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from breakranks.rank import fork_hooks

_MAX_IN_BYTES, _MAX_OUT_BYTES = 1 << 20, 1 << 24
Message = dict[str, Any]


class Client:
    """A console that is connected. ``console``: it has said so, and the rank goes on when the last such one leaves."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.heard = bytearray()
        self.unsent = bytearray()
        self.console = False
        self.probes: list[int] = []  # that it has set
        self.polite = False  # it said goodbye and wants the breakpoints to stay armed


class UnixServer:
    """Waits for consoles and what they say. ``obey`` is told each message, ``gone`` whoever has left."""

    def __init__(self, path: str, obey: Callable[[Client, Message], None], gone: Callable[[Client], None]) -> None:
        self.clients: list[Client] = []
        self._obey = obey
        self._gone = gone
        self._outbox: list[tuple[Client | None, Message]] = []
        self._guard = threading.Lock()
        self._listener = _listen(path)
        self._awake, self._wake = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._wake, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._awake, selectors.EVENT_READ)

    # ---- from any thread

    def tell(self, message: Message, client: Client | None = None) -> None:
        """Send to one console, or to all."""
        with self._guard:
            self._outbox.append((client, message))
        self.wake()

    def wake(self) -> None:
        try:
            os.write(self._wake, b".")
        except OSError:  # full: it is awake
            pass

    def abandon(self) -> None:
        """In a forked child: what is open here is the parent's. Nothing is sent any more."""
        self._guard = threading.Lock()
        if self._awake >= 0:
            self.close()
        self.clients = []

    def hang_up(self) -> None:
        """The process ends: consoles see that now, and not when it has gone."""
        self._listener.close()
        for client in self.clients:
            client.connection.close()

    def close(self) -> None:
        """Leave nothing open."""
        # While Python closes a file, its object says already that it is closed: a child could not close it then.
        with fork_hooks.ForksPaused():
            self.hang_up()
            self._selector.close()
            handles, self._awake, self._wake = (self._awake, self._wake), -1, -1
            for handle in handles:
                os.close(handle)

    # ---- from the agent's thread

    def turn(self, pause: float) -> None:
        """Hear and send what there is; wait for so long if there is nothing."""
        for key, _ in self._selector.select(pause):
            source: Any = key.fileobj
            if source is self._listener:
                with fork_hooks.ForksPaused():  # a child closes what it knows of
                    self._accept()
            elif source == self._awake:
                self._slumber()
            else:
                self._hear(source)
        self.flush()

    def _slumber(self) -> None:
        try:
            os.read(self._awake, 4096)
        except BlockingIOError:
            pass

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        peer = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if peer[1] not in (os.geteuid(), 0):
            connection.close()
            return
        connection.setblocking(False)
        client = Client(connection)
        self.clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        client = next(one for one in self.clients if one.connection is connection)
        try:
            chunk = connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        client.heard += chunk
        if not chunk or len(client.heard) > _MAX_IN_BYTES:
            self._drop(client)
            return
        *lines, rest = client.heard.split(b"\n")
        client.heard = bytearray(rest)
        for line in lines:
            try:
                self._obey(client, json.loads(line))
            except Exception as error:  # whoever writes here, and whatever: the agent stays
                self.tell({"event": "error", "text": f"not understood: {error!r}"[:500]}, client)

    def flush(self) -> None:
        """Send what there is, as far as it is taken."""
        with self._guard:
            outbox, self._outbox = self._outbox, []
        for whom, message in outbox:
            text = json.dumps(message).encode() + b"\n"
            for client in self.clients if whom is None else [whom]:
                if client.console or whom is not None:
                    client.unsent += text
        for client in list(self.clients):
            try:
                while client.unsent:
                    del client.unsent[: client.connection.send(client.unsent[:65536])]
            except BlockingIOError:
                if len(client.unsent) > _MAX_OUT_BYTES:
                    self._drop(client)
            except OSError:
                client.unsent.clear()  # it has gone; what it said last is still to be read, and then its end

    def _drop(self, client: Client) -> None:
        if client in self.clients:
            self._selector.unregister(client.connection)
            with fork_hooks.ForksPaused():  # as in close
                client.connection.close()
                self.clients.remove(client)
            self._gone(client)


def _listen(path: str) -> socket.socket:
    folder, name = os.path.split(path)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # By way of the open folder: a socket's own path must be shorter than 108 characters.
        listener.bind(f"/proc/self/fd/{handle}/{name}")
    finally:
        os.close(handle)
    os.chmod(path, 0o600)
    listener.listen(16)
    listener.setblocking(False)
    return listener
