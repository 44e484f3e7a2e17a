"""How a console behaves."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class ConsoleOptions(Struct, frozen=True, kw_only=True):
    """``patience``: seconds that a script waits for a rank; a user waits until ``pressed`` returns True, for Ctrl-C.

    ``stays``: whether to wait for the next stop once all ranks run. ``inspects``: ranks that are not stopped get lines
    as well.
    """

    interactive: bool
    patience: float = 60.0
    inspects: bool = False
    stays: bool = True
    pressed: Callable[[], bool] = lambda: False
