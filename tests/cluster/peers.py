"""Hosts that are scripts: each plays an agent, as honest or as hostile as a test wants it, in a process of its own.

`exec:` starts CARRIER, which hands its stdin, stdout and stderr to a server that has everything imported already. So a
peer takes a fork instead of the start of an interpreter, and what it does with its memory is not counted as ours.

    python peers.py SOCKET        the server: a peer for each connection, until it is killed
    python -I -S peers.py SOCKET LIE HOST WORDS…      (CARRIER) be HOST, with the functions that the file LIE replaces
"""

from __future__ import annotations

import os
import socket
import sys
import zlib
from collections.abc import Callable
from functools import lru_cache

PORT = 28_765  # of the job that all of them are of
REAL = "real:"  # before the socket: the host named good runs a real agent


def carry(where: str, lie: str, host: str, words: list[str]) -> int:
    """A transport to a peer: ends with it, with its status; and it ends with us."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(where)
    nonce = " ".join(words).partition("@br1 ")[2][:16]
    socket.send_fds(link, ["\0".join([lie, host, nonce]).encode()], [0, 1, 2])
    os.closerange(0, 3)
    status = link.recv(1)
    return status[0] if status else 1


def serve(where: str) -> None:
    import signal

    load()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(where + ".part")
    listener.listen(64)
    os.rename(where + ".part", where)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os._exit(keep(link))
        link.close()


def keep(link: socket.socket) -> int:
    """Run one peer; end it when its carrier ends, and tell the carrier how it ended."""
    import select
    import signal

    data, fds, _, _ = socket.recv_fds(link, 65536, 3)
    if not data:
        return 1
    peer = os.fork()
    if peer == 0:
        link.close()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        os.closerange(3, 100)
        status = 1
        try:
            play(*data.decode().split("\0"))
            status = 0
        except OSError:  # nobody listens any more
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    for fd in fds:
        os.close(fd)
    ended = os.pidfd_open(peer)
    ready, _, _ = select.select([link, ended], [], [])
    if ended not in ready:
        os.kill(peer, signal.SIGKILL)
    _, status = os.waitpid(peer, 0)
    try:
        link.send(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
    except OSError:
        pass
    return 0


def load() -> None:
    """What peers need, before the first of them is there."""
    from breakranks.hosts import framing, host_messages
    from breakranks.snapshot import model

    assert framing and host_messages and model
    for which in BOMBS.values():
        bomb(*which)


@lru_cache
def bomb(head: bytes, byte: bytes, count: int) -> bytes:
    """``head``, then ``count`` times the same byte, packed: one piece repeated, since packing all of it is slow."""
    chunk = byte * (1 << 22)
    packer = zlib.compressobj(1)
    start = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    piece = packer.compress(chunk) + packer.flush(zlib.Z_FULL_FLUSH)
    last = packer.compress(byte * (count % len(chunk))) + packer.flush(zlib.Z_FULL_FLUSH)
    total = zlib.adler32(head)
    for _ in range(count // len(chunk)):
        total = zlib.adler32(chunk, total)
    total = zlib.adler32(byte * (count % len(chunk)), total)
    return start + piece * (count // len(chunk)) + last + b"\x03\x00" + total.to_bytes(4, "big")


# By name: too large for a message, as large as one may be, too large for a snapshot.
BOMBS = {
    "message": (b"m", b" ", 1 << 30),
    "fits": (b"m", b" ", (1 << 28) - 2),
    "snapshot": (b"", b"\0", 1 << 30),
}


def play(lie: str, host: str, nonce: str) -> None:
    """Be an agent that has one rank of the job: honest, but for what the lie replaces."""
    with open(lie) as file:
        code = file.read()
    bombs = {name: bomb(*which) for name, which in BOMBS.items()}
    space = {"host": host, "nonce": nonce, "PORT": str(PORT), "BOMBS": bombs, "__name__": "peer"}
    exec(PEER, space)
    if host != "good":
        plain = {name: space[name] for name in REPLACED}
        exec(code, space)
        for name in REPLACED:
            if space[name] is not plain[name]:
                space[name] = noted(space[name], lie + ".told")
    exec(TALK, space)


def noted(function: Callable[..., object], path: str) -> Callable[..., object]:
    """The same function; that it was called is seen by a file."""

    def call(*given: object) -> object:
        open(path, "w").close()
        return function(*given)

    return call


# The words that a lie is made of, and those of them that are for it to replace.
REPLACED = ("begin", "answer", "jobs", "taken")
PEER = r"""
import base64, json, os, sys, time, zlib
from breakranks.hosts.framing import FrameReader, FrameWriter
from breakranks.hosts.host_messages import pack_snapshot as pack
from breakranks.snapshot.model import *
from dataclasses import replace

writer, reader = FrameWriter(nonce, 48_000), FrameReader(nonce)
ESC = "\x1b]0;owned\x07\x1b[31m\r\n\x9bnext"
RANK, FUNCTION = (0, "load_batch") if host == "good" else (1, "stand_here")

def raw(data):
    while data:
        data = data[os.write(1, data):]
def encoded(message):
    return json.dumps(message, default=lambda data: base64.b64encode(data).decode()).encode()
def say(kind, who=host, **fields):
    raw(writer.lines(who, b"m", encoded({"type": kind, **fields})))
def stage(**fields):
    raw(writer.lines("evil", b"j", json.dumps(fields).encode()))
def hello(**more):
    plain = dict(protocol=1, version="0", python="3.12.0", host=host, user="me", pid=1, time=time.time(), same=host)
    say("hello", **plain | more)
def job(**more):
    ids = {"MASTER_ADDR": "localhost", "MASTER_PORT": PORT}
    plain = dict(key=f"python-{PORT}", launcher="python", world_size=2, started=time.time(), ids=ids)
    return plain | dict(command=["python", "train.py"] if host == "good" else []) | more
def found(ranks=((RANK, 99),), missing=(), problems=(), **more):
    return [[[job(**more), ranks, missing]], problems]
def snapshot(rank=RANK):
    thread = Thread(tid=99, name="main", stack=1)
    process = Process(
        pid=99, parent=1, command=("train",), samples=(Sample(time=time.time(), state="S", threads=(thread,)),)
    )
    return Snapshot(
        version=1, made_by="x", time=time.time(), job=Job(**job()),
        ranks=(Rank(rank=rank, host=host, process=process),),
        frames=(Frame(FUNCTION, "/x.py", 1),), stacks=((), (0,)), hosts=(Host(name=host),),
    )
def taken(request):
    return pack(snapshot())
def jobs(request):
    return found()
def answer(request):
    kind = request["type"]
    if kind == "find":
        say("jobs", id=request["id"], found=jobs(request))
    elif kind == "sample":
        say("taken", id=request["id"], snapshot=taken(request))
    elif kind == "check":
        say("checked", id=request["id"], steps=[dict(name="run", fine=True, what="as " + host)])
    elif kind == "eval":
        say("told", id=request["id"], told=[dict(rank=RANK, answer=dict(rank=RANK, text="42"))])
    elif kind == "ping":
        say("clock", time=time.time())
def begin():
    hello()
"""

TALK = r"""
begin()
while data := os.read(0, 65536):
    for said in reader.feed(data):
        if said.kind == b"m":
            answer(json.loads(said.body))
"""


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    elif sys.argv[1].startswith(REAL) and sys.argv[3] == "good":
        os.execvp(sys.argv[4], sys.argv[4:])
    else:
        sys.exit(carry(sys.argv[1].removeprefix(REAL), sys.argv[2], sys.argv[3], sys.argv[4:]))
