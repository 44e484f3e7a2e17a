"""What ``breakranks hosts`` prints. Hosts that fail at the same step for the same reason are one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from breakranks.show.terminal_text import Line, Piece, TerminalStyle
from breakranks.snapshot.host_names import fold, with_name, without_name

Step = tuple[str, bool, str, str]  # name, whether the host passes it, what was seen, remedy
CheckedHost = tuple[str, tuple[Step, ...]]


def check_lines(checks: Sequence[CheckedHost], style: TerminalStyle) -> Iterator[Line]:
    """Yield a row per group of hosts: the checks, and the reason and the remedy where one failed."""
    groups = [[host] for host, _ in checks] if style.full else _grouped(checks)
    steps = dict(checks)
    for names in groups:
        taken = steps[names[0]]
        failed = next((step for step in taken if not step[1]), None)
        pieces: list[Piece] = [(fold(names), "rank"), (f" ({len(names)})" if len(names) > 1 else "", "dim"), "  "]
        for name, fine, _, _ in taken:
            pieces += [(name, "" if fine else "bad"), " · "]
        pieces.append(("all passed", "good") if failed is None else ("failed", "bad"))
        yield tuple(pieces)
        for name, fine, what, remedy in taken:
            if what and (style.full or not fine):
                yield (
                    f"    {name}: ",
                    (with_name(without_name(what, names[0]), fold(names)), "warn" * (not fine)),
                )
            if not fine:
                yield from (("      ", line) for line in remedy.splitlines())
    stopped = sum(any(not step[1] for step in taken) for _, taken in checks)
    yield ()
    yield (f"{len(checks) - stopped} of {len(checks)} hosts can be inspected",)


def _grouped(checks: Sequence[CheckedHost]) -> list[list[str]]:
    groups: dict[tuple[object, ...], list[str]] = {}
    for host, steps in checks:
        failed = next((step for step in steps if not step[1]), None)
        why = None if failed is None else (without_name(failed[2], host), without_name(failed[3], host))
        groups.setdefault((tuple(step[0] for step in steps), why), []).append(host)
    return list(groups.values())


def host_check_json(target: str, checks: Sequence[CheckedHost]) -> dict[str, Any]:
    return {
        "schema": 1,
        "target": target,
        "hosts": [
            {
                "host": host,
                "stops_at": next((name for name, fine, _, _ in steps if not fine), None),
                "steps": [
                    {"step": name, "fine": fine, "what": what, "remedy": remedy} for name, fine, what, remedy in steps
                ],
            }
            for host, steps in checks
        ],
    }
