"""Hosts that could not be looked at: one line for all that have the same reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from breakranks.show.terminal_text import Line
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.model import Host, Snapshot

_WORDS = {
    "unreachable": "unreachable",
    "refused": "refused",
    "no-python": "no Python",
    "timed-out": "timed out",
    "failed": "failed",
    "lost": "lost while it was looked at",
}
_NAMES_WIDTH = 60


def lost_hosts(hosts: Iterable[Host]) -> dict[tuple[str, str, str], list[str]]:
    """Names by state, reason and remedy. A reason that only the host's own name sets apart is the same."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for host in hosts:
        if host.state != "seen":
            key = (host.state, host.reason.replace(host.name, "\0"), host.remedy.replace(host.name, "\0"))
            alike.setdefault(key, []).append(host.name)
    return {
        (state, reason.replace("\0", fold(names)), remedy.replace("\0", names[0])): names
        for (state, reason, remedy), names in alike.items()
    }


def lost_lines(hosts: Sequence[Host]) -> Iterator[Line]:
    """``n[3,7]  timed out: no answer in 10 s``, and what to do."""
    for (state, reason, remedy), names in lost_hosts(hosts).items():
        word = _WORDS.get(state, state)
        # The reason often begins with the same word.
        text = reason if reason.lower().startswith(word.lower()) else f"{word}: {reason}" if reason else word
        yield ((hosts_text(names), "rank"), "  ", (text, "bad"))
        if remedy:
            yield ("    ", remedy)


def hosts_text(names: Sequence[str]) -> str:
    """Folded names; of a set that would fill the line, how many."""
    text = fold(names)
    return text if len(text) <= _NAMES_WIDTH else f"{len(names):,} hosts"


def where_text(snapshot: Snapshot) -> str:
    """`` · n[1-4]`` for a header, when it is not this one."""
    names = [host.name for host in snapshot.hosts if host.state in ("seen", "lost")]
    if not snapshot.remote_ranks:
        return ""
    lost = len(snapshot.hosts) - len(names)
    text = hosts_text(names) if len(fold(names)) <= _NAMES_WIDTH // 2 else f"{len(names):,} hosts"
    return f" · {text}" + (f" ({lost:,} more not seen)" if lost else "")
