"""collective-mismatch, p2p-deadlock, and locks held by a rank: every rank waits for another one."""

from __future__ import annotations

from breakranks.explain import wait_chains
from breakranks.explain.actions import Advise, RunBreakranks
from breakranks.explain.causes.collective_causes import (
    AllSeenWait,
    CallSide,
    CodeDecides,
    CounterDiffers,
    DifferentPlaces,
    InTransfer,
    NoneComesOut,
    PeersWait,
)
from breakranks.explain.causes.file_causes import LockOnFile, RankHoldsLock
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY, Finding
from breakranks.explain.finding_parts import Subject, where_of
from breakranks.explain.job_view import HELD_BY_RANK, JobView, RankGroup
from breakranks.explain.rules.candidate import FindingCandidate, union, victims_evidence, waiting_place
from breakranks.explain.rules.rank_cause import MOMENT_SECONDS, PATIENCE_SECONDS, SLOW_SECONDS
from breakranks.rankset import RankSet

_SIDES = 8
_SIDES_NAMED = 4
# Arguments of a call that are ranks, not counters.
_NO_COUNTERS = ("src", "dst", "rank", "world_size")


def deadlock(job: JobView, waiting: list[RankGroup]) -> FindingCandidate | None:
    """Return the candidate for a job in which every rank waits for another one: name the cycle."""
    if not waiting:
        return None
    held = [node for node in waiting if node.reason == HELD_BY_RANK]
    pairs = [node for node in waiting if node.reason == "p2p"]
    if held:
        found = _lock_held(job, held, waiting)
    elif pairs:
        found = _p2p(job, pairs, waiting)
    else:
        found = _mismatch(job, waiting)
    if found.needs == PATIENCE_SECONDS and job.asleep() and not job.unseen:
        return found._replace(needs=MOMENT_SECONDS)
    return found


def holders(job: JobView, roots: list[RankGroup], waiting: list[RankGroup]) -> FindingCandidate | None:
    """Return the candidate for a rank that holds a lock which others wait for, and is in no special state itself."""
    free = union(roots)
    held = [node for node in waiting if node.reason == HELD_BY_RANK and node.waits & free]
    return _lock_held(job, held, waiting) if held else None


def _lock_held(job: JobView, held: list[RankGroup], waiting: list[RankGroup]) -> FindingCandidate:
    node = held[0]
    lock, holder = job.lock_holder(node.view)
    assert lock is not None and holder is not None
    ranks = RankSet([holder])
    other = job.views[holder]
    victims = union(waiting) - ranks
    finding = Finding(
        kind="lock-held",
        culprits=str(ranks),
        victims=str(victims),
        confidence=CERTAIN,
        cause=RankHoldsLock(
            path=lock.path, doing=other.doing, wanted_by=str(node.ranks), wanted_where=where_of(node.where)
        ),
        subject=job.subject(ranks),
        victims_at=waiting_place([node]),
        where=where_of(other.where),
        evidence=(
            LockOnFile(kind=lock.kind, path=lock.path, pid=lock.holder or other.process.pid),
            *victims_evidence(job, waiting),
        ),
        next=(RunBreakranks(command="stacks", args=("--rank", str(holder), "--threads")),),
        grounds=("proc-shows-holder",),
    )
    return FindingCandidate(finding=finding, needs=PATIENCE_SECONDS, culprits=ranks, victims=victims)


def _p2p(job: JobView, pairs: list[RankGroup], waiting: list[RankGroup]) -> FindingCandidate:
    """Return the candidate for ranks in sends and recvs: those on a cycle of waits are the deadlock."""
    edges = {rank: node.waits for node in waiting for rank in node.ranks}
    cycle = _cycle(edges, [rank for node in pairs for rank in node.ranks])
    ranks = RankSet(cycle) if cycle else union(pairs)
    sides = tuple(_side(job, rank) for rank in (cycle or list(ranks))[:_SIDES])
    first = job.view_of(ranks)
    if len(sides) <= _SIDES_NAMED and len({job.views[rank].where for rank in ranks}) > 1:
        cause = PeersWait(sides=sides)
    else:
        ring = (*cycle[:_SIDES], cycle[0]) if cycle else ()
        cause = PeersWait(ring=ring, op=first.activity.op, where=where_of(first.where))
    finding = Finding(
        kind="p2p-deadlock",
        culprits=str(ranks),
        victims=str(union(waiting) - ranks),
        confidence=CERTAIN if cycle and all(job.peer(job.views[r]) is not None for r in cycle) else LIKELY,
        cause=cause,
        subject=Subject(ranks=str(ranks)),
        victims_at=waiting_place(waiting),
        where=where_of(first.where),
        evidence=(*sides, *victims_evidence(job, waiting)),
        next=(RunBreakranks(command="stacks", args=("--rank", str(ranks))),),
        grounds=("peers-from-arguments" if cycle else "peers-unseen",),
    )
    return FindingCandidate(finding=finding, needs=PATIENCE_SECONDS, culprits=ranks, victims=union(waiting) - ranks)


def _side(job: JobView, rank: int) -> InTransfer:
    view = job.views[rank]
    return InTransfer(rank=rank, op=view.activity.op, peer=job.peer(view), where=where_of(view.where))


