"""The answer of one rank to a command or a question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """The text that a rank printed, a description of its value, and how many characters were not sent.

    ``late``: it has not answered yet.
    """

    rank: int
    text: str
    value: dict[str, Any] | None = None
    error: bool = False
    cut: int = 0
    late: bool = False
