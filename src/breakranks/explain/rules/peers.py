"""The rules about ranks that wait for ranks: missing-from-collective, collective-mismatch, p2p-deadlock,
rendezvous-incomplete, rank-exited, and locks that one rank holds against others."""

from __future__ import annotations

from typing import NamedTuple

from breakranks.explain import words
from breakranks.explain.case import HELD_BY_RANK, Case, Node
from breakranks.explain.look import BUSY, Look
from breakranks.explain.model import CERTAIN, GUESS, LIKELY, Finding
from breakranks.explain.rules.reason import AT_ONCE, LONG_SLEEP, MOMENT, MOVING, PATIENCE, SLOW, Reason
from breakranks.rankset import RankSet, ranks_text


class Proposal(NamedTuple):
    """A finding, with what must hold for it to count: ``needs`` seconds of standing still."""

    finding: Finding
    needs: float
    culprits: RankSet
    victims: RankSet
    samples: int = 2
    known_end: bool = False


def waiting_place(nodes: list[Node]) -> str:
    """``all_reduce, train.py:120 in step``: where most of the waiting ranks are."""
    node = max(nodes, key=lambda one: len(one.ranks))
    frame = node.where
    if frame is None:
        return node.op
    return f"{node.op}, {words.base(frame.file)}:{frame.line} in {frame.function}"


def victims_evidence(case: Case, nodes: list[Node]) -> tuple[str, ...]:
    lines = []
    for node in sorted(nodes, key=lambda one: -len(one.ranks))[:6]:
        stood = case.stands(node.ranks)
        lines.append(
            f"{ranks_text(node.ranks)} {'is' if len(node.ranks) == 1 else 'are'} {node.look.activity.phrase}, "
            f"in {words.place(node.where)}" + (f", for {words.duration(stood)}" if stood >= 1 else "")
        )
    limit = _time_limit(case, nodes)
    if limit is not None:
        lines.append(f"the operation's own timeout ends it in {words.duration(limit)}")
    return tuple(lines)


def _time_limit(case: Case, nodes: list[Node]) -> float | None:
    """gloo's worker thread waits with the group's timeout: what is left of it can be read."""
    left = []
    for node in nodes:
        for sample in node.look.process.samples[-1:]:
            for thread in sample.threads:
                if thread.name.startswith("pt_gloo") and thread.call is not None and thread.call.left is not None:
                    left.append(thread.call.left)
    return min(left, default=None)


def gone(case: Case, waiting: list[Node]) -> list[Proposal]:
    """Ranks that should be here and are not, while others wait."""
    needs = 1.0
    if not waiting:
        # No framework that we know: do all that are left stand in one place, using no CPU?
        waiting = [node for node in case.nodes if node.reason == "sleep" and not node.look.moved]
        if len(waiting) != 1 or waiting[0].ranks != case.seen or waiting[0].look.busy > 0.02:
            return []
        needs = SLOW
    victims = _union(waiting)
    only_joining = any(node.reason == "rendezvous" for node in waiting)
    found = []
    for missing in case.snapshot.missing:
        ranks = RankSet.parse(missing.ranks)
        if missing.reason not in ("exited", "absent") or not ranks:
            continue
        never = only_joining and missing.reason == "absent"
        kind = "rendezvous-incomplete" if never else "rank-exited"
        many = len(ranks) > 1
        if never:
            text = f"{ranks_text(ranks)} never came: no process here has that rank in this job"
        elif missing.reason == "exited":
            text = f"{ranks_text(ranks)} {'have' if many else 'has'} exited, and the launcher is still here"
        else:
            text = f"{ranks_text(ranks)} {'are' if many else 'is'} not on this host"
        finding = Finding(
            kind,
            str(ranks),
            str(victims),
            CERTAIN if missing.reason == "exited" else LIKELY,
            f"{text}; {_wait_for(victims, many)} in {waiting_place(waiting)}",
            None,
            (*((missing.detail,) if missing.detail else ()), *victims_evidence(case, waiting)),
            ("look at the end of its log: breakranks cannot see a process that has ended",)
            if not never
            else (
                f"start {ranks_text(ranks)}, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE",
                "breakranks ps  # one that was started with another port or world size is a job of its own there",
            ),
            because="the launcher lives and the process does not"
            if missing.reason == "exited"
            else "WORLD_SIZE counts it",
            victims_where=waiting_place(waiting),
        )
        found.append(Proposal(finding, max(needs, PATIENCE if missing.reason == "absent" else 0), ranks, victims))
    return found


