"""Ranks that no host of a target has: why, by what each host knows of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec.structs import replace

from breakranks.rankset import RankSet
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.model import Host, Missing

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
    found: dict[Missing, RankSet] = {}

    def say(ranks: RankSet, why: Missing) -> RankSet:
        found[why] = found.get(why, RankSet()) | ranks
        return left - ranks

    for host, one in _with(told, "exited"):
        ranks = RankSet.parse(one.ranks) & left
        if ranks:
            detail = f"on {host}: {one.detail}" if one.detail else f"it ran on {host}"
            left = say(ranks, Missing("", "exited", detail, host=host))
    if left and not lost:
        left = say(*_unplaced(told, left))
    if left and lost:
        left = say(left, Missing("", "unreachable", "; ".join(reason_lines(lost))))
    for host, one in _with(told, "absent"):
        ranks = RankSet.parse(one.ranks) & left if left and one.not_started else RankSet()
        if ranks:
            left = say(ranks, Missing("", "absent", f"{one.detail} (on {host})", not_started=True))
    if left:
        nowhere = any(True for _ in _with(told, "absent"))
        guessed = any(one.guessed for _, one in _with(told, "absent"))
        detail = (
            "on a host that is not in the target, or exited: nothing tells" if guessed else "" if nowhere else _NOT_OURS
        )
        say(left, Missing("", "absent" if nowhere else "elsewhere", detail, guessed=guessed))
    ordered = sorted(found.items(), key=lambda item: (item[0].reason, item[0].detail))
    return tuple(replace(why, ranks=str(ranks)) for why, ranks in ordered if ranks)


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


def never_seen(hosts: Iterable[Host]) -> list[Host]:
    """Hosts of the target that nothing is known of."""
    return [host for host in hosts if host.state not in ("seen", "lost")]


def reasons(hosts: Iterable[Host]) -> dict[str, list[str]]:
    """Hosts by what was the matter with them."""
    alike: dict[str, list[str]] = {}
    for host in hosts:
        alike.setdefault(host.reason or host.state.replace("-", " "), []).append(host.name)
    return alike


def reason_lines(hosts: Iterable[Host]) -> list[str]:
    """``n[3,7]: timed out``: hosts folded by what was the matter with them."""
    return [f"{fold(names)}: {reason}" for reason, names in reasons(hosts).items()]


def _with(told: Sequence[tuple[str, Sequence[Missing]]], reason: str) -> Iterable[tuple[str, Missing]]:
    return ((host, one) for host, part in told for one in part if one.reason == reason)


def _all(told: Sequence[tuple[str, Sequence[Missing]]]) -> RankSet:
    found = RankSet()
    for _, part in told:
        for one in part:
            found |= RankSet.parse(one.ranks)
    return found


def _unplaced(told: Sequence[tuple[str, Sequence[Missing]]], left: RankSet) -> tuple[RankSet, Missing]:
    """Hosts that know how many of their ranks have exited, not which: if those are all that are left, it is they."""
    counts = {host: one.exited for host, one in _with(told, "elsewhere") if one.exited}
    if not counts or sum(counts.values()) != len(left):
        return RankSet(), Missing("", "exited")
    if len(counts) == 1:
        (host,) = counts
        return left, Missing("", "exited", f"{'it' if len(left) == 1 else 'they'} ran on {host}", host=host)
    return left, Missing("", "exited", ", ".join(f"{count} on {host}" for host, count in counts.items()))
