"""Dumps from anywhere, decoded without running anything in them.

torch writes them as pickles, and a pickle is a program. So nothing that is not a plain container, string or number
can be made here: whatever asks for a class or a function by name is refused. Pickles that ask for much memory
are met by a limit on the process that reads them (see ``folder``).
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from breakranks.errors import BreakranksError

_CUT = "The rank may have died while it wrote it, or the copy is not whole."


class DumpError(BreakranksError):
    """A dump cannot be used; the message goes on after its file's name."""


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


def _json(data: bytes) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        if "truncated" in str(error):
            raise DumpError("is cut off", _CUT) from None
        raise DumpError(f"is no JSON: {error}") from None
    except RecursionError:
        raise DumpError("is nested deeper than any dump") from None