def plain(case: Case, nodes: list[Node], waiting: list[Node]) -> Proposal | None:
    """Ranks that wait for nobody and have no cause of their own: they just have not come."""
    if not waiting or not nodes:
        return None
    ranks, victims = _union(nodes), _union(waiting)
    node = max(nodes, key=lambda one: (one.look.stands, len(one.ranks)))
    one = node.look
    joining = all(other.reason == "rendezvous" for other in waiting)
    place = waiting_place(waiting)
    doing = _doing(one)
    op = max(waiting, key=lambda other: len(other.ranks)).op
    kind = "rendezvous-incomplete" if joining else "missing-from-collective"
    verb = "not joined" if joining else "not entered"
    if all(other.reason == "p2p" for other in waiting):
        verb = "not answered"
    have = "has" if len(ranks) == 1 else "have"
    finding = Finding(
        kind,
        str(ranks),
        str(victims),
        _confidence(one),
        f"{case.who(ranks)} {have} {verb} {op}; {_wait_for(victims, len(ranks) > 1)}. "
        f"It is in {words.place(one.where)}, {doing}",
        words.where(one.where),
        (
            *(
                f"{ranks_text(other.ranks)} {'is' if len(other.ranks) == 1 else 'are'} in "
                f"{words.place(other.where)}, {_doing(other.look)}"
                for other in nodes[:6]
            ),
            *victims_evidence(case, waiting),
        ),
        (f"breakranks stacks --rank {ranks} --threads --native",),
        because=_because(one),
        victims_where=place,
    )
    nap = one.activity.word == "sleep" and one.left is not None and one.left <= LONG_SLEEP
    return Proposal(finding, _needs(one), ranks, victims, known_end=nap and not one.sleeps_again)


def _doing(one: Look) -> str:
    if one.activity.word == "sleep" and one.left is not None:
        return f"sleeping for another {words.duration(one.left)}" if one.left > 1 else "sleeping a moment at a time"
    stood = f" (for {words.duration(one.stands)})" if one.stands >= 1 else ""
    if one.activity.word == "unknown":
        return "its stack could not be read"
    return one.activity.phrase + stood


def _needs(one: Look) -> float:
    """A long sleep is a hang at once. A short one must be seen to end, and to begin again in the same place."""
    if one.activity.word == "sleep" and one.left is not None:
        if one.left > LONG_SLEEP:
            return AT_ONCE
        return PATIENCE if one.sleeps_again else one.stands + one.left + 0.5
    return MOVING if one.moved or one.busy >= BUSY else PATIENCE


def _confidence(one: Look) -> str:
    if one.activity.word == "unknown":
        return GUESS
    if one.activity.word == "sleep" and one.left is not None:
        return CERTAIN if one.left > LONG_SLEEP else LIKELY
    return CERTAIN if one.still and not one.moved else LIKELY


def _because(one: Look) -> str:
    if one.activity.word == "unknown":
        return "its stack could not be read"
    if one.moved or one.busy >= BUSY:
        return "it may still come: it moves"
    return "it stands, and the others wait"


def missing_too(case: Case, proposal: Proposal, waiting: list[Node]) -> Finding | None:
    """What a more precise verdict also implies: these ranks have not entered what the others wait in."""
    if not waiting or not proposal.victims or proposal.culprits & _union(waiting):
        return None
    if proposal.finding.kind in ("missing-from-collective", "rendezvous-incomplete"):
        return None
    joining = all(node.reason == "rendezvous" for node in waiting)
    op = max(waiting, key=lambda node: len(node.ranks)).op
    have = "has" if len(proposal.culprits) == 1 else "have"
    return Finding(
        "rendezvous-incomplete" if joining else "missing-from-collective",
        str(proposal.culprits),
        str(proposal.victims),
        proposal.finding.confidence,
        f"{case.who(proposal.culprits)} {have} not {'joined' if joining else 'entered'} {op}",
        proposal.finding.where,
        victims_evidence(case, waiting),
        proposal.finding.next,
    )


