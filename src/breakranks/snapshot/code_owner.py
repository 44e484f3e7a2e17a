"""Whose code a frame is: the user's own, a library's, or the interpreter's.

Decided by the path alone, so that it works on another machine, another day.
"""

from __future__ import annotations

import re
from functools import lru_cache

from breakranks.snapshot.model import Frame

_LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages)/"
    r"|(^|/)lib(64)?/python\d+\.\d+/"
    r"|/python\d+\.\d+/(lib-dynload|asyncio|concurrent|multiprocessing)/"
    r"|(^|/)breakranks/(rank|inject|inside)/"  # ours, in a rank that is stopped, also from a checkout
    # Generated code; other names in angle brackets (a notebook's cell, python -c) are the user's.
    r"|^<(frozen |__array_function__|eval_with_key|attrs generated|shim|unknown)"
)

# The agent of breakranks in a rank, and what is run there for a moment to ask it something.
_AGENT = re.compile(r"(^|/)breakranks/(rank|inject|inside)/|^<breakranks")  # inside: as version 0.1 had it
_INSTALLED = re.compile(r"(^|/)(site-packages|dist-packages)/")
_TORCH = re.compile(r"(^|/)(site-packages|dist-packages)/(torch|filelock|numpy|mindspore|mpi4py)/")


@lru_cache(maxsize=65536)
def is_own(file: str) -> bool:
    """True for code that is neither installed nor part of Python.

    >>> is_own("/home/me/train.py"), is_own("/opt/venv/lib/python3.11/site-packages/torch/nn/modules.py")
    (True, False)
    """
    return bool(file) and _LIBRARY.search(file) is None


@lru_cache(maxsize=65536)
def is_agent(file: str) -> bool:
    """True for the code of breakranks that runs in a rank."""
    return _AGENT.search(file) is not None


def innermost_own(frames: tuple[Frame, ...]) -> Frame | None:
    """The frame that a person would open first: the innermost one of their own code."""
    for frame in reversed(frames):
        if not frame.native and is_own(frame.file):
            return frame
    for frame in reversed(frames):
        if not frame.native:
            return frame
    return None


def native_tail(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Of a merged stack, the C frames below the innermost Python frame."""
    for index in range(len(frames) - 1, -1, -1):
        if not frames[index].native:
            return frames[index + 1 :]
    return frames


def innermost_installed(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame of an installed package that is neither Python's nor torch's: a trainer's hook, say."""
    for frame in reversed(frames):
        if not frame.native and _INSTALLED.search(frame.file) and not _TORCH.search(frame.file):
            return frame
    return None
