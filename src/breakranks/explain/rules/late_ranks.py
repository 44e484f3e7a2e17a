"""missing-from-collective, rendezvous-incomplete, rank-exited: ranks that others wait for and that do not come."""

from __future__ import annotations

from msgspec.structs import replace

from breakranks.explain.actions import Action, Advise, RunBreakranks, attach_to
from breakranks.explain.causes import Cause, Fact
from breakranks.explain.causes.collective_causes import (
    GatherAdvice,
    GatherNeedsAll,
    HasGone,
    MissingDetail,
    NeverCame,
    NotEntered,
    NotHere,
    RankExited,
    RanksAt,
)
from breakranks.explain.collectives import call_facts
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY, Finding
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.process_view import BUSY_SHARE, ProcessView
from breakranks.explain.rules.candidate import (
    Candidate,
    first_wait,
    held_up,
    union,
    victims_evidence,
    victims_place,
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
from breakranks.explain.rules.recorded_calls import gather_of, gathers
from breakranks.explain.values import CallName, where_of
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Missing

_SHOWN = 6
_NAP_SHARE = 0.02  # of a CPU: what a loop takes that sleeps and looks
_LOG = Advise(what="log-end")


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
        finding = Finding(
            kind="rendezvous-incomplete" if never else "rank-exited",
            culprits=str(ranks),
            victims=str(victims),
            confidence=_sure(case, missing, together is not None, only_store),
            cause=_how_gone(case, missing, together, never=never),
            subject=case.subject(ranks),
            held_up=held_up(case, ranks, victims, at=waiting_place(waiting, ranks)),
            victims_at=waiting_place(waiting),
            where=None,
            evidence=(
                *((MissingDetail(text=missing.detail),) if missing.detail else ()),
                *victims_evidence(case, waiting),
            ),
            next=_next_for(case, ranks, never, missing.reason == "exited" or together is not None),
            grounds=(
                "launcher-lives" if missing.reason == "exited" else "others-recorders" if together else "world-size",
            ),
        )
        wait = PATIENCE_SECONDS if missing.reason == "absent" or only_store else 0.0
        found.append(Candidate(finding=finding, needs=max(needs, wait), culprits=ranks, victims=victims))
    return found


def _runs(one: ProcessView) -> bool:
    """Whether it uses a CPU. ``busy`` has the time in which it waited for one, too, and on a busy machine whoever naps
    again and again waits at each end of a nap."""
    return min(one.busy, one.process.cpu_percent / 100) > _NAP_SHARE


def _how_gone(case: JobView, missing: Missing, together: CallName | None, *, never: bool) -> Cause:
    host, several = _here(case)
    if never:
        return NeverCame(host=host, several=several)
    if together is not None and missing.reason == "absent":
        return HasGone(call=together)
    if missing.reason == "exited":
        return RankExited(host=missing.host, several=case.several)
    return NotHere(host=host, several=several)


def _next_for(case: JobView, ranks: RankSet, never: bool, was_here: bool) -> tuple[Action, ...]:
    if never:
        elsewhere = "one that was started with another port or world size is a job of its own there"
        return (Advise(what="start-ranks", ranks=str(ranks)), RunBreakranks(command="ps", comment=elsewhere))
    if case.several and not was_here:
        return (Advise(what="name-hosts-other"), _LOG)
    return (_LOG,)


def _sure(case: JobView, missing: Missing, together: bool, only_store: bool) -> str:
    if missing.reason == "exited" and not only_store:
        return CERTAIN
    # Of hosts that somebody has named, some may have been forgotten.
    return GUESS if case.several and missing.reason == "absent" and not together else LIKELY


def _here(case: JobView) -> tuple[str, bool]:
    """Where was looked: on one host of another name, or on several."""
    hosts = case.snapshot.hosts
    if not case.several or len(hosts) > 1:
        return "", case.several
    return hosts[0].name, False


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
    call = first_wait(waiting, ranks)
    kind = "rendezvous-incomplete" if joining else "missing-from-collective"
    verb = "joined" if joining else "entered"
    if all(other.reason == "p2p" for other in waiting):
        verb = "answered"
    finding = Finding(
        kind=kind,
        culprits=str(ranks),
        victims=str(victims),
        confidence=_confidence(one),
        cause=NotEntered(verb=verb, call=call.op, behind=_behind(case, call, ranks), doing=one.doing),
        subject=case.subject(ranks),
        held_up=held_up(case, ranks, victims),
        victims_at=victims_place(waiting, ranks, victims),
        where=where_of(one.where),
        evidence=(
            *(
                RanksAt(ranks=str(other.ranks), doing=replace(other.look.doing, where=where_of(other.where)))
                for other in nodes[:_SHOWN]
            ),
            *call_facts.trait(case.ledger, ranks),
            *_lone_gather(case, call, ranks),
            *victims_evidence(case, waiting),
        ),
        next=(
            RunBreakranks(command="stacks", args=("--rank", str(ranks), "--threads", "--native")),
            attach_to(ranks),
        ),
        grounds=(_ground(one),),
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
    behind = _behind(case, call, proposal.culprits)
    return Finding(
        kind="rendezvous-incomplete" if joining else "missing-from-collective",
        culprits=str(proposal.culprits),
        victims=str(proposal.victims),
        confidence=proposal.finding.confidence,
        cause=NotEntered(verb="joined" if joining else "entered", call=call.op, behind=behind),
        subject=case.subject(proposal.culprits),
        where=proposal.finding.where,
        evidence=victims_evidence(case, waiting),
        next=proposal.finding.next,
    )


def _lone_gather(case: JobView, node: RankGroup, missing: RankSet) -> tuple[Fact, ...]:
    """A few ranks in a gather that the others have not entered: it may be that they should not be in it alone."""
    if not gathers(case, node.ranks) or len(node.ranks) > len(missing):
        return ()
    gather = gather_of(case, node.ranks)
    return (GatherNeedsAll(gather=gather), GatherAdvice(fsdp=gather.fsdp))


def _behind(case: JobView, node: RankGroup, ranks: RankSet) -> int:
    """By how many calls of the group the missing ranks are behind, where it is more than one."""
    if node.call is None or node.call.is_transfer:
        return 0
    lags = {node.call.entry.number - case.ledger.reached(node.call.group, rank) for rank in ranks}
    return lags.pop() if len(lags) == 1 and lags != {1} and ranks <= case.ledger.known else 0


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


def _ground(one: ProcessView) -> str:
    if one.activity.word == "unknown":
        return "stack-unread"
    if one.activity.word == "gpu-wait":
        return "gpu"
    if one.activity.word == "sleep" and one.left is not None and one.left > LONG_SLEEP_SECONDS:
        return "own-sleep"
    return "moves" if one.moved or one.busy >= BUSY_SHARE else "stands"
