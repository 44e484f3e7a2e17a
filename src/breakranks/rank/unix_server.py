"""The agent's private socket, and the consoles that are connected to it."""

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
from breakranks.rank_messages import ErrorEvent, RankEvent, to_line

_MAX_IN_BYTES, _MAX_OUT_BYTES = 1 << 20, 1 << 24


class Client:
    """A connection. ``console``: it is that of a console; the rank resumes when the last one has left."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.heard = bytearray()
        self.unsent = bytearray()
        self.console = False
        self.probes: list[int] = []  # numbers of its logpoints
        self.polite = False  # its goodbye leaves the breakpoints armed
        self.blocked = False  # it has not read all that was sent


class UnixServer:
    """Waits for consoles and messages. Calls ``handle`` with each message, ``gone`` with each client that has left."""

    def __init__(
        self, path: str, handle: Callable[[Client, dict[str, Any]], None], gone: Callable[[Client], None]
    ) -> None:
        self.clients: list[Client] = []
        self._handle = handle
        self._gone = gone
        self._outbox: list[tuple[Client | None, RankEvent]] = []
        self._guard = threading.Lock()
        self._listener = _listen(path)
        self._awake, self._wake = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._wake, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._awake, selectors.EVENT_READ)
        self._files = {handle: _identity(handle) for handle in (self._listener.fileno(), self._awake, self._wake)}

    # ---- from any thread

    def tell(self, event: RankEvent, client: Client | None = None) -> None:
        """Send an event to one console, or to all."""
        with self._guard:
            self._outbox.append((client, event))
        self.wake()

    def wake(self) -> None:
        if not self._is_own(self._wake):
            return
        try:
            os.write(self._wake, b".")
        except OSError:  # the pipe is full: the thread is awake
            pass

    def _is_own(self, handle: int) -> bool:
        """False: the job has closed all files that it does not know, as daemons do, and may have used the number."""
        return handle >= 0 and self._files.get(handle) == _identity(handle)

    def abandon(self) -> None:
        """In a forked child: close the files, which belong to the parent. Nothing is sent from now on."""
        self._guard = threading.Lock()
        if self._awake >= 0:
            self.close()
        self.clients = []

    def hang_up(self) -> None:
        """Close the connections at the end of the process, so that consoles see it at once."""
        for connection in (self._listener, *(client.connection for client in self.clients)):
            if self._is_own(connection.fileno()):
                connection.close()
            else:
                connection.detach()

    def close(self) -> None:
        """Close everything."""
        # While Python closes a file, its object is already marked as closed: a child that is forked then could not
        # close its copy.
        with fork_hooks.ForksPaused():
            self.hang_up()
            handles = [handle for handle in (self._awake, self._wake) if self._is_own(handle)]
            if (
                len(handles) == 2
            ):  # else that of the selector, which looks like any other of its kind, is closed as well
                self._selector.close()
            self._awake = self._wake = -1
            for handle in handles:
                os.close(handle)

    # ---- from the agent's thread

    def turn(self, pause: float) -> None:
        """Receive and send messages; wait at most ``pause`` seconds for one."""
        for key, ready in self._selector.select(pause):
            source: Any = key.fileobj
            if not ready & selectors.EVENT_READ:
                continue  # it can be sent more
            if source is self._listener:
                with fork_hooks.ForksPaused():  # a child closes the connections in the list
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
        self._files[connection.fileno()] = _identity(connection.fileno())
        self.clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        client = next(client for client in self.clients if client.connection is connection)
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
                self._handle(client, json.loads(line))
            except Exception as error:  # the agent survives any message
                self.tell(ErrorEvent(text=f"not understood: {error!r}"[:500]), client)

    def flush(self) -> None:
        """Send the waiting events, as far as the clients read them."""
        with self._guard:
            outbox, self._outbox = self._outbox, []
        for addressee, event in outbox:
            line = to_line(event)
            for client in self.clients if addressee is None else [addressee]:
                if client.console or addressee is not None:
                    client.unsent += line
        for client in list(self.clients):
            try:
                while client.unsent:
                    del client.unsent[: client.connection.send(client.unsent[:65536])]
            except BlockingIOError:
                if len(client.unsent) > _MAX_OUT_BYTES:
                    self._drop(client)
            except OSError:
                client.unsent.clear()  # it has gone; its last messages and its end are still to be read
            if client in self.clients and client.blocked != bool(client.unsent):
                client.blocked = bool(client.unsent)
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.blocked else 0)
                self._selector.modify(client.connection, events)

    def _drop(self, client: Client) -> None:
        if client in self.clients:
            self._selector.unregister(client.connection)
            with fork_hooks.ForksPaused():  # as in close
                client.connection.close()
                self.clients.remove(client)
            self._gone(client)


def _identity(handle: int) -> tuple[int, int]:
    try:
        found = os.fstat(handle)
        return found.st_dev, found.st_ino
    except OSError:
        return 0, 0


def _listen(path: str) -> socket.socket:
    folder, name = os.path.split(path)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Through the open folder: the path of a socket must be shorter than 108 characters.
        listener.bind(f"/proc/self/fd/{handle}/{name}")
    finally:
        os.close(handle)
    os.chmod(path, 0o600)
    listener.listen(16)
    listener.setblocking(False)
    return listener
