"""Messages of the Debug Adapter Protocol on a stream: a header with their length, and JSON."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from typing import Any

MAX_FIRST_MESSAGE_BYTES = 1 << 20  # from a client that has not sent a token yet
MAX_MESSAGE_BYTES = 1 << 26
_MAX_HEADER_BYTES = 4096
DapMessage = dict[str, Any]  # as its sender has made it: most messages are only passed on


class MalformedMessage(Exception):
    """A message that is not of the protocol. The text is the reason."""


async def read(reader: asyncio.StreamReader, most: int) -> DapMessage | None:
    """Return the next message, or None at the end of the stream, wherever it ends. Raises MalformedMessage."""
    try:
        header = await reader.readuntil(b"\r\n\r\n")
        if len(header) > _MAX_HEADER_BYTES:
            raise MalformedMessage("a header that does not end")
        length = _length(header)
        if length > most:
            raise MalformedMessage(f"a message of {length:,} bytes; the limit is {most:,}")
        body = await reader.readexactly(length)
    except asyncio.LimitOverrunError:
        raise MalformedMessage("a header that does not end") from None
    except (asyncio.IncompleteReadError, OSError):
        return None
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise MalformedMessage("a message that is not JSON") from None
    if not isinstance(message, dict) or message.get("type") not in ("request", "response", "event"):
        raise MalformedMessage("a message that is neither request nor response nor event")
    if not isinstance(message.get("seq"), int):
        raise MalformedMessage("a message without a number")
    return message


def _length(header: bytes) -> int:
    fields = dict(_field(line) for line in header.removesuffix(b"\r\n\r\n").split(b"\r\n"))
    length = fields.pop(b"content-length", b"")
    if fields.keys() - {b"content-type"}:  # such as that of a browser
        raise MalformedMessage("a header of something else")
    if not length.isdigit() or len(length) > 11:
        raise MalformedMessage("a header without a Content-Length that is a number")
    return int(length)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()


def pack(message: DapMessage) -> bytes:
    body = json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def response(request: DapMessage, body: DapMessage | None = None) -> DapMessage:
    found: DapMessage = {"type": "response", "request_seq": request["seq"], "success": True}
    return found | {"command": request.get("command", ""), "body": body or {}}


def refusal(request: DapMessage, text: str) -> DapMessage:
    """An error that clients show to their user."""
    shown = {"id": 1, "format": text.replace("{", "{{").replace("}", "}}"), "showUser": True}
    return response(request, {"error": shown}) | {"success": False, "message": text}


def event(name: str, body: DapMessage | None = None) -> DapMessage:
    return {"type": "event", "event": name, "body": body or {}}


def output(text: str) -> DapMessage:
    """A text for the console of the client."""
    return event("output", {"category": "important", "output": f"breakranks: {text}\n"})


def listen_at(path: str) -> socket.socket:
    """A UNIX socket that only this user can connect to. Raises FileExistsError where another process listens on it."""
    folder, name = os.path.split(path)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    near = f"/proc/self/fd/{handle}/{name}"  # a socket's own path must be shorter than 108 characters
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(near):
            _clear(near, path)
        listener.bind(near)
        os.chmod(near, 0o600)
        listener.listen(16)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(handle)
    return listener


def _clear(near: str, path: str) -> None:
    """Remove the socket of a bridge that was killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(near)
        except ConnectionRefusedError:
            os.unlink(near)
            return
        except OSError:
            pass
    raise FileExistsError(path)


def peer_of(connection: Any) -> tuple[int, int]:
    """The process and user at the other end of a UNIX socket."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
