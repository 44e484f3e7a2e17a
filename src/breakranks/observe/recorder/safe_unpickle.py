"""Dumps from anywhere, decoded without running anything in them.

torch writes them as pickles, and a pickle is a program. So nothing that is not a plain container, string or number
can be made here: whatever asks for a class or a function by name is refused. A few bytes of a pickle can ask for
gigabytes: it gets what a dump of its size can need.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import resource
from collections.abc import Iterator
from typing import Any

import msgspec

from breakranks.errors import BreakranksError

_MEMORY, _MEMORY_PER_BYTE = 1 << 28, 64
_CUT = "The rank may have died while it wrote it, or the copy is not whole."
FOREIGN = "If it is a dump, copy it again; if it is another file, leave it out of the folder."


class DumpError(BreakranksError):
    """A dump cannot be used; the message goes on after its file's name."""

    def __init__(self, message: str, help: str = FOREIGN) -> None:
        super().__init__(message, help)


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise DumpError(
            f"holds code ({module}.{name}), which no flight recorder writes: it was not run",
            "Do not load it with pickle either; find out where it comes from.",
        )

    def persistent_load(self, pid: Any) -> Any:
        raise DumpError("refers to things outside of it, which no flight recorder's dump does")


def decode(data: bytes) -> dict[str, Any]:
    """The top of a dump: a dictionary that has ``entries``."""
    if not data:
        raise DumpError("is empty", "The rank may have died while it wrote it.")
    top = _json(data) if data[:1] in b"{[" or data[:1].isspace() else _pickle(data)
    if not isinstance(top, dict):
        raise DumpError(f"is no flight recorder's dump: it holds a {type(top).__name__}")
    if not isinstance(top.get("entries"), list):
        raise DumpError("is no flight recorder's dump: it has no list of entries")
    return top


def _pickle(data: bytes) -> Any:
    try:
        with _limited(_MEMORY + _MEMORY_PER_BYTE * len(data)):
            # A file that can be peeked into is read by the buffer, one that cannot by a call for every few bytes.
            return _Plain(io.BufferedReader(io.BytesIO(data), 1 << 20)).load()
    except DumpError:
        raise
    except MemoryError:
        raise DumpError("asks for more memory than a dump can need") from None
    except Exception as error:  # anything can come of garbage: ValueError, KeyError, struct's, recursion
        if data[:1] == b"\x80" and not data.rstrip(b"\n").endswith(b"."):
            raise DumpError("is cut off", _CUT) from None
        raise DumpError(f"is neither a pickle nor JSON ({type(error).__name__})") from None


@contextlib.contextmanager
def _limited(size: int) -> Iterator[None]:
    """So many bytes more than this process has now, and then a MemoryError. For all its threads."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as text:
        most = int(text.read().split()[0]) * resource.getpagesize() + size
    limits = [one for one in (soft, hard) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(most, *limits), hard) if limits else (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        if "truncated" in str(error):
            raise DumpError("is cut off", _CUT) from None
        raise DumpError(f"is not JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise DumpError(f"is not JSON: it has a byte that is not UTF-8 ({error.object[error.start]:#04x})") from None
    except RecursionError:
        raise DumpError("is nested deeper than any dump") from None
