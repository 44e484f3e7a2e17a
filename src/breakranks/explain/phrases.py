"""How durations, paths and places are said in a sentence."""

from __future__ import annotations

from breakranks.explain.diagnosis import Where
from breakranks.snapshot.model import Frame


def duration(seconds: float) -> str:
    """
    >>> duration(0.4), duration(94), duration(3700), duration(200000)
    ('0.4 s', '94 s', '62 min', '2.3 days')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.1f} days"


def base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def place(frame: Frame | None) -> str:
    """``load_batch, data.py:88``"""
    if frame is None:
        return "unknown code"
    return f"{frame.function}, {base(frame.file)}:{frame.line}"


def where(frame: Frame | None) -> Where | None:
    return None if frame is None else Where(frame.function, frame.file, frame.line)


def command(words: tuple[str, ...] | str, most: int = 80) -> str:
    text = words if isinstance(words, str) else " ".join(words)
    return text if len(text) <= most else text[: most - 1] + "…"


def listed(items: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``"""
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + " and " + items[-1]
