"""To whom the code of a frame belongs: the user, a library, or the interpreter.

The path alone decides, so it also works on another machine.
"""

from __future__ import annotations

import re
from functools import lru_cache

from breakranks.snapshot.model import Frame

LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages)/"
    r"|(^|/)lib(64)?/python\d+\.\d+/"
    r"|/python\d+\.\d+/(lib-dynload|asyncio|concurrent|multiprocessing)/"
    r"|(^|/)breakranks/(rank|inject|inside)/"  # breakranks in a stopped rank, also from a checkout
    # Generated code. Other names in angle brackets (a cell of a notebook, python -c) belong to the user.
    r"|^<(frozen |__array_function__|eval_with_key|attrs generated|shim|unknown)"
)

# The agent of breakranks in a rank, and code that is injected for introspection.
_AGENT = re.compile(r"(^|/)breakranks/(rank|inject|inside)/|^<breakranks")  # inside: the name in version 0.1
_INSTALLED = re.compile(r"(^|/)(site-packages|dist-packages)/")
_TORCH = re.compile(r"(^|/)(site-packages|dist-packages)/(torch|filelock|numpy|mindspore|mpi4py)/")


@lru_cache(maxsize=65536)
def is_own(file: str) -> bool:
    """Whether code is neither installed nor part of Python.

    >>> is_own("/home/me/train.py"), is_own("/opt/venv/lib/python3.11/site-packages/torch/nn/modules.py")
    (True, False)
    """
    return bool(file) and LIBRARY.search(file) is None


@lru_cache(maxsize=65536)
def is_agent(file: str) -> bool:
    """Whether it is code of breakranks that runs in a rank."""
    return _AGENT.search(file) is not None


def innermost_own(frames: tuple[Frame, ...]) -> Frame | None:
    """Return the innermost frame of the user's code: the one to open first."""
    for frame in reversed(frames):
        if not frame.native and is_own(frame.file):
            return frame
    for frame in reversed(frames):
        if not frame.native:
            return frame
    return None


def own_functions(frames: tuple[Frame, ...]) -> tuple[tuple[str, str], ...]:
    """Return the functions of the user's code with their files: those of a loop that polls stay the same, its lines
    change."""
    return tuple((frame.function, frame.file) for frame in frames if is_own(frame.file))


def native_tail(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the C frames below the innermost Python frame of a merged stack."""
    for index in range(len(frames) - 1, -1, -1):
        if not frames[index].native:
            return frames[index + 1 :]
    return frames


def innermost_installed(frames: tuple[Frame, ...]) -> Frame | None:
    """Return the innermost frame of an installed package other than Python and torch, such as a hook of a trainer."""
    for frame in reversed(frames):
        if not frame.native and _INSTALLED.search(frame.file) and not _TORCH.search(frame.file):
            return frame
    return None
