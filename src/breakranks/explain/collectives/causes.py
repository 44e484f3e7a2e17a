"""Roots and rings of the wait-for graph, each a cause with those that it holds up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from breakranks.explain.collectives.ledger import Ledger, Mismatch, Wait
from breakranks.rankset import RankSet

MISSING, MISMATCH, ORDER, P2P, STALLED = (
    "missing-from-collective",
    "collective-mismatch",
    "collective-order-deadlock",
    "p2p-deadlock",
    "collective-stalled",
)


class Step(NamedTuple):
    """Ranks of one layer that wait in calls of the same kind, and for whom: ``depth`` 1 waits for the culprits."""

    depth: int
    ranks: RankSet
    waits_for: RankSet
    waits: tuple[Wait, ...]  # one for each group


class Cause(NamedTuple):
    """Why ranks stand: ``wait`` is the call that most of those wait in that wait for the culprits themselves."""

    kind: str
    culprits: RankSet
    victims: RankSet
    wait: Wait | None = None
    steps: tuple[Step, ...] = ()
    mismatch: Mismatch | None = None
    ring: tuple[tuple[int, Wait], ...] = ()


def causes(ledger: Ledger) -> list[Cause]:
    """Every independent cause, the one with the most victims first."""
    edges = ledger.edges()
    awaited = RankSet()
    for others in edges.values():
        awaited |= others
    found = []
    cores = RankSet()
    for mismatch in ledger.mismatches:
        core = RankSet(
            rank
            for rank, waits in ledger.waits.items()
            if any(w.group == mismatch.group and not w.is_transfer and w.entry.number >= mismatch.number for w in waits)
        )
        found.append(_mismatch(mismatch, core, edges, ledger))
        cores |= core
    waiting = RankSet(rank for rank, others in edges.items() if others)
    behind = ledger.weak_edges()
    stalled = RankSet(edges) - waiting - cores - RankSet(behind)
    roots = awaited - waiting - cores - stalled
    for culprits, wait in _grouped(ledger, roots):
        steps = _steps(ledger, edges, culprits)
        found.append(Cause(MISSING, culprits, _all(steps), wait, steps))
    for culprits, wait in _standing(ledger, stalled):
        steps = _steps(ledger, edges, culprits)
        found.append(Cause(STALLED, culprits, _all(steps), wait, steps))
    explained = _reach(edges, roots | cores | stalled) | roots | cores
    found += _rings(ledger, edges, waiting - explained)
    found += _rings(ledger, behind, RankSet(behind) - explained)
    return sorted(found, key=lambda cause: (cause.kind == STALLED, -len(cause.victims), cause.culprits.first))


def _rings(ledger: Ledger, edges: dict[int, RankSet], among: RankSet) -> Iterator[Cause]:
    """Ranks that wait for nobody outside: there is a ring among them."""
    while among:
        ring = _ring(edges, among)
        if not ring:
            return
        members = RankSet(ring)
        steps = _steps(ledger, edges, members)
        following = (*ring[1:], ring[0])
        calls = tuple((a, _wait_for(ledger, a, RankSet([b]))) for a, b in zip(ring, following, strict=True))
        kind = P2P if all(wait.is_transfer for _, wait in calls) else ORDER
        yield Cause(kind, members, _all(steps) - members, None, steps, None, calls)
        among -= _reach(edges, members) | members


def _mismatch(mismatch: Mismatch, core: RankSet, edges: dict[int, RankSet], ledger: Ledger) -> Cause:
    sides = sorted(mismatch.sides, key=lambda side: len(side[0]))
    tie = len(sides[-1][0]) == len(sides[-2][0])
    culprits = mismatch.ranks if tie else mismatch.ranks - sides[-1][0]
    steps = _steps(ledger, edges, core)
    return Cause(MISMATCH, culprits, (_all(steps) | core) - culprits, None, steps, mismatch)


def _grouped(ledger: Ledger, roots: RankSet) -> list[tuple[RankSet, Wait]]:
    """Roots that are missing from the same call are one cause. The call is the one with the most that wait in it."""
    calls: dict[tuple[int, int, int], tuple[Wait, int]] = {}
    missing: dict[int, dict[tuple[int, int, int], int]] = {}
    for rank, waits in ledger.waits.items():
        for wait in waits:
            hit = wait.others & roots
            if not hit:
                continue
            key = (wait.group, wait.entry.number, rank if wait.is_transfer else -1)
            calls[key] = (calls[key][0] if key in calls else wait, calls[key][1] + 1 if key in calls else 1)
            for root in hit:
                mine = missing.setdefault(root, {})
                mine[key] = mine.get(key, 0) + 1
    found: dict[tuple[int, int, int], list[int]] = {}
    for root, keys in missing.items():
        # The lowest number of a group first: what comes after it waits for it too.
        best = max(keys, key=lambda key: (keys[key], -key[1]))
        found.setdefault(best, []).append(root)
    return [(RankSet(ranks), calls[key][0]) for key, ranks in found.items()]


def _standing(ledger: Ledger, stalled: RankSet) -> list[tuple[RankSet, Wait]]:
    """Calls that all their members are in, and that do not complete."""
    found: dict[tuple[int, int], tuple[Wait, list[int]]] = {}
    for rank in stalled:
        head = ledger.head(rank)
        if head is not None and not head.is_transfer:
            found.setdefault((head.group, head.entry.number), (head, []))[1].append(rank)
    return [(RankSet(ranks), wait) for wait, ranks in found.values()]


def _reach(edges: dict[int, RankSet], goals: RankSet) -> RankSet:
    """The ranks that wait for one of these, in however many steps."""
    found = goals
    left = [(rank, others) for rank, others in edges.items() if rank not in goals]
    while True:
        more = [rank for rank, others in left if others & found]
        if not more:
            return found - goals
        found |= RankSet(more)
        left = [(rank, others) for rank, others in left if rank not in found]


def _steps(ledger: Ledger, edges: dict[int, RankSet], culprits: RankSet) -> tuple[Step, ...]:
    """The chain from the culprits outwards: who waits for them, who waits for those, and so on."""
    steps: list[Step] = []
    before = found = culprits
    depth = 0
    left = [(rank, others) for rank, others in edges.items() if rank not in culprits]
    while left:
        depth += 1
        layer = [rank for rank, others in left if others & before]
        if not layer:
            break
        kinds: dict[tuple[str, str, int], list[tuple[int, Wait]]] = {}
        for rank in layer:
            wait = _wait_for(ledger, rank, before)
            kinds.setdefault(_kind(ledger, wait), []).append((rank, wait))
        for pairs in kinds.values():
            waits: dict[tuple[int, int], Wait] = {}
            others = RankSet()
            for _, wait in pairs:
                waits.setdefault((wait.group, wait.entry.number), wait)
                others |= (wait.others or wait.elsewhere) & before
            steps.append(Step(depth, RankSet(rank for rank, _ in pairs), others, tuple(waits.values())))
        before = RankSet(layer)
        found |= before
        left = [(rank, others) for rank, others in left if rank not in found]
    return tuple(steps)


def _kind(ledger: Ledger, wait: Wait) -> tuple[str, str, int]:
    group = ledger.group(wait.group)
    return (group.description or group.name, ledger.name(wait.entry.operation), wait.peer if wait.is_transfer else -1)


def _wait_for(ledger: Ledger, rank: int, others: RankSet) -> Wait:
    """The oldest call in which this rank waits for one of these."""
    return next(w for w in ledger.waits[rank] if (w.others or w.elsewhere) & others)


def _all(steps: tuple[Step, ...]) -> RankSet:
    found = RankSet()
    for step in steps:
        found |= step.ranks
    return found


def _ring(edges: dict[int, RankSet], among: RankSet) -> list[int]:
    """A shortest ring that goes through some rank of these: breadth first from each until it comes back."""
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
