"""Decode untrusted dumps without running any code in them.

torch writes dumps as pickles, and a pickle is a program. So only plain containers, strings and numbers can be created
here: a pickle that names a class or a function is refused. A few bytes of a pickle can request gigabytes: the memory is
limited to what a dump of its size can need.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import resource
from collections.abc import Iterator
from typing import Any

from breakranks.errors import BreakranksError

_MEMORY_BYTES, _MEMORY_PER_BYTE = 1 << 28, 64
_CUT = "The rank may have died while writing it, or the copy is incomplete."
FOREIGN = "If it is a dump, copy it again. If it is another file, remove it from the folder."


class DumpError(BreakranksError):
    """A dump cannot be used. The message is a predicate, shown after the name of its file."""

    def __init__(self, message: str, help: str = FOREIGN) -> None:
        super().__init__(message, help)


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise DumpError(
            f"contains code ({module}.{name}), which no flight recorder writes: it was not run",
            "Do not load it with pickle. Find out where it comes from.",
        )

    def persistent_load(self, pid: Any) -> Any:
        raise DumpError("refers to external objects, which a flight recorder dump never does")


def decode(data: bytes) -> dict[str, Any]:
    """Return the top-level dictionary of a dump, which has a list of ``entries``."""
    if not data:
        raise DumpError("is empty", "The rank may have died while writing it.")
    top = _json(data) if data[:1] in b"{[" or data[:1].isspace() else _pickle(data)
    if not isinstance(top, dict):
        raise DumpError(f"is not a flight recorder dump: it contains a {type(top).__name__}")
    if not isinstance(top.get("entries"), list):
        raise DumpError("is not a flight recorder dump: it has no list of entries")
    return top


def _pickle(data: bytes) -> Any:
    try:
        with _limited(_MEMORY_BYTES + _MEMORY_PER_BYTE * len(data)):
            # Unpickler reads a file with peek() by the buffer, and one without it by a call for every few bytes.
            return _Plain(io.BufferedReader(io.BytesIO(data), 1 << 20)).load()
    except DumpError:
        raise
    except MemoryError:
        raise DumpError("requires more memory than a dump can need") from None
    except Exception as error:  # garbage can raise anything: ValueError, KeyError, struct.error, RecursionError
        if data[:1] == b"\x80" and not data.rstrip(b"\n").endswith(b"."):
            raise DumpError("is truncated", _CUT) from None
        raise DumpError(f"is neither a pickle nor JSON ({type(error).__name__})") from None


@contextlib.contextmanager
def _limited(size: int) -> Iterator[None]:
    """Limit this process, with all its threads, to ``size`` bytes more than it has now: then comes a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as text:
        most = int(text.read().split()[0]) * resource.getpagesize() + size
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(most, *limits), hard) if limits else (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _json(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise DumpError(f"is not JSON: it has a byte that is not UTF-8 ({error.object[error.start]:#04x})") from None
    except json.JSONDecodeError as error:
        text = error.doc.rstrip()
        if error.pos >= len(text) or text[-1:] not in ("}", "]"):
            raise DumpError("is truncated", _CUT) from None
        raise DumpError(f"is not JSON: {error}") from None
    except ValueError as error:  # NaN, or a number with more digits than Python reads
        raise DumpError(f"is not JSON: {error}") from None
    except RecursionError:
        raise DumpError("is nested too deeply for a dump") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"it has {name}")
