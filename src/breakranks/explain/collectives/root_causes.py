"""Roots and rings of the wait-for graph: each is a cause, with the ranks that it blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from breakranks.explain.collectives.collective_progress import CallMismatch, CollectiveProgress, PendingCall
from breakranks.rankset import RankSet

MISSING, MISMATCH, ORDER, P2P, STALLED = (
    "missing-from-collective",
    "collective-mismatch",
    "collective-order-deadlock",
    "p2p-deadlock",
    "collective-stalled",
)


class WaitLayer(NamedTuple):
    """Ranks of one layer that wait in calls of the same kind, and for which ranks. ``depth`` 1 waits for the
    culprits."""

    depth: int
    ranks: RankSet
    waits_for: RankSet
    waits: tuple[PendingCall, ...]  # one for each group


class RootCause(NamedTuple):
    """Why ranks are blocked. ``wait`` is the call that most of the ranks are in that wait for the culprits directly."""

    kind: str
    culprits: RankSet
    victims: RankSet
    wait: PendingCall | None = None
    steps: tuple[WaitLayer, ...] = ()
    mismatch: CallMismatch | None = None
    # Each side of a ring, and its call. It waits for the next side, and the last side for the first.
    ring: tuple[tuple[RankSet, PendingCall], ...] = ()


def causes(progress: CollectiveProgress) -> list[RootCause]:
    """Return every independent cause, the one with the most victims first."""
    edges = progress.edges()
    awaited = RankSet()
    for others in edges.values():
        awaited |= others
    found = []
    cores = RankSet()
    for mismatch in progress.mismatches:
        core = RankSet(
            rank
            for rank, waits in progress.waits.items()
            if any(w.group == mismatch.group and not w.is_transfer and w.entry.number >= mismatch.number for w in waits)
        )
        found.append(_mismatch(mismatch, core, edges, progress))
        cores |= core
    waiting = RankSet(rank for rank, others in edges.items() if others)
    stalled = RankSet(edges) - waiting - cores
    roots = awaited - waiting - cores - stalled
    for culprits, wait in _grouped(progress, roots):
        steps = _steps(progress, edges, culprits)
        found.append(RootCause(kind=MISSING, culprits=culprits, victims=_all(steps), wait=wait, steps=steps))
    lonely = _alone(progress, stalled)
    if lonely is not None:
        found.append(lonely._replace(victims=_all(_steps(progress, edges, lonely.culprits)) - lonely.culprits))
        stalled -= lonely.culprits
        cores |= lonely.culprits
    for culprits, wait in _stalled_calls(progress, stalled):
        steps = _steps(progress, edges, culprits)
        found.append(RootCause(kind=STALLED, culprits=culprits, victims=_all(steps), wait=wait, steps=steps))
    ends = roots | cores | stalled
    found += _rings(progress, edges, waiting - _reach(edges, ends) - ends)
    return sorted(found, key=lambda cause: _order(progress, cause))


def _order(progress: CollectiveProgress, cause: RootCause) -> tuple[bool, bool, int, int]:
    """Return the sort key of causes: inspected culprits first, then the most victims."""
    return (
        cause.kind == STALLED,
        not cause.culprits <= progress.known,
        -len(cause.victims),
        cause.culprits.first,
    )


def sides_of(cause: RootCause) -> RankSet:
    """Return every rank of a ring."""
    found = RankSet()
    for ranks, _ in cause.ring:
        found |= ranks
    return found


def _rings(progress: CollectiveProgress, edges: dict[int, RankSet], among: RankSet) -> Iterator[RootCause]:
    """Yield the rings among ranks that wait only for each other."""
    while among:
        ring = _ring(edges, among)
        if not ring:
            return
        calls = [(rank, progress.head(rank)) for rank in ring]
        sides = tuple(_side(progress, calls, index) for index in range(len(calls)))
        members = RankSet()
        for ranks, _ in sides:
            members |= ranks
        steps = _steps(progress, edges, members)
        kind = P2P if all(wait.is_transfer for _, wait in calls) else ORDER
        culprits = _smaller(sides) or members
        yield RootCause(
            kind=kind,
            culprits=culprits,
            victims=(_all(steps) | members) - culprits,
            wait=None,
            steps=steps,
            mismatch=None,
            ring=sides,
        )
        among -= _reach(edges, members) | members


def _side(
    progress: CollectiveProgress, calls: list[tuple[int, PendingCall]], index: int
) -> tuple[RankSet, PendingCall]:
    """Return a rank of a ring, with the other ranks that are in the same call and that the one before waits for too."""
    rank, wait = calls[index]
    _, before = calls[index - 1]
    if wait.is_transfer:
        return RankSet([rank]), wait
    wanted = before.others
    same = [other for other in wanted if other in progress.waits and _same(progress.head(other), wait)]
    return RankSet([rank, *same]), wait


def _smaller(sides: tuple[tuple[RankSet, PendingCall], ...]) -> RankSet | None:
    """Return the smaller of two sides, if they differ in size: it is more likely that a few ranks are wrong than that
    many are."""
    if len(sides) != 2 or len(sides[0][0]) == len(sides[1][0]):
        return None
    return min(sides, key=lambda side: len(side[0]))[0]


def _same(wait: PendingCall, other: PendingCall) -> bool:
    return not wait.is_transfer and (wait.group, wait.entry.number) == (other.group, other.entry.number)


def _mismatch(
    mismatch: CallMismatch, core: RankSet, edges: dict[int, RankSet], progress: CollectiveProgress
) -> RootCause:
    sides = sorted(mismatch.sides, key=lambda side: len(side[0]))
    tie = len(sides[-1][0]) == len(sides[-2][0])
    culprits = mismatch.ranks if tie else mismatch.ranks - sides[-1][0]
    steps = _steps(progress, edges, core)
    return RootCause(
        kind=MISMATCH,
        culprits=culprits,
        victims=(_all(steps) | core) - culprits,
        wait=None,
        steps=steps,
        mismatch=mismatch,
    )


def _grouped(progress: CollectiveProgress, roots: RankSet) -> list[tuple[RankSet, PendingCall]]:
    """Return the roots, grouped by the call that they are missing from: each group is one cause."""
    calls: dict[tuple[int, int, int], PendingCall] = {}
    began: dict[tuple[int, int, int], float] = {}
    missing: dict[int, dict[tuple[int, int, int], int]] = {}
    for rank in progress.waits:
        wait = progress.head(rank)
        key = (wait.group, wait.entry.number, rank if wait.is_transfer else -1)
        for root in wait.others & roots:
            calls.setdefault(key, wait)
            began[key] = min(began.get(key, wait.entry.created), wait.entry.created)
            mine = missing.setdefault(root, {})
            mine[key] = mine.get(key, 0) + 1
    found: dict[tuple[int, int, int], list[int]] = {}
    for root, keys in missing.items():
        # The call with the earliest wait is the one that it should have entered first.
        best = min(keys, key=lambda key: (began[key], -keys[key], key))
        found.setdefault(best, []).append(root)
    return [(RankSet(ranks), calls[key]) for key, ranks in found.items()]


def _alone(progress: CollectiveProgress, stalled: RankSet) -> RootCause | None:
    """Return ranks that are each alone in a group of which no other member is known, as one cause.

    gloo's dumps do not name members, and a rank that never made a call in a group leaves no trace of it. If there are
    several such ranks, they probably wait for each other.
    """
    sides = []
    for rank in stalled:
        head = progress.head(rank)
        alone = progress.group(head.group).source == "seen" and progress.members[head.group] == RankSet([rank])
        if alone and not head.is_transfer:
            sides.append((RankSet([rank]), head))
    if len(sides) < 2:
        return None
    return RootCause(
        kind=ORDER, culprits=RankSet(side[0].first for side in sides), victims=RankSet(), ring=tuple(sides)
    )


def _stalled_calls(progress: CollectiveProgress, stalled: RankSet) -> list[tuple[RankSet, PendingCall]]:
    """Return calls that all their members are in, and that do not complete."""
    found: dict[tuple[int, int], tuple[PendingCall, list[int]]] = {}
    for rank in stalled:
        head = progress.head(rank)
        if not head.is_transfer and not progress.unclear(head):
            found.setdefault((head.group, head.entry.number), (head, []))[1].append(rank)
    return [(RankSet(ranks), wait) for wait, ranks in found.values()]


def _reach(edges: dict[int, RankSet], goals: RankSet) -> RankSet:
    """Return the ranks that wait for one of these, directly or through others."""
    found = goals
    left = [(rank, others) for rank, others in edges.items() if rank not in goals]
    while True:
        more = [rank for rank, others in left if others & found]
        if not more:
            return found - goals
        found |= RankSet(more)
        left = [(rank, others) for rank, others in left if rank not in found]


def _steps(progress: CollectiveProgress, edges: dict[int, RankSet], culprits: RankSet) -> tuple[WaitLayer, ...]:
    """Return the layers of waiting ranks, from those that wait for the culprits outwards."""
    steps: list[WaitLayer] = []
    before = found = culprits
    depth = 0
    left = [(rank, others) for rank, others in edges.items() if rank not in culprits]
    while left:
        depth += 1
        layer = [rank for rank, others in left if others & before]
        if not layer:
            break
        kinds: dict[tuple[str, str, int], list[tuple[int, PendingCall]]] = {}
        for rank in layer:
            wait = progress.head(rank)
            kinds.setdefault(_kind(progress, wait), []).append((rank, wait))
        for pairs in kinds.values():
            waits: dict[tuple[int, int], PendingCall] = {}
            others = RankSet()
            for _, wait in pairs:
                waits.setdefault((wait.group, wait.entry.number), wait)
                others |= wait.others & before
            steps.append(WaitLayer(depth, RankSet(rank for rank, _ in pairs), others, tuple(waits.values())))
        before = RankSet(layer)
        found |= before
        left = [(rank, others) for rank, others in left if rank not in found]
    return tuple(steps)


def _kind(progress: CollectiveProgress, wait: PendingCall) -> tuple[str, str, int]:
    group = progress.group(wait.group)
    return (group.description or group.name, progress.name(wait.entry.operation), wait.peer if wait.is_transfer else -1)


def _all(steps: tuple[WaitLayer, ...]) -> RankSet:
    found = RankSet()
    for step in steps:
        found |= step.ranks
    return found


def _ring(edges: dict[int, RankSet], among: RankSet) -> list[int]:
    """Return a shortest ring through one of these ranks: a breadth-first search from each until it comes back."""
    best: list[int] = []
    for start in list(among)[:64]:
        came: dict[int, int] = {}
        layer = [start]
        while layer and start not in came:
            following = []
            for rank in layer:
                for other in edges.get(rank, RankSet()) & among:
                    if other not in came:
                        came[other] = rank
                        following.append(other)
            layer = following
        if start not in came:
            continue
        ring = [start]
        rank = came[start]
        while rank != start:
            ring.append(rank)
            rank = came[rank]
        ring = [ring[0], *reversed(ring[1:])]
        if not best or len(ring) < len(best):
            best = ring
        if len(best) <= 2:
            break
    return best
