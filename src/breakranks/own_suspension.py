"""Time in which we ourselves stood still: the machine slept, or its disk did, or somebody pressed Ctrl-Z.

Whoever was to answer meanwhile was not late; what it said lies ready to be read.
"""

from __future__ import annotations

_NOTICED_SECONDS = 1.0  # seconds


def stalled(passed: float, asked: float) -> float:
    """The seconds by which a deadline is put off, after a wait that was to take so long and took so long."""
    return passed if passed > asked + _NOTICED_SECONDS else 0.0
