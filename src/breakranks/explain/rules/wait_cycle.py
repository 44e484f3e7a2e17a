"""collective-mismatch, p2p-deadlock, and locks that one rank holds against others: everybody waits for somebody."""

from __future__ import annotations

from breakranks.explain import introspected, phrases
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY, Finding
from breakranks.explain.job_view import HELD_BY_RANK, JobView, RankGroup
from breakranks.explain.rules.candidate import Candidate, doing, union, victims_evidence, waiting_place
from breakranks.explain.rules.rank_cause import MOMENT_SECONDS, PATIENCE_SECONDS, SLOW_SECONDS
from breakranks.rankset import RankSet, ranks_text


def deadlock(case: JobView, waiting: list[RankGroup]) -> Candidate | None:
    """Everybody waits for somebody: name the cycle."""
    if not waiting:
        return None
    held = [node for node in waiting if node.reason == HELD_BY_RANK]
    pairs = [node for node in waiting if node.reason == "p2p"]
    if held:
        found = _lock_held(case, held, waiting)
    elif pairs:
        found = _p2p(case, pairs, waiting)
    else:
        found = _mismatch(case, waiting)
    if found.needs == PATIENCE_SECONDS and case.asleep() and not case.unseen:
        return found._replace(needs=MOMENT_SECONDS)
    return found


def holders(case: JobView, roots: list[RankGroup], waiting: list[RankGroup]) -> Candidate | None:
    """A rank that holds a lock which others wait for, and does something of no special meaning meanwhile."""
    free = union(roots)
    held = [node for node in waiting if node.reason == HELD_BY_RANK and node.waits & free]
    return _lock_held(case, held, waiting) if held else None


def _lock_held(case: JobView, held: list[RankGroup], waiting: list[RankGroup]) -> Candidate:
    node = held[0]
    lock, holder = case.lock_holder(node.look)
    assert lock is not None and holder is not None
    ranks = RankSet([holder])
    other = case.looks[holder]
    victims = union(waiting) - ranks
    finding = Finding(
        kind="lock-held",
        culprits=str(ranks),
        victims=str(victims),
        confidence=CERTAIN,
        summary=f"{case.who(ranks)} holds the lock {lock.path} while it is {doing(other)} "
        f"in {phrases.place(other.where)}; "
        f"{ranks_text(node.ranks)} want{'s' if len(node.ranks) == 1 else ''} it, in {phrases.place(node.where)}",
        where=phrases.where(other.where),
        evidence=(
            f"{lock.kind} lock on {lock.path}, held by process {lock.holder or other.process.pid}",
            *victims_evidence(case, waiting),
        ),
        next=(f"breakranks stacks --rank {holder} --threads",),
        because="/proc shows who has the file",
        victims_where=waiting_place([node]),
    )
    return Candidate(finding=finding, needs=PATIENCE_SECONDS, culprits=ranks, victims=victims)


def _p2p(case: JobView, pairs: list[RankGroup], waiting: list[RankGroup]) -> Candidate:
    """Follow who waits for whom from each rank in a send or recv; the ranks on a cycle are the deadlock."""
    edges = {rank: node.waits for node in waiting for rank in node.ranks}
    cycle = _cycle(edges, [rank for node in pairs for rank in node.ranks])
    ranks = RankSet(cycle) if cycle else union(pairs)
    sides = [_side(case, rank) for rank in (cycle or list(ranks))[:8]]
    chain = " → ".join(map(str, [*cycle[:8], cycle[0]])) if cycle else str(ranks)
    first = case.look_of(ranks)
    if len(sides) <= 4 and len({case.looks[rank].where for rank in ranks}) > 1:
        text = f"{ranks_text(ranks)} wait for each other: {phrases.listed(sides)}"
    else:
        text = f"{ranks_text(ranks)} wait for each other ({chain}): {first.activity.op} in {phrases.place(first.where)}"
    finding = Finding(
        kind="p2p-deadlock",
        culprits=str(ranks),
        victims=str(union(waiting) - ranks),
        confidence=CERTAIN if cycle and all(case.peer(case.looks[r]) is not None for r in cycle) else LIKELY,
        summary=text,
        where=phrases.where(first.where),
        evidence=(*sides, *victims_evidence(case, waiting)),
        next=(f"breakranks stacks --rank {ranks}",),
        because="each one's peer is read from its own arguments" if cycle else "the peers cannot be seen from outside",
        victims_where=waiting_place(waiting),
    )
    return Candidate(finding=finding, needs=PATIENCE_SECONDS, culprits=ranks, victims=union(waiting) - ranks)


def _side(case: JobView, rank: int) -> str:
    """``rank 0 in recv from 1 (collect, a.py:10)``"""
    one = case.looks[rank]
    peer = case.peer(one)
    what = one.activity.op
    if peer is not None:
        what += f" {'from' if 'recv' in what else 'to'} {peer}"
    return f"rank {rank} in {what} ({phrases.place(one.where)})"


def _cycle(edges: dict[int, RankSet], starts: list[int]) -> list[int]:
    """A shortest-looking cycle: from each start follow the first rank that it waits for."""
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


