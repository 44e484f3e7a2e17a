"""The open files of a process: files, pipes, terminals, and sockets with their peers."""

from __future__ import annotations

import os
import socket
import stat
import struct
from typing import NamedTuple

from breakranks.observe.redaction import redact
from breakranks.snapshot.model import OpenFile, Socket

_TCP_STATES = {
    1: "established", 2: "connecting", 3: "syn-received", 4: "fin-wait-1", 5: "fin-wait-2", 6: "time-wait",
    7: "closed", 8: "close-wait", 9: "last-ack", 10: "listening", 11: "closing",
}  # fmt: skip
_MAX_FILES = 200


class _Entry(NamedTuple):
    protocol: str
    local: str
    peer: str
    status: str
    send_queue: int
    receive_queue: int
    retries: int = 0


def opened(pid: int, asked: frozenset[int] = frozenset()) -> tuple[tuple[OpenFile, ...], dict[int, int]]:
    """Return the open files other than sockets, and the inodes of the sockets by descriptor.

    For the ``asked`` descriptors, the process at the other end of a pipe is looked up.
    """
    files: list[OpenFile] = []
    inodes: dict[int, int] = {}
    try:
        descriptors = sorted(map(int, os.listdir(f"/proc/{pid}/fd")))
    except OSError:
        return (), {}
    for fd in descriptors:
        try:
            path = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if path.startswith("socket:["):
            inodes[fd] = int(path[8:-1])
        elif len(files) < _MAX_FILES:
            kind = _kind(pid, fd, path)
            files.append(OpenFile(fd, path, kind, _other_end(pid, path) if kind == "pipe" and fd in asked else ""))
    return tuple(files), inodes


def _other_end(pid: int, path: str) -> str:
    owner = owner_of(path, skip=pid)
    return f"process {owner} ({command_of(owner)[:80]})" if owner else "no process"


def _kind(pid: int, fd: int, path: str) -> str:
    if path.startswith("pipe:"):
        return "pipe"
    if path.startswith("anon_inode:"):
        return "anon"
    if path.endswith(" (deleted)"):
        return "deleted"
    if path.startswith(("/dev/pts/", "/dev/tty")):
        return "tty"
    try:
        mode = os.stat(f"/proc/{pid}/fd/{fd}").st_mode
    except OSError:
        return "file"
    if stat.S_ISFIFO(mode):
        return "pipe"
    if stat.S_ISDIR(mode):
        return "dir"
    return "device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "file"


def sockets(pid: int, inodes: dict[int, int], asked: frozenset[int]) -> tuple[Socket, ...]:
    """Return the sockets of one process. For the ``asked`` descriptors, the process at the other end is looked up."""
    if not inodes:
        return ()
    table = _network(pid)
    found = []
    for fd, inode in inodes.items():
        entry = table.get(inode)
        if entry is None:
            continue
        owner, command = (0, "")
        if fd in asked and entry.peer:
            owner, command = _peer(entry, table, pid)
        found.append(Socket(fd, *entry[:6], owner, command, entry.retries))
    return tuple(found)


def _network(pid: int) -> dict[int, _Entry]:
    """Every socket in the network namespace of the process, by inode."""
    table: dict[int, _Entry] = {}
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for fields in _rows(f"/proc/{pid}/net/{protocol}"):
            if len(fields) < 10:
                continue
            send, _, receive = fields[4].partition(":")
            status = _TCP_STATES.get(int(fields[3], 16), "?") if protocol.startswith("tcp") else "open"
            # The queues of a listening socket count connections, those of others bytes. Data held back by a full
            # window is probed for, not sent again, so a stopped reader adds nothing to the sixth column.
            table[int(fields[9])] = _Entry(
                protocol=protocol.rstrip("6"), local=_address(fields[1]), peer=_address(fields[2]), status=status,
                send_queue=int(send, 16), receive_queue=int(receive, 16),
                retries=int(fields[6], 16),
            )  # fmt: skip
    for fields in _rows(f"/proc/{pid}/net/unix"):
        if len(fields) >= 7:
            table.setdefault(
                int(fields[6]),
                _Entry(
                    protocol="unix",
                    local=fields[7] if len(fields) > 7 else "",
                    peer="",
                    status="open",
                    send_queue=0,
                    receive_queue=0,
                ),
            )
    return table


def _rows(path: str) -> list[list[str]]:
    try:
        with open(path) as file:
            return [line.split() for line in file.readlines()[1:]]
    except OSError:
        return []


def _address(text: str) -> str:
    """``0100007F:1F90`` is ``127.0.0.1:8080``; an unset address is empty."""
    host, _, port = text.partition(":")
    words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    if not any(raw) and port == "0000":
        return ""
    if len(raw) == 16 and raw.startswith(b"\0" * 10 + b"\xff\xff"):
        raw = raw[12:]
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    name = socket.inet_ntop(family, raw)
    return f"{name}:{int(port, 16)}" if family == socket.AF_INET else f"[{name}]:{int(port, 16)}"


def _peer(entry: _Entry, table: dict[int, _Entry], pid: int) -> tuple[int, str]:
    """The process at the other end, if it is on this host: its socket has the two addresses exchanged."""
    for inode, other in table.items():
        if other.local == entry.peer and other.peer == entry.local and other.protocol == entry.protocol:
            owner = owner_of(f"socket:[{inode}]", skip=pid)
            return owner, command_of(owner)
    return 0, ""


def owner_of(link: str, skip: int = 0) -> int:
    """Return a process that has this open (``socket:[7]``, ``pipe:[8]``, a path); 0 if there is none here."""
    for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
        if pid == skip:
            continue
        if has_open(pid, link):
            return pid
    return 0


def has_open(pid: int, link: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(f"{folder}/{name}") == link:
                return True
        except OSError:  # closed since
            continue
    return False


def command_of(pid: int) -> str:
    """The command line, shortened, without secrets."""
    if not pid:
        return ""
    try:
        with open(f"/proc/{pid}/cmdline", errors="replace") as file:
            words = tuple(file.read().rstrip("\0").split("\0"))
    except OSError:
        return ""
    return " ".join(redact(words))[:200]
