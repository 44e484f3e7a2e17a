"""missing-from-collective, rendezvous-incomplete, rank-exited: ranks that others wait for and that do not come."""

from __future__ import annotations

from breakranks.explain import words
from breakranks.explain.case import Case, Node
from breakranks.explain.collectives import say
from breakranks.explain.look import BUSY, Look
from breakranks.explain.model import CERTAIN, GUESS, LIKELY, Finding
from breakranks.explain.rules.blocked import NOISE, bytes_moved
from breakranks.explain.rules.collectives import alone, gather_advice, gathers
from breakranks.explain.rules.proposal import (
    Proposal,
    doing,
    first_wait,
    union,
    victims_evidence,
    victims_place,
    wait_for,
    waiting_place,
)
from breakranks.explain.rules.reason import AT_ONCE, LONG_SLEEP, MOVING, PATIENCE, SLOW, WORKING
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.model import Missing

_NAPS = 0.02  # of a CPU: what a loop takes that sleeps and looks
_LOG = "look at the end of its log: breakranks cannot see a process that has ended"


def gone(case: Case, waiting: list[Node]) -> list[Proposal]:
    """Ranks that should be here and are not, while others wait."""
    needs = 1.0
    # Whoever waits for a key of the store waits for whoever is to write it, and that may be another one.
    only_store = all(node.reason == "store" for node in waiting)
    if not waiting:
        # No framework that we know: do all that are left stand in one place, using no CPU?
        waiting = [node for node in case.nodes if node.reason == "sleep" and not node.look.moved]
        # Ranks in one place may be in several nodes: what else was seen of them differs.
        if union(waiting) != case.seen or len({node.where for node in waiting}) != 1:
            return []
        if any(_runs(node.look) for node in waiting):
            return []
        needs = SLOW
    victims = union(waiting)
    only_joining = any(node.reason == "rendezvous" for node in waiting)
    found = []
    for missing in case.snapshot.missing:
        ranks = RankSet.parse(missing.ranks)
        if missing.reason not in ("exited", "absent") or not ranks:
            continue
        together = case.ledger.worked_with(ranks)
        never = only_joining and missing.reason == "absent" and not together
        kind = "rendezvous-incomplete" if never else "rank-exited"
        many = len(ranks) > 1
        if never:
            text = f"{ranks_text(ranks)} never came: no process on {_here(case)} has that rank"
        elif together and missing.reason == "absent":
            text = f"{ranks_text(ranks)} {'have' if many else 'has'} gone: it took part in {together} and is not here"
        elif missing.reason == "exited":
            text = f"{ranks_text(ranks)} {'have' if many else 'has'} exited, and the launcher is still here"
            if case.several:
                text = f"{ranks_text(ranks)} {'have' if many else 'has'} exited, {missing.detail.split(':')[0]}"
        else:
            text = f"{ranks_text(ranks)} {'are' if many else 'is'} not on {_here(case)}"
        finding = Finding(
            kind,
            str(ranks),
            str(victims),
            _sure(case, missing, bool(together), only_store),
            f"{text}; {wait_for(case, ranks, victims)} in {waiting_place(waiting, ranks)}",
            None,
            (*((missing.detail,) if missing.detail else ()), *victims_evidence(case, waiting)),
            _next_for(case, ranks, never, missing.reason == "exited" or bool(together)),
            because="the launcher lives and the process does not"
            if missing.reason == "exited"
            else "the others' recorders show calls that it was in"
            if together
            else "WORLD_SIZE counts it",
            victims_where=waiting_place(waiting),
        )
        wait = PATIENCE if missing.reason == "absent" or only_store else 0.0
        found.append(Proposal(finding, max(needs, wait), ranks, victims))
    return found


def _runs(one: Look) -> bool:
    """Whether it uses a CPU. ``busy`` has the time in which it waited for one, too, and on a busy machine whoever naps
    again and again waits at each end of a nap."""
    return min(one.busy, one.process.cpu_percent / 100) > _NAPS


def _next_for(case: Case, ranks: RankSet, never: bool, was_here: bool) -> tuple[str, ...]:
    if never:
        return (
            f"start {ranks_text(ranks)}, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE",
            "breakranks ps  # one that was started with another port or world size is a job of its own there",
        )
    if case.several and not was_here:
        return ("name all hosts of the job in the target: it may be on another", _LOG)
    return (_LOG,)


def _sure(case: Case, missing: Missing, together: bool, only_store: bool) -> str:
    if missing.reason == "exited" and not only_store:
        return CERTAIN
    # Of hosts that somebody has named, some may have been forgotten.
    return GUESS if case.several and missing.reason == "absent" and not together else LIKELY


def _here(case: Case) -> str:
    if not case.several:
        return "this host"
    hosts = case.snapshot.hosts
    return "any host that was looked at" if len(hosts) > 1 else hosts[0].name


