"""collective-mismatch, p2p-deadlock, and locks that one rank holds against others: everybody waits for somebody."""

from __future__ import annotations

from breakranks.explain import inside, words
from breakranks.explain.case import HELD_BY_RANK, Case, Node
from breakranks.explain.model import CERTAIN, GUESS, LIKELY, Finding
from breakranks.explain.rules.proposal import Proposal, doing, union, victims_evidence, waiting_place
from breakranks.explain.rules.reason import MOMENT, PATIENCE, SLOW
from breakranks.rankset import RankSet, ranks_text


def deadlock(case: Case, waiting: list[Node]) -> Proposal | None:
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
    if found.needs == PATIENCE and case.asleep() and not case.unseen:
        return found._replace(needs=MOMENT)
    return found


def holders(case: Case, roots: list[Node], waiting: list[Node]) -> Proposal | None:
    """A rank that holds a lock which others wait for, and does something of no special meaning meanwhile."""
    free = union(roots)
    held = [node for node in waiting if node.reason == HELD_BY_RANK and node.waits & free]
    return _lock_held(case, held, waiting) if held else None


def _lock_held(case: Case, held: list[Node], waiting: list[Node]) -> Proposal:
    node = held[0]
    lock, holder = case.lock_holder(node.look)
    assert lock is not None and holder is not None
    ranks = RankSet([holder])
    other = case.looks[holder]
    victims = union(waiting) - ranks
    finding = Finding(
        "lock-held",
        str(ranks),
        str(victims),
        CERTAIN,
        f"{case.who(ranks)} holds the lock {lock.path} while it is {doing(other)} in {words.place(other.where)}; "
        f"{ranks_text(node.ranks)} want{'s' if len(node.ranks) == 1 else ''} it, in {words.place(node.where)}",
        words.where(other.where),
        (
            f"{lock.kind} lock on {lock.path}, held by process {lock.holder or other.process.pid}",
            *victims_evidence(case, waiting),
        ),
        (f"breakranks stacks --rank {holder} --threads",),
        because="/proc shows who has the file",
        victims_where=waiting_place([node]),
    )
    return Proposal(finding, PATIENCE, ranks, victims)


def _p2p(case: Case, pairs: list[Node], waiting: list[Node]) -> Proposal:
    """Follow who waits for whom from each rank in a send or recv; the ranks on a cycle are the deadlock."""
    edges = {rank: node.waits for node in waiting for rank in node.ranks}
    cycle = _cycle(edges, [rank for node in pairs for rank in node.ranks])
    ranks = RankSet(cycle) if cycle else union(pairs)
    sides = [_side(case, rank) for rank in (cycle or list(ranks))[:8]]
    chain = " → ".join(map(str, [*cycle[:8], cycle[0]])) if cycle else str(ranks)
    first = case.look_of(ranks)
    if len(sides) <= 4 and len({case.looks[rank].where for rank in ranks}) > 1:
        text = f"{ranks_text(ranks)} wait for each other: {words.listed(sides)}"
    else:
        text = f"{ranks_text(ranks)} wait for each other ({chain}): {first.activity.op} in {words.place(first.where)}"
    finding = Finding(
        "p2p-deadlock",
        str(ranks),
        str(union(waiting) - ranks),
        CERTAIN if cycle and all(case.peer(case.looks[r]) is not None for r in cycle) else LIKELY,
        text,
        words.where(first.where),
        (*sides, *victims_evidence(case, waiting)),
        (f"breakranks stacks --rank {ranks}",),
        because="each one's peer is read from its own arguments" if cycle else "the peers cannot be seen from outside",
        victims_where=waiting_place(waiting),
    )
    return Proposal(finding, PATIENCE, ranks, union(waiting) - ranks)


def _side(case: Case, rank: int) -> str:
    """``rank 0 in recv from 1 (collect, a.py:10)``"""
    one = case.looks[rank]
    peer = case.peer(one)
    what = one.activity.op
    if peer is not None:
        what += f" {'from' if 'recv' in what else 'to'} {peer}"
    return f"rank {rank} in {what} ({words.place(one.where)})"


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


def _mismatch(case: Case, waiting: list[Node]) -> Proposal:
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
    sides = words.listed(
        [
            f"{ranks_text(n.ranks)} in {n.op} ({words.place(n.where)})"
            for n in sorted(nodes, key=lambda n: n.ranks.first)[:4]
        ]
    )
    node = nodes[0]
    joining = {n.reason for n in nodes} == {"rendezvous"}
    finding = Finding(
        "rendezvous-incomplete" if joining else "collective-mismatch",
        str(culprits),
        str(victims),
        LIKELY,
        f"the ranks {_apart(nodes)}: {sides}",
        words.where(node.where),
        (*victims_evidence(case, waiting), "which side is wrong the code decides: fewer ranks are not proof"),
        (f"breakranks stacks --rank {culprits}",),
        because="their stacks show different operations or call sites, and none moves",
        victims_where=waiting_place([largest]),
    )
    return Proposal(finding, PATIENCE, culprits, victims, mutual=True)


def _apart(nodes: list[Node]) -> str:
    reasons = {node.reason for node in nodes}
    if reasons == {"rendezvous"}:
        return "are at different places of the rendezvous"
    return "are in different collectives" if reasons == {"collective"} else "wait in different places"


def _elsewhere(case: Case, waiting: list[Node], everyone: RankSet) -> Proposal:
    culprits = case.unseen - case.gone
    finding = Finding(
        "missing-from-collective",
        str(culprits),
        str(everyone),
        GUESS,
        f"all {len(everyone)} ranks here wait in {waiting_place(waiting)}; {ranks_text(culprits)} "
        f"{'is' if len(culprits) == 1 else 'are'} on other hosts and could not be seen",
        None,
        victims_evidence(case, waiting),
        (
            "name all hosts of the job in the target"
            if case.several
            else "run breakranks why on all hosts of the job: breakranks why ssh:HOSTS",
        ),
        because="the ranks that are missing were not looked at",
        victims_where=waiting_place(waiting),
    )
    return Proposal(finding, PATIENCE, culprits, everyone)


def _same_place(case: Case, node: Node) -> Proposal:
    """All in one collective at one line, and none moves: they disagree in what cannot be seen from outside."""
    behind, detail = _counters(case, node.ranks)
    joining = node.reason == "rendezvous"
    culprits = behind or node.ranks
    finding = Finding(
        "rendezvous-incomplete" if joining else "collective-mismatch",
        str(culprits),
        str(node.ranks - culprits),
        LIKELY if behind else GUESS,
        f"all {len(node.ranks)} ranks are {node.look.activity.phrase} in {words.place(node.where)} and none comes out"
        + (f"; {detail}" if detail else ": sizes, groups or the number of calls differ, or the network is cut"),
        words.where(node.where),
        (*((detail,) if detail else ()), *victims_evidence(case, [node])),
        ("breakranks stacks --native --threads",),
        because="loop counters differ" if behind else "stacks alone cannot tell",
        victims_where=waiting_place([node]),
    )
    return Proposal(finding, SLOW if not behind else PATIENCE, culprits, node.ranks - culprits, mutual=True)


def _counters(case: Case, ranks: RankSet) -> tuple[RankSet, str]:
    """Ranks whose own loop counter is behind the others', if the frames have one."""
    said = {rank: inside.counters(case.ranks[rank].process) for rank in ranks}
    found_behind, detail = inside.behind(said)
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
            return RankSet(found[min(found)]), f"{name.rsplit('.', 1)[-1]} is {words.listed(parts)}"
    return RankSet(), ""
