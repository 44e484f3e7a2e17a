"""Hosts that could not be inspected: one line for all that have the same reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from breakranks.show.terminal_text import Line
from breakranks.snapshot.host_names import fold, with_name, without_name
from breakranks.snapshot.model import Host, Snapshot

_WORDS = {
    "unreachable": "unreachable",
    "refused": "refused",
    "no-python": "no Python",
    "timed-out": "timed out",
    "failed": "failed",
    "lost": "lost during the inspection",
}
# The reason for these states begins with the same words.
_IN_REASON = frozenset({"no-python"})
_NAMES_WIDTH = 60


def lost_hosts(hosts: Iterable[Host]) -> dict[tuple[str, str, str], list[str]]:
    """Return names by state, reason and remedy. Reasons that differ only in the name of the host are the same."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for host in hosts:
        if host.state != "seen":
            key = (host.state, without_name(host.reason, host.name), without_name(host.remedy, host.name))
            alike.setdefault(key, []).append(host.name)
    return {
        (state, with_name(reason, fold(names)), with_name(remedy, names[0])): names
        for (state, reason, remedy), names in alike.items()
    }


def lost_lines(hosts: Sequence[Host]) -> Iterator[Line]:
    """Yield ``n[3,7]  timed out: no answer in 10 s``, and the remedy."""
    for (state, reason, remedy), names in lost_hosts(hosts).items():
        word = _WORDS.get(state, state)
        text = f"{word}: {reason}" if reason and state not in _IN_REASON else reason or word
        yield ((hosts_text(names), "rank"), "  ", (text, "bad"))
        if remedy:
            yield ("    ", remedy)


def hosts_text(names: Sequence[str]) -> str:
    """Return folded names, or their number if they would fill the line."""
    text = fold(names)
    return text if len(text) <= _NAMES_WIDTH else f"{len(names):,} hosts"


def where_text(snapshot: Snapshot) -> str:
    """Return `` · n[1-4]`` for a header; empty for this host alone."""
    names = [host.name for host in snapshot.hosts if host.state in ("seen", "lost")]
    if not snapshot.spans_hosts:
        return ""
    lost = len(snapshot.hosts) - len(names)
    text = hosts_text(names) if len(fold(names)) <= _NAMES_WIDTH // 2 else f"{len(names):,} hosts"
    return f" · {text}" + (f" ({lost:,} more not seen)" if lost else "")
