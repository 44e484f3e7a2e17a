"""The part of stage one that runs in a Python of a supported version.

Where the same breakranks is installed, its agent is started at once. Otherwise :mod:`install`, the other part, receives
the code first. This source is run by ``python -c``, so it cannot import breakranks until the package is there.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    later = b""  # the source of install, set by find_python


class Stage1Options(NamedTuple):
    nonce: str
    piece: int
    patience: float
    digest: str


class ControllerTalk:
    """Sends messages to the controller. ``count`` is the number of those sent."""

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
    """Return a digest of the paths and sizes of a package's sources. Reading their content takes ten times as long."""
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
    """Return the file of a module, or ``""``. Unlike ``importlib.util.find_spec``, this imports nothing."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(module, None)
        except Exception:
            continue
        if spec is not None:
            return spec.origin or ""
    return ""


def is_here(digest: str) -> bool:
    """Whether this Python has the package with that digest."""
    place = place_of("breakranks")
    try:
        return bool(place) and digest_of(os.path.dirname(place)) == digest
    except OSError:
        return False


def take_streams() -> tuple[int, int]:
    """Return private copies of standard input and output, which nothing that is run or printed here can use."""
    inp, out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # standard error is closed
        os.dup2(null, 1)
        os.dup2(null, 2)
    return inp, out


def agent(inp: int, talk: ControllerTalk, options: Stage1Options, heard: bytes = b"", shipped: str = "") -> int:
    """Run the agent until the controller leaves, and return the exit status."""
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
    """Start the agent. ``words`` are the options that ``shell_command.remote_command`` wrote."""
    nonce, piece, patience, digest = words.split(",")
    options = Stage1Options(nonce, int(piece), float(patience), digest)
    inp, out = take_streams()
    talk = ControllerTalk(out, nonce, options.piece)
    os.chdir("/")  # a process that is started here must not import from the current folder
    if is_here(digest):
        return agent(inp, talk, options)
    scope = globals()
    exec(compile(later, "<breakranks install>", "exec"), scope)
    install: Callable[[int, ControllerTalk, Stage1Options], int] = scope["install"]
    return install(inp, talk, options)