def with_reason(case: Case, ranks: RankSet, reason: Reason, waiting: list[Node]) -> Proposal:
    """A rank that waits for no rank, for a cause that is known."""
    victims = _union(waiting) - ranks
    tail = f"; {_wait_for(victims, len(ranks) > 1)} in {waiting_place(waiting)}" if victims else ""
    text = reason.text
    if len(ranks) > 1:
        for one, many in (
            ("is ", "are "),
            ("waits ", "wait "),
            ("has ", "have "),
            ("holds ", "hold "),
            ("runs ", "run "),
        ):
            if text.startswith(one):
                text = many + text[len(one) :]
    finding = Finding(
        reason.kind,
        str(ranks),
        str(victims),
        reason.confidence,
        f"{case.who(ranks)} {text}{tail}",
        words.where(reason.where),
        (*reason.evidence, *(victims_evidence(case, waiting) if waiting else ())),
        reason.next,
        because=reason.because,
        victims_where=waiting_place(waiting) if victims else "",
    )
    return Proposal(finding, reason.needs, ranks, victims, reason.samples)


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
    free = _union(roots)
    held = [node for node in waiting if node.reason == HELD_BY_RANK and node.waits & free]
    return _lock_held(case, held, waiting) if held else None


def _lock_held(case: Case, held: list[Node], waiting: list[Node]) -> Proposal:
    node = held[0]
    lock, holder = case.lock_holder(node.look)
    assert lock is not None and holder is not None
    ranks = RankSet([holder])
    other = case.looks[holder]
    victims = _union(waiting) - ranks
    finding = Finding(
        "lock-held",
        str(ranks),
        str(victims),
        CERTAIN,
        f"{case.who(ranks)} holds the lock {lock.path} while it is {_doing(other)} in {words.place(other.where)}; "
        f"{ranks_text(node.ranks)} want{'s' if len(node.ranks) == 1 else ''} it, in {words.place(node.where)}",
        words.where(other.where),
        (f"{lock.kind} lock on {lock.path}, held by process {lock.holder}", *victims_evidence(case, waiting)),
        (f"breakranks stacks --rank {holder} --threads",),
        because="/proc shows who has the file",
        victims_where=waiting_place([node]),
    )
    return Proposal(finding, PATIENCE, ranks, victims)


def _p2p(case: Case, pairs: list[Node], waiting: list[Node]) -> Proposal:
    """Follow who waits for whom from each rank in a send or recv; the ranks on a cycle are the deadlock."""
    edges = {rank: node.waits for node in waiting for rank in node.ranks}
    cycle = _cycle(edges, [rank for node in pairs for rank in node.ranks])
    ranks = RankSet(cycle) if cycle else _union(pairs)
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
        str(_union(waiting) - ranks),
        CERTAIN if cycle and all(case.peer(case.looks[r]) is not None for r in cycle) else LIKELY,
        text,
        words.where(first.where),
        (*sides, *victims_evidence(case, waiting)),
        (f"breakranks stacks --rank {ranks}",),
        because="each one's peer is read from its own arguments" if cycle else "the peers cannot be seen from outside",
        victims_where=waiting_place(waiting),
    )
    return Proposal(finding, PATIENCE, ranks, _union(waiting) - ranks)


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
    everyone = _union(waiting)
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
    return Proposal(finding, PATIENCE, culprits, victims)


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
        ("run breakranks why on the other hosts of the job",),
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
    return Proposal(finding, SLOW if not behind else PATIENCE, culprits, node.ranks - culprits)


def _counters(case: Case, ranks: RankSet) -> tuple[RankSet, str]:
    """Ranks whose own loop counter is behind the others', if the frames have one."""
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


def _wait_for(victims: RankSet, many: bool) -> str:
    them = "them" if many else "it"
    return f"{ranks_text(victims)} wait{'s' if len(victims) == 1 else ''} for {them}"


def _union(nodes: list[Node]) -> RankSet:
    found = RankSet()
    for node in nodes:
        found |= node.ranks
    return found
