"""The file of ``--meanings``: what frames of a user's own code mean."""

from __future__ import annotations

import sys

from breakranks.errors import UsageError
from breakranks.explain.frame_meanings import FrameTable, from_toml

_EXAMPLE = """For example:
[[meaning]]
activity = "socket"
file = "mycompany/rpc.py"
function = "call"
"""


def read_meanings(path: str | None) -> FrameTable:
    """Return the table of frame meanings, with the rows of a TOML file if there is a path."""
    if path is None:
        return FrameTable()
    if sys.version_info < (3, 11):
        raise UsageError("--meanings needs Python 3.11 or newer", "Run breakranks with a newer Python.")
    import tomllib

    try:
        with open(path, "rb") as file:
            return FrameTable(from_toml(tomllib.load(file)))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} is not TOML: {error}",
            _EXAMPLE,
        ) from None
