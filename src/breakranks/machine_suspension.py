"""Time in which this process did not run: the machine was suspended, its disk stalled, or Ctrl-Z was pressed.

A peer that was to answer in that time is not late: its answer may be waiting to be read.
"""

from __future__ import annotations

_NOTICED_SECONDS = 1.0


def stalled(passed: float, asked: float) -> float:
    """Return by how many seconds to extend a deadline, after a wait of ``asked`` seconds that took ``passed``."""
    return passed if passed > asked + _NOTICED_SECONDS else 0.0
