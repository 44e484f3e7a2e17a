"""Numbers with their units: how many, how long, how large, how often."""

from __future__ import annotations

from breakranks.show.wording.grammar import noun

_SECONDS = ((86400.0, "d", 3600.0, "h"), (3600.0, "h", 60.0, "min"), (60.0, "min", 1.0, "s"))


def plural(number: int, name: str, many: str = "") -> str:
    """
    >>> plural(1, "rank"), plural(3000, "rank"), plural(2, "process", "processes")
    ('1 rank', '3,000 ranks', '2 processes')
    """
    return f"{number:,} {noun(number, name, many)}"


def times(number: int) -> str:
    """
    >>> times(1), times(3)
    ('once', '3 times')
    """
    return "once" if number == 1 else f"{number} times"


def duration(seconds: float | None) -> str:
    """Return ``0.4 s``, ``94 s``, ``12 min``, ``5 h 10 min`` or ``3 d 4 h``; ``?`` if it is not known."""
    if seconds is None or seconds < 0:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    for unit, name, small, small_name in _SECONDS:
        if seconds >= unit:
            whole, rest = divmod(round(seconds), unit)
            part = int(rest // small)
            # From ten minutes on, seconds do not matter.
            show_part = part and not (name == "min" and whole >= 10)
            return f"{whole:.0f} {name} {part} {small_name}" if show_part else f"{whole:.0f} {name}"
    return f"{seconds:.0f} s"


def amount(size: int) -> str:
    """Return ``812 B`` or ``1.2 GiB``."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            break
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
