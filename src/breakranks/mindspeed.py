"""The names that MindSpeed's users have in their scripts, with the same meaning: ``breakpoint_`` and ``clear_``.

``RANK_TO_DEBUG`` (a variable of the environment, 0 without it) says which rank stops at a prompt.
"""

from __future__ import annotations

import os
import sys

from breakranks.rank import api
from breakranks.rank.breakpoint_sites import SITES

__all__ = ["breakpoint_", "clear_"]


def breakpoint_(non_block: bool = True) -> None:
    """Stop rank RANK_TO_DEBUG at a prompt. The others run on; with ``False`` they hold here until ``clear_()``.

    They also go on when that rank, or the console, has ended.
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
    """Let the ranks go on that hold at ``breakpoint_(False)``."""
    api.go()
