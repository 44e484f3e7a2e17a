"""Ranks that no host of a target has: why, by what each host knows of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec.structs import replace

from breakranks.rankset import RankSet
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.model import Host, Missing

_SOME_EXITED = re.compile(r"(\d+) of them ran on this host and exited")
_NOT_OURS = "not in the target"


def missing_of(
    told: Sequence[tuple[str, Sequence[Missing]]], seen: RankSet, world: int, hosts: Sequence[Host]
) -> tuple[Missing, ...]:
    """Who is missing from the whole job, of what each host said was missing there.

    That a rank exited is known best by the host it ran on. Else it may be on a host that could not be seen, if there
    is one; else it is where nobody looked.
    """
    lost = never_seen(hosts)
    if len(told) < 2 and not lost:
        return tuple(missing for _, part in told for missing in part)
    left = (RankSet.span(0, world) or _all(told)) - seen
    if not left:
        return ()
    found: dict[tuple[str, str], RankSet] = {}

    def say(ranks: RankSet, reason: str, detail: str) -> RankSet:
        found[reason, detail] = found.get((reason, detail), RankSet()) | ranks
        return left - ranks

    for host, one in _with(told, "exited"):
        ranks = RankSet.parse(one.ranks) & left
        if ranks:
            left = say(ranks, "exited", f"on {host}: {one.detail}" if one.detail else f"it ran on {host}")
    if left and not lost:
        left = say(*_unplaced(told, left))
    if left and lost:
        left = say(left, "unreachable", "; ".join(reason_lines(lost)))
    for host, one in _with(told, "absent"):
        ranks = RankSet.parse(one.ranks) & left if left and one.detail.startswith("its launcher") else RankSet()
        if ranks:
            left = say(ranks, "absent", f"{one.detail} (on {host})")
    if left:
        nowhere = any(True for _ in _with(told, "absent"))
        guessed = any("nothing tells" in one.detail for _, one in _with(told, "absent"))
        detail = (
            "on a host that is not in the target, or exited: nothing tells" if guessed else "" if nowhere else _NOT_OURS
        )
        say(left, "absent" if nowhere else "elsewhere", detail)
    return tuple(Missing(str(ranks), reason, detail) for (reason, detail), ranks in sorted(_items(found)))


def missing_since(
    known: Sequence[Missing], places: Mapping[int, str], seen: RankSet, looked_at: Set[str], hosts: Sequence[Host]
) -> tuple[Missing, ...]:
    """Who is missing, by what was ``known`` before hosts were looked at: with the ranks of those that were lost since
    and of which nothing was seen."""
    found = [replace(one, ranks=str(RankSet.parse(one.ranks) - seen)) for one in known]
    lost = {host.name: host for host in never_seen(hosts) if host.name not in looked_at}
    gone: dict[str, list[int]] = {}
    for rank, name in places.items() if lost else ():
        if name in lost:
            gone.setdefault(reason_lines([lost[name]])[0], []).append(rank)
    found += [Missing(str(RankSet(ranks)), "unreachable", reason) for reason, ranks in gone.items()]
    return tuple(one for one in found if one.ranks)


def _items(found: dict[tuple[str, str], RankSet]) -> Iterable[tuple[tuple[str, str], RankSet]]:
    return [(key, ranks) for key, ranks in found.items() if ranks]


def never_seen(hosts: Iterable[Host]) -> list[Host]:
    """Hosts of the target that nothing is known of."""
    return [host for host in hosts if host.state not in ("seen", "lost")]


def reason_lines(hosts: Iterable[Host]) -> list[str]:
    """``n[3,7]: timed out``: hosts folded by what was the matter with them."""
    alike: dict[str, list[str]] = {}
    for host in hosts:
        alike.setdefault(host.reason or host.state.replace("-", " "), []).append(host.name)
    return [f"{fold(names)}: {reason}" for reason, names in alike.items()]


def _with(told: Sequence[tuple[str, Sequence[Missing]]], reason: str) -> Iterable[tuple[str, Missing]]:
    return ((host, one) for host, part in told for one in part if one.reason == reason)


def _all(told: Sequence[tuple[str, Sequence[Missing]]]) -> RankSet:
    found = RankSet()
    for _, part in told:
        for one in part:
            found |= RankSet.parse(one.ranks)
    return found


def _unplaced(told: Sequence[tuple[str, Sequence[Missing]]], left: RankSet) -> tuple[RankSet, str, str]:
    """Hosts that know how many of their ranks have exited, not which: if those are all that are left, it is they."""
    counts: dict[str, int] = {}
    for host, one in _with(told, "elsewhere"):
        match = _SOME_EXITED.match(one.detail)
        if match is not None:
            counts[host] = int(match[1])
    if not counts or sum(counts.values()) != len(left):
        return RankSet(), "exited", ""
    if len(counts) == 1:
        return left, "exited", f"{'it' if len(left) == 1 else 'they'} ran on {next(iter(counts))}"
    return left, "exited", ", ".join(f"{count} on {host}" for host, count in counts.items())
