"""missing-from-collective, rendezvous-incomplete, rank-exited: ranks that others wait for and that do not come."""

from __future__ import annotations

from breakranks.explain import phrases
from breakranks.explain.collectives import call_phrases
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY, Finding
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.process_view import BUSY_SHARE, ProcessView
from breakranks.explain.rules.candidate import (
    Candidate,
    doing,
    first_wait,
    union,
    victims_evidence,
    victims_place,
    wait_for,
    waiting_place,
)
from breakranks.explain.rules.external_waits import NOISE_BYTES, bytes_moved
from breakranks.explain.rules.rank_cause import (
    AT_ONCE_SECONDS,
    LONG_SLEEP_SECONDS,
    MOVING_SECONDS,
    PATIENCE_SECONDS,
    SLOW_SECONDS,
    WORKING_SECONDS,
)
from breakranks.explain.rules.recorded_calls import alone, gather_advice, gathers
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.model import Missing

_NAP_SHARE = 0.02  # of a CPU: what a loop takes that sleeps and looks
_LOG = "look at the end of its log: breakranks cannot see a process that has ended"


def gone(case: JobView, waiting: list[RankGroup]) -> list[Candidate]:
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
        needs = SLOW_SECONDS
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
            kind=kind,
            culprits=str(ranks),
            victims=str(victims),
            confidence=_sure(case, missing, bool(together), only_store),
            summary=f"{text}; {wait_for(case, ranks, victims)} in {waiting_place(waiting, ranks)}",
            where=None,
            evidence=(*((missing.detail,) if missing.detail else ()), *victims_evidence(case, waiting)),
            next=_next_for(case, ranks, never, missing.reason == "exited" or bool(together)),
            because="the launcher lives and the process does not"
            if missing.reason == "exited"
            else "the others' recorders show calls that it was in"
            if together
            else "WORLD_SIZE counts it",
            victims_where=waiting_place(waiting),
        )
        wait = PATIENCE_SECONDS if missing.reason == "absent" or only_store else 0.0
        found.append(Candidate(finding=finding, needs=max(needs, wait), culprits=ranks, victims=victims))
    return found


def _runs(one: ProcessView) -> bool:
    """Whether it uses a CPU. ``busy`` has the time in which it waited for one, too, and on a busy machine whoever naps
    again and again waits at each end of a nap."""
    return min(one.busy, one.process.cpu_percent / 100) > _NAP_SHARE


def _next_for(case: JobView, ranks: RankSet, never: bool, was_here: bool) -> tuple[str, ...]:
    if never:
        return (
            f"start {ranks_text(ranks)}, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE",
            "breakranks ps  # one that was started with another port or world size is a job of its own there",
        )
    if case.several and not was_here:
        return ("name all hosts of the job in the target: it may be on another", _LOG)
    return (_LOG,)


def _sure(case: JobView, missing: Missing, together: bool, only_store: bool) -> str:
    if missing.reason == "exited" and not only_store:
        return CERTAIN
    # Of hosts that somebody has named, some may have been forgotten.
    return GUESS if case.several and missing.reason == "absent" and not together else LIKELY


def _here(case: JobView) -> str:
    if not case.several:
        return "this host"
    hosts = case.snapshot.hosts
    return "any host that was looked at" if len(hosts) > 1 else hosts[0].name


