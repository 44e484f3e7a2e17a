"""breakranks: find the rank that broke ranks, explain why, and inspect it.

In code: ``breakranks.breakpoint()`` stops a rank at a prompt and holds the others; see docs/breakpoints.md.
"""

from __future__ import annotations

__version__ = "0.1.0"

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from breakranks.rank.api import breakpoint as breakpoint
    from breakranks.rank.api import go as go
    from breakranks.rank.api import hold as hold
    from breakranks.rank.api import post_mortem as post_mortem
    from breakranks.rank.rank_output import print_ as print  # noqa: F401

# Imported at first use. The command line imports this module as well, and never needs them.
_IN_CODE = {
    "breakpoint": ("breakranks.rank.api", "breakpoint"),
    "hold": ("breakranks.rank.api", "hold"),
    "go": ("breakranks.rank.api", "go"),
    "post_mortem": ("breakranks.rank.api", "post_mortem"),
    "print": ("breakranks.rank.rank_output", "print_"),
}


def __getattr__(name: str) -> object:
    if name not in _IN_CODE:
        raise AttributeError(f"module 'breakranks' has no attribute {name!r}")
    import importlib

    module, attribute = _IN_CODE[name]
    value: object = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_IN_CODE])