def plain(case: Case, nodes: list[Node], waiting: list[Node]) -> Proposal | None:
    """Ranks that wait for nobody and have no cause of their own: they just have not come."""
    if not waiting or not nodes:
        return None
    ranks = union(nodes)
    victims = case.victims_of(ranks) - ranks
    if not victims:
        return None
    node = max(nodes, key=lambda one: (one.look.stands, len(one.ranks)))
    one = node.look
    joining = all(other.reason == "rendezvous" for other in waiting)
    place = victims_place(waiting, ranks, victims)
    call = first_wait(waiting, ranks)
    op = call.op + _behind(case, call, ranks)
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
        f"{case.who(ranks)} {have} {verb} {op}; {wait_for(case, ranks, victims)}. "
        f"It is in {words.place(one.where)}, {doing(one)}",
        words.where(one.where),
        (
            *(
                f"{ranks_text(other.ranks)} {'is' if len(other.ranks) == 1 else 'are'} in "
                f"{words.place(other.where)}, {doing(other.look)}"
                for other in nodes[:6]
            ),
            *((trait,) if (trait := say.trait(case.ledger, ranks)) else ()),
            *_lone_gather(case, call, ranks),
            *victims_evidence(case, waiting),
        ),
        (f"breakranks stacks --rank {ranks} --threads --native", f"breakranks attach --ranks {ranks}"),
        because=_because(one),
        victims_where=place,
    )
    nap = one.activity.word == "sleep" and one.left is not None and one.left <= LONG_SLEEP
    needs = _needs(one)
    if nap and one.sleeps_again and not case.read_since(victims, one.woke):
        needs = max(needs, MOVING)  # it has woken since: what they wait in may be the next call already
    return Proposal(finding, needs, ranks, victims, known_end=nap and not one.sleeps_again)


def missing_too(case: Case, proposal: Proposal, waiting: list[Node]) -> Finding | None:
    """What a more precise verdict also implies: these ranks have not entered what the others wait in."""
    if not waiting or not proposal.victims or proposal.culprits & union(waiting):
        return None
    if proposal.finding.kind in ("missing-from-collective", "rendezvous-incomplete", "unreachable"):
        return None  # of a rank that nobody could look at it is not known what it has entered
    joining = all(node.reason == "rendezvous" for node in waiting)
    call = first_wait(waiting, proposal.culprits)
    op = call.op + _behind(case, call, proposal.culprits)
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


def _lone_gather(case: Case, node: Node, missing: RankSet) -> tuple[str, ...]:
    """A few ranks in a gather that the others have not entered: it may be that they should not be in it alone."""
    if not gathers(case, node.ranks) or len(node.ranks) > len(missing):
        return ()
    return (f"{alone(case, node.ranks)} needs every rank", gather_advice(case, node.ranks))


def _behind(case: Case, node: Node, ranks: RankSet) -> str:
    """By how many calls of the group the missing ranks are behind, where it is more than one."""
    if node.call is None or node.call.is_transfer:
        return ""
    lags = {node.call.entry.number - case.ledger.reached(node.call.group, rank) for rank in ranks}
    return f" ({lags.pop()} behind)" if len(lags) == 1 and lags != {1} and ranks <= case.ledger.known else ""


def _needs(one: Look) -> float:
    """A long sleep is a hang at once. A short one must be seen to end, and to begin again in the same place."""
    if one.activity.word == "sleep" and one.left is not None:
        if one.left > LONG_SLEEP:
            return AT_ONCE
        if not one.sleeps_again:
            return one.stands + one.left + 0.5
        # A nap between two pieces of work is work; one between two looks at the clock is waiting.
        return MOVING if bytes_moved(one.process) > NOISE else WORKING if one.progresses else PATIENCE
    if one.activity.word == "gpu-wait":
        return PATIENCE  # it may spin, and does not get on
    return MOVING if one.moved or one.busy >= BUSY else PATIENCE


def _confidence(one: Look) -> str:
    if one.activity.word in ("unknown", "gpu-wait"):
        return GUESS if one.activity.word == "unknown" else LIKELY
    if one.activity.word == "sleep" and one.left is not None:
        return CERTAIN if one.left > LONG_SLEEP else LIKELY
    return CERTAIN if one.still and not one.moved else LIKELY


def _because(one: Look) -> str:
    if one.activity.word == "unknown":
        return "its stack could not be read"
    if one.activity.word == "gpu-wait":
        return "a kernel or a collective on its GPU does not end; which one cannot be seen from outside"
    if one.activity.word == "sleep" and one.left is not None and one.left > LONG_SLEEP:
        return "its own sleep says for how long"
    if one.moved or one.busy >= BUSY:
        return "it may still come: it moves"
    return "it stands, and the others wait"