def plain(case: JobView, nodes: list[RankGroup], waiting: list[RankGroup]) -> Candidate | None:
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
        kind=kind,
        culprits=str(ranks),
        victims=str(victims),
        confidence=_confidence(one),
        summary=f"{case.who(ranks)} {have} {verb} {op}; {wait_for(case, ranks, victims)}. "
        f"It is in {phrases.place(one.where)}, {doing(one)}",
        where=phrases.where(one.where),
        evidence=(
            *(
                f"{ranks_text(other.ranks)} {'is' if len(other.ranks) == 1 else 'are'} in "
                f"{phrases.place(other.where)}, {doing(other.look)}"
                for other in nodes[:6]
            ),
            *((trait,) if (trait := call_phrases.trait(case.ledger, ranks)) else ()),
            *_lone_gather(case, call, ranks),
            *victims_evidence(case, waiting),
        ),
        next=(f"breakranks stacks --rank {ranks} --threads --native", f"breakranks attach --ranks {ranks}"),
        because=_because(one),
        victims_where=place,
    )
    nap = one.activity.word == "sleep" and one.left is not None and one.left <= LONG_SLEEP_SECONDS
    needs = _needs(one)
    if nap and one.sleeps_again and not case.read_since(victims, one.woke):
        needs = max(needs, MOVING_SECONDS)  # it has woken since: what they wait in may be the next call already
    return Candidate(
        finding=finding, needs=needs, culprits=ranks, victims=victims, known_end=nap and not one.sleeps_again
    )


def missing_too(case: JobView, proposal: Candidate, waiting: list[RankGroup]) -> Finding | None:
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
        kind="rendezvous-incomplete" if joining else "missing-from-collective",
        culprits=str(proposal.culprits),
        victims=str(proposal.victims),
        confidence=proposal.finding.confidence,
        summary=f"{case.who(proposal.culprits)} {have} not {'joined' if joining else 'entered'} {op}",
        where=proposal.finding.where,
        evidence=victims_evidence(case, waiting),
        next=proposal.finding.next,
    )


def _lone_gather(case: JobView, node: RankGroup, missing: RankSet) -> tuple[str, ...]:
    """A few ranks in a gather that the others have not entered: it may be that they should not be in it alone."""
    if not gathers(case, node.ranks) or len(node.ranks) > len(missing):
        return ()
    return (f"{alone(case, node.ranks)} needs every rank", gather_advice(case, node.ranks))


def _behind(case: JobView, node: RankGroup, ranks: RankSet) -> str:
    """By how many calls of the group the missing ranks are behind, where it is more than one."""
    if node.call is None or node.call.is_transfer:
        return ""
    lags = {node.call.entry.number - case.ledger.reached(node.call.group, rank) for rank in ranks}
    return f" ({lags.pop()} behind)" if len(lags) == 1 and lags != {1} and ranks <= case.ledger.known else ""


def _needs(one: ProcessView) -> float:
    """A long sleep is a hang at once. A short one must be seen to end, and to begin again in the same place."""
    if one.activity.word == "sleep" and one.left is not None:
        if one.left > LONG_SLEEP_SECONDS:
            return AT_ONCE_SECONDS
        if not one.sleeps_again:
            return one.stands + one.left + 0.5
        # A nap between two pieces of work is work; one between two looks at the clock is waiting.
        return (
            MOVING_SECONDS
            if bytes_moved(one.process) > NOISE_BYTES
            else WORKING_SECONDS
            if one.progresses
            else PATIENCE_SECONDS
        )
    if one.activity.word == "gpu-wait":
        return PATIENCE_SECONDS  # it may spin, and does not get on
    return MOVING_SECONDS if one.moved or one.busy >= BUSY_SHARE else PATIENCE_SECONDS


def _confidence(one: ProcessView) -> str:
    if one.activity.word in ("unknown", "gpu-wait"):
        return GUESS if one.activity.word == "unknown" else LIKELY
    if one.activity.word == "sleep" and one.left is not None:
        return CERTAIN if one.left > LONG_SLEEP_SECONDS else LIKELY
    return CERTAIN if one.still and not one.moved else LIKELY


def _because(one: ProcessView) -> str:
    if one.activity.word == "unknown":
        return "its stack could not be read"
    if one.activity.word == "gpu-wait":
        return "a kernel or a collective on its GPU does not end; which one cannot be seen from outside"
    if one.activity.word == "sleep" and one.left is not None and one.left > LONG_SLEEP_SECONDS:
        return "its own sleep says for how long"
    if one.moved or one.busy >= BUSY_SHARE:
        return "it may still come: it moves"
    return "it stands, and the others wait"
