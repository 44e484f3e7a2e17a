"""The part of stage one that runs on a host with a Python that we can use.

Where the same breakranks is installed, its agent is started at once. Otherwise :mod:`install`, the other part,
receives one. Its text is run by ``python -c``, so nothing of breakranks can be imported before it is there.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    later = b""  # set by choose


class Stage1Options(NamedTuple):
    nonce: str
    piece: int
    patience: float
    digest: str


class ControllerTalk:
    """Says things to the controller. ``count`` is how many it has said."""

    def __init__(self, out: int, nonce: str, piece: int) -> None:
        self.out = out
        self.nonce = nonce
        self.piece = piece
        self.count = 0
        self.host = os.uname().nodename

    def say(self, **fields: object) -> None:
        import binascii
        import json

        left = b"j" + json.dumps(fields).encode()
        while left:
            data, left = left[: self.piece], left[self.piece :]
            mark = "+" if left else "."
            coded = binascii.b2a_base64(data, newline=False).decode()
            line = f"@br1 {self.nonce} {self.host} {self.count} {mark} {coded}\n".encode()
            while line:
                line = line[os.write(self.out, line) :]
        self.count += 1


def digest_of(root: str) -> str:
    """Names a state of the package: paths and sizes of its sources. Reading them all would take ten times as long."""
    import hashlib

    found: list[str] = []
    folders = [""]
    while folders:
        below = folders.pop()
        with os.scandir(root + "/" + below) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    found.append(f"{below}{entry.name} {entry.stat().st_size}\n")
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(f"{below}{entry.name}/")
    return hashlib.sha256("".join(sorted(found)).encode()).hexdigest()


def place_of(module: str) -> str:
    """The file that would be imported, or ``""``. Unlike ``importlib.util``, this imports nothing."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(module, None)
        except Exception:
            continue
        if spec is not None:
            return spec.origin or ""
    return ""


def has_msgspec() -> bool:
    """Whether there is a msgspec that loads and is new enough."""
    try:
        import msgspec

        first, second = msgspec.__version__.split(".")[:2]
        return (int(first), int(second)) >= (0, 18)
    except Exception:
        return False


def is_here(digest: str) -> bool:
    place = place_of("breakranks")
    try:
        return bool(place) and digest_of(os.path.dirname(place)) == digest and has_msgspec()
    except OSError:
        return False


def take_streams() -> tuple[int, int]:
    """Input and output of ours alone: nothing that is run or printed here can come between."""
    inp, out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # there is no 2
        os.dup2(null, 1)
        os.dup2(null, 2)
    return inp, out


def agent(inp: int, talk: ControllerTalk, options: Stage1Options, heard: bytes = b"", shipped: str = "") -> int:
    from breakranks.hosts.host_agent import serve

    serve(
        inp,
        talk.out,
        nonce=options.nonce,
        piece=options.piece,
        heard=heard,
        patience=options.patience,
        shipped=shipped,
        said=talk.count,
    )
    return 0


def arrive(words: str) -> int:
    """``words``: the options, as ``command`` wrote them."""
    nonce, piece, patience, digest = words.split(",")
    options = Stage1Options(nonce, int(piece), float(patience), digest)
    inp, out = take_streams()
    talk = ControllerTalk(out, nonce, options.piece)
    os.chdir("/")  # what is started from here must not import from where we happen to be
    if is_here(digest):
        return agent(inp, talk, options)
    scope = globals()
    exec(compile(later, "<breakranks install>", "exec"), scope)
    install: Callable[[int, ControllerTalk, Stage1Options], int] = scope["install"]
    return install(inp, talk, options)