def _mismatch(case: JobView, waiting: list[RankGroup]) -> Candidate:
    """All are in a collective, and not in the same one."""
    nodes = sorted(waiting, key=lambda node: len(node.ranks))
    everyone = union(waiting)
    if case.unseen - case.gone:
        return _elsewhere(case, waiting, everyone)
    if len(nodes) == 1:
        return _same_place(case, nodes[0])
    largest = nodes[-1]
    tie = len(nodes) > 1 and len(nodes[-2].ranks) == len(largest.ranks)
    culprits = everyone if tie else everyone - largest.ranks
    victims = everyone - culprits
    sides = phrases.listed(
        [
            f"{ranks_text(n.ranks)} in {n.op} ({phrases.place(n.where)})"
            for n in sorted(nodes, key=lambda n: n.ranks.first)[:4]
        ]
    )
    node = nodes[0]
    joining = {n.reason for n in nodes} == {"rendezvous"}
    finding = Finding(
        kind="rendezvous-incomplete" if joining else "collective-mismatch",
        culprits=str(culprits),
        victims=str(victims),
        confidence=LIKELY,
        summary=f"the ranks {_apart(nodes)}: {sides}",
        where=phrases.where(node.where),
        evidence=(*victims_evidence(case, waiting), "which side is wrong the code decides: fewer ranks are not proof"),
        next=(f"breakranks stacks --rank {culprits}",),
        because="their stacks show different operations or call sites, and none moves",
        victims_where=waiting_place([largest]),
    )
    return Candidate(finding=finding, needs=PATIENCE_SECONDS, culprits=culprits, victims=victims, mutual=True)


def _apart(nodes: list[RankGroup]) -> str:
    reasons = {node.reason for node in nodes}
    if reasons == {"rendezvous"}:
        return "are at different places of the rendezvous"
    return "are in different collectives" if reasons == {"collective"} else "wait in different places"


def _elsewhere(case: JobView, waiting: list[RankGroup], everyone: RankSet) -> Candidate:
    culprits = case.unseen - case.gone
    finding = Finding(
        kind="missing-from-collective",
        culprits=str(culprits),
        victims=str(everyone),
        confidence=GUESS,
        summary=f"all {len(everyone)} ranks here wait in {waiting_place(waiting)}; {ranks_text(culprits)} "
        f"{'is' if len(culprits) == 1 else 'are'} on other hosts and could not be seen",
        where=None,
        evidence=victims_evidence(case, waiting),
        next=(
            "name all hosts of the job in the target"
            if case.several
            else "run breakranks why on all hosts of the job: breakranks why ssh:HOSTS",
        ),
        because="the ranks that are missing were not looked at",
        victims_where=waiting_place(waiting),
    )
    return Candidate(finding=finding, needs=PATIENCE_SECONDS, culprits=culprits, victims=everyone)


def _same_place(case: JobView, node: RankGroup) -> Candidate:
    """All in one collective at one line, and none moves: they disagree in what cannot be seen from outside."""
    behind, detail = _counters(case, node.ranks)
    joining = node.reason == "rendezvous"
    culprits = behind or node.ranks
    finding = Finding(
        kind="rendezvous-incomplete" if joining else "collective-mismatch",
        culprits=str(culprits),
        victims=str(node.ranks - culprits),
        confidence=LIKELY if behind else GUESS,
        summary=f"all {len(node.ranks)} ranks are {node.look.activity.phrase} in {phrases.place(node.where)} "
        "and none comes out"
        + (f"; {detail}" if detail else ": sizes, groups or the number of calls differ, or the network is cut"),
        where=phrases.where(node.where),
        evidence=(*((detail,) if detail else ()), *victims_evidence(case, [node])),
        next=("breakranks stacks --native --threads",),
        because="loop counters differ" if behind else "stacks alone cannot tell",
        victims_where=waiting_place([node]),
    )
    return Candidate(
        finding=finding,
        needs=SLOW_SECONDS if not behind else PATIENCE_SECONDS,
        culprits=culprits,
        victims=node.ranks - culprits,
        mutual=True,
    )


def _counters(case: JobView, ranks: RankSet) -> tuple[RankSet, str]:
    """Ranks whose own loop counter is behind the others', if the frames have one."""
    said = {rank: introspected.counters(case.ranks[rank].process) for rank in ranks}
    found_behind, detail = introspected.behind(said)
    if found_behind:
        return found_behind, detail
    values: dict[str, dict[int, list[int]]] = {}
    for rank in ranks:
        thread = case.looks[rank].thread
        for name, text in (thread.hints if thread is not None else {}).items():
            if text.lstrip("-").isdigit() and name.rsplit(".", 1)[-1] not in ("src", "dst", "rank", "world_size"):
                values.setdefault(name, {}).setdefault(int(text), []).append(rank)
    for name, found in values.items():
        if len(found) > 1 and sum(map(len, found.values())) == len(ranks):
            parts = [f"{n} on {ranks_text(RankSet(r))}" for n, r in sorted(found.items())[:4]]
            return RankSet(found[min(found)]), f"{name.rsplit('.', 1)[-1]} is {phrases.listed(parts)}"
    return RankSet(), ""
