"""The functions ``breakpoint_`` and ``clear_`` of MindSpeed, with the same meaning.

The environment variable ``RANK_TO_DEBUG`` (default 0) is the rank that stops at a prompt.
"""

from __future__ import annotations

import os
import sys

from breakranks.rank import api
from breakranks.rank.breakpoint_calls import SITES

__all__ = ["breakpoint_", "clear_"]


def breakpoint_(non_block: bool = True) -> None:
    """Stop rank RANK_TO_DEBUG at a prompt. The others keep running; with ``False`` they hold here until ``clear_()``.

    They also resume when that rank, or the console, has ended.
    """
    frame = sys._getframe(1)
    site = SITES.at(frame)
    traced = api.fire(
        frame,
        site,
        os.environ.get("RANK_TO_DEBUG") or 0,
        "run" if non_block else "hold",
        until_go=not non_block,
    )
    if traced is not None:
        traced.trace_from(frame)


def clear_() -> None:
    """Resume the ranks that hold at ``breakpoint_(False)``."""
    api.go()
