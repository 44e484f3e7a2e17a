"""Ranks that no host of a target has, and why, from what each host knows of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from breakranks.rankset import RankSet
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.model import Host, Missing

_OUTSIDE = "not in the target"


def missing_of(
    reported: Sequence[tuple[str, Sequence[Missing]]], seen: RankSet, world: int, hosts: Sequence[Host]
) -> tuple[Missing, ...]:
    """Return the ranks that are missing from the whole job, from what each host reports as missing.

    That a rank exited is known best by the host that it ran on. Otherwise it may be on a host that could not be
    inspected, if there is one, or on a host outside the target.
    """
    lost = never_seen(hosts)
    if len(reported) < 2 and not lost:
        return tuple(missing for _, part in reported for missing in part)
    left = (RankSet.span(0, world) or _all(reported)) - seen
    if not left:
        return ()
    found: dict[Missing, RankSet] = {}

    def add(ranks: RankSet, why: Missing) -> RankSet:
        found[why] = found.get(why, RankSet()) | ranks
        return left - ranks

    for host, entry in _with(reported, "exited"):
        ranks = RankSet.parse(entry.ranks) & left
        if ranks:
            detail = f"on {host}: {entry.detail}" if entry.detail else f"it ran on {host}"
            left = add(ranks, Missing(ranks="", reason="exited", detail=detail, host=host))
    if left and not lost:
        left = add(*_unplaced(reported, left))
    if left and lost:
        left = add(left, Missing(ranks="", reason="unreachable", detail="; ".join(reason_lines(lost))))
    for host, entry in _with(reported, "absent"):
        ranks = RankSet.parse(entry.ranks) & left if left and entry.not_started else RankSet()
        if ranks:
            left = add(
                ranks, Missing(ranks="", reason="absent", detail=f"{entry.detail} (on {host})", not_started=True)
            )
    if left:
        nowhere = any(True for _ in _with(reported, "absent"))
        guessed = any(missing.guessed for _, missing in _with(reported, "absent"))
        detail = "on a host that is not in the target, or exited" if guessed else "" if nowhere else _OUTSIDE
        add(left, Missing(ranks="", reason="absent" if nowhere else "elsewhere", detail=detail, guessed=guessed))
    ordered = sorted(found.items(), key=lambda item: (item[0].reason, item[0].detail))
    return tuple(replace(why, ranks=str(ranks)) for why, ranks in ordered if ranks)


def missing_since(
    known: Sequence[Missing], places: Mapping[int, str], seen: RankSet, looked_at: Set[str], hosts: Sequence[Host]
) -> tuple[Missing, ...]:
    """Return the missing ranks: those that were ``known`` to be missing before the inspection, and those of hosts that
    were lost before anything was seen of them."""
    found = [replace(missing, ranks=str(RankSet.parse(missing.ranks) - seen)) for missing in known]
    lost = {host.name: host for host in never_seen(hosts) if host.name not in looked_at}
    gone: dict[str, list[int]] = {}
    for rank, name in places.items() if lost else ():
        if name in lost:
            gone.setdefault(reason_lines([lost[name]])[0], []).append(rank)
    found += [Missing(ranks=str(RankSet(ranks)), reason="unreachable", detail=reason) for reason, ranks in gone.items()]
    return tuple(missing for missing in found if missing.ranks)


def never_seen(hosts: Iterable[Host]) -> list[Host]:
    """Return the hosts of the target of which nothing is known."""
    return [host for host in hosts if host.state not in ("seen", "lost")]


def reasons(hosts: Iterable[Host]) -> dict[str, list[str]]:
    """Return the hosts by the reason why they could not be inspected."""
    alike: dict[str, list[str]] = {}
    for host in hosts:
        alike.setdefault(host.reason or host.state.replace("-", " "), []).append(host.name)
    return alike


def reason_lines(hosts: Iterable[Host]) -> list[str]:
    """Return ``n[3,7]: timed out``: hosts folded by reason."""
    return [f"{fold(names)}: {reason}" for reason, names in reasons(hosts).items()]


def _with(reported: Sequence[tuple[str, Sequence[Missing]]], reason: str) -> Iterable[tuple[str, Missing]]:
    return ((host, missing) for host, part in reported for missing in part if missing.reason == reason)


def _all(reported: Sequence[tuple[str, Sequence[Missing]]]) -> RankSet:
    found = RankSet()
    for _, part in reported:
        for missing in part:
            found |= RankSet.parse(missing.ranks)
    return found


def _unplaced(reported: Sequence[tuple[str, Sequence[Missing]]], left: RankSet) -> tuple[RankSet, Missing]:
    """Return the ranks that have exited, if hosts know only how many of their ranks have, and these are all that are
    left."""
    counts = {host: missing.exited for host, missing in _with(reported, "elsewhere") if missing.exited}
    if not counts or sum(counts.values()) != len(left):
        return RankSet(), Missing(ranks="", reason="exited")
    if len(counts) == 1:
        (host,) = counts
        return left, Missing(
            ranks="", reason="exited", detail=f"{'it' if len(left) == 1 else 'they'} ran on {host}", host=host
        )
    return left, Missing(
        ranks="", reason="exited", detail=", ".join(f"{count} on {host}" for host, count in counts.items())
    )