def _cycle(edges: dict[int, RankSet], starts: list[int]) -> list[int]:
    """Return a short cycle: from each start, follow the first rank that it waits for."""
    for start in starts:
        path: list[int] = []
        position: dict[int, int] = {}
        rank = start
        while rank in edges and rank not in position and edges[rank]:
            position[rank] = len(path)
            path.append(rank)
            waits = edges[rank]
            back = next((r for r in path if r in waits and r != rank), None)
            rank = back if back is not None and len(waits) > 1 else waits.first
        if rank in position:
            return path[position[rank] :]
    return []


def _mismatch(job: JobView, waiting: list[RankGroup]) -> FindingCandidate:
    """Return the candidate for ranks that are all in a collective, but not in the same one."""
    nodes = sorted(waiting, key=lambda node: len(node.ranks))
    everyone = union(waiting)
    if job.unseen - job.gone:
        return _elsewhere(job, waiting, everyone)
    if len(nodes) == 1:
        return _same_place(job, nodes[0])
    largest = nodes[-1]
    tie = len(nodes) > 1 and len(nodes[-2].ranks) == len(largest.ranks)
    culprits = everyone if tie else everyone - largest.ranks
    victims = everyone - culprits
    sides = tuple(
        CallSide(ranks=str(node.ranks), call=node.op, where=where_of(node.where))
        for node in sorted(nodes, key=lambda node: node.ranks.first)[:_SIDES_NAMED]
    )
    node = nodes[0]
    joining = {n.reason for n in nodes} == {"rendezvous"}
    finding = Finding(
        kind="rendezvous-incomplete" if joining else "collective-mismatch",
        culprits=str(culprits),
        victims=str(victims),
        confidence=LIKELY,
        cause=DifferentPlaces(of=_apart(nodes), sides=sides),
        subject=job.subject(culprits),
        victims_at=waiting_place([largest]),
        where=where_of(node.where),
        evidence=(*victims_evidence(job, waiting), CodeDecides()),
        next=(RunBreakranks(command="stacks", args=("--rank", str(culprits))),),
        grounds=("stacks-differ",),
    )
    return FindingCandidate(finding=finding, needs=PATIENCE_SECONDS, culprits=culprits, victims=victims, mutual=True)


def _apart(nodes: list[RankGroup]) -> str:
    reasons = {node.reason for node in nodes}
    if reasons == {"rendezvous"}:
        return "rendezvous"
    return "collectives" if reasons == {"collective"} else ""


def _elsewhere(job: JobView, waiting: list[RankGroup], everyone: RankSet) -> FindingCandidate:
    culprits = job.unseen - job.gone
    finding = Finding(
        kind="missing-from-collective",
        culprits=str(culprits),
        victims=str(everyone),
        confidence=GUESS,
        cause=AllSeenWait(count=len(everyone), at=waiting_place(waiting), unseen=str(culprits)),
        subject=job.subject(culprits),
        victims_at=waiting_place(waiting),
        where=None,
        evidence=victims_evidence(job, waiting),
        next=(Advise(what="name-hosts" if job.several else "why-on-hosts"),),
        grounds=("not-looked-at",),
    )
    return FindingCandidate(finding=finding, needs=PATIENCE_SECONDS, culprits=culprits, victims=everyone)


def _same_place(job: JobView, node: RankGroup) -> FindingCandidate:
    """Return the candidate for ranks that are all in one collective at one line and do not move: they disagree in
    something that cannot be seen from outside."""
    behind, differs = _counters(job, node.ranks)
    joining = node.reason == "rendezvous"
    culprits = behind or node.ranks
    finding = Finding(
        kind="rendezvous-incomplete" if joining else "collective-mismatch",
        culprits=str(culprits),
        victims=str(node.ranks - culprits),
        confidence=LIKELY if behind else GUESS,
        cause=NoneComesOut(count=len(node.ranks), doing=node.view.doing, differs=differs),
        subject=job.subject(culprits),
        victims_at=waiting_place([node]),
        where=where_of(node.where),
        evidence=(*((differs,) if differs is not None else ()), *victims_evidence(job, [node])),
        next=(RunBreakranks(command="stacks", args=("--native", "--threads")),),
        grounds=("counters-differ" if behind else "stacks-alone",),
    )
    return FindingCandidate(
        finding=finding,
        needs=SLOW_SECONDS if not behind else PATIENCE_SECONDS,
        culprits=culprits,
        victims=node.ranks - culprits,
        mutual=True,
    )


def _counters(job: JobView, ranks: RankSet) -> tuple[RankSet, CounterDiffers | None]:
    """Return the ranks whose own loop counter is behind that of the others, if their frames have one."""
    said = {rank: wait_chains.counters(job.ranks[rank].process) for rank in ranks}
    found_behind, differs = wait_chains.behind(said)
    if found_behind:
        return found_behind, differs
    values: dict[str, dict[int, list[int]]] = {}
    for rank in ranks:
        thread = job.views[rank].thread
        for name, text in (thread.hints if thread is not None else {}).items():
            if text.lstrip("-").isdigit() and name.rsplit(".", 1)[-1] not in _NO_COUNTERS:
                values.setdefault(name, {}).setdefault(int(text), []).append(rank)
    for name, found in values.items():
        if len(found) > 1 and sum(map(len, found.values())) == len(ranks):
            return RankSet(found[min(found)]), wait_chains.differs(name.rsplit(".", 1)[-1], found)
    return RankSet(), None
