"""missing-from-collective, rendezvous-incomplete, rank-exited: ranks that others wait for and that do not arrive."""

from __future__ import annotations

from msgspec.structs import replace

from breakranks.explain.actions import Action, Advise, RunBreakranks, attach_to
from breakranks.explain.activity import BUSY_SHARE, naps
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
from breakranks.explain.finding_parts import CallName, where_of
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.candidate import (
    FindingCandidate,
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
from breakranks.rankset import RankSet
from breakranks.snapshot.code_owner import own_functions
from breakranks.snapshot.model import Missing

_SHOWN = 6
_NAP_SECONDS = 3.0  # a longer sleep is not one between two looks
_NAP_SHARE = 0.02  # the share of a CPU that a loop with short sleeps takes
_LOG = Advise(what="log-end")


def gone(job: JobView, waiting: list[RankGroup]) -> list[FindingCandidate]:
    """Return candidates for ranks that should be here and are not, while others wait."""
    needs = 1.0
    # A rank that waits for a key of the store waits for the rank that is to write it, which may be another one.
    only_store = all(node.reason == "store" for node in waiting)
    if not waiting:
        # No known framework: are all remaining ranks in one loop, without using a CPU?
        waiting = [node for node in job.nodes if node.reason == "sleep" and _stays(job, node.view)]
        # Ranks in one place may be in several groups, which differ in other evidence.
        if union(waiting) != job.seen or len({_loop(node.view) for node in waiting}) != 1:
            return []
        if any(_runs(node.view) for node in waiting):
            return []
        needs = SLOW_SECONDS
    victims = union(waiting)
    only_joining = any(node.reason == "rendezvous" for node in waiting)
    found = []
    for missing in job.snapshot.missing:
        ranks = RankSet.parse(missing.ranks)
        if missing.reason not in ("exited", "absent") or not ranks:
            continue
        together = job.progress.worked_with(ranks)
        never = only_joining and missing.reason == "absent" and not together
        finding = Finding(
            kind="rendezvous-incomplete" if never else "rank-exited",
            culprits=str(ranks),
            victims=str(victims),
            confidence=_sure(job, missing, together is not None, only_store),
            cause=_how_gone(job, missing, together, never=never),
            subject=job.subject(ranks),
            held_up=held_up(job, ranks, victims, at=waiting_place(waiting, ranks)),
            victims_at=waiting_place(waiting),
            where=None,
            evidence=(
                *((MissingDetail(text=missing.detail),) if missing.detail else ()),
                *victims_evidence(job, waiting),
            ),
            next=_next_for(job, ranks, never, missing.reason == "exited" or together is not None),
            grounds=(
                "launcher-lives" if missing.reason == "exited" else "others-recorders" if together else "world-size",
            ),
        )
        wait = PATIENCE_SECONDS if missing.reason == "absent" or only_store else 0.0
        found.append(FindingCandidate(finding=finding, needs=max(needs, wait), culprits=ranks, victims=victims))
    return found


def _stays(job: JobView, view: ProcessView) -> bool:
    """Whether it has not moved, except in one sample: between two short sleeps, a loop may be seen in a function that
    it calls."""
    if not view.moved or view.thread is None or view.stands <= 0:
        return not view.moved
    tid = view.thread.tid
    threads = [thread for sample in view.process.samples for thread in sample.threads if thread.tid == tid]
    sleeps = [thread.call.left or 0.0 for thread in threads if thread.call is not None]
    functions = [own_functions(job.snapshot.stack(thread.stack)) for thread in threads]
    elsewhere = [seen for seen in functions if seen != functions[-1]]
    return max(sleeps, default=0.0) < _NAP_SECONDS and len(elsewhere) == 1 and elsewhere[0] != functions[0]


def _loop(view: ProcessView) -> object:
    """What is equal for ranks in one loop. With short sleeps, a rank may be at any line of it."""
    where = view.where
    if where is None or where.function == "<module>":
        return where
    brief = view.left is not None and view.left <= LONG_SLEEP_SECONDS
    if not brief and (view.thread is None or not naps(view.process, view.thread)):
        return where
    return where.function, where.file


def _runs(view: ProcessView) -> bool:
    """Whether it uses a CPU. ``busy`` includes the time in which it waited for a CPU, and on a loaded machine a process
    with short sleeps waits for one after each sleep."""
    return min(view.busy, view.process.cpu_percent / 100) > _NAP_SHARE


def _how_gone(job: JobView, missing: Missing, together: CallName | None, *, never: bool) -> Cause:
    host, several = _here(job)
    if never:
        return NeverCame(host=host, several=several)
    if together is not None and missing.reason == "absent":
        return HasGone(call=together)
    if missing.reason == "exited":
        return RankExited(host=missing.host, several=job.several)
    return NotHere(host=host, several=several)


def _next_for(job: JobView, ranks: RankSet, never: bool, was_here: bool) -> tuple[Action, ...]:
    if never:
        elsewhere = "a rank that was started with another port or world size is listed as a separate job"
        return (Advise(what="start-ranks", ranks=str(ranks)), RunBreakranks(command="ps", comment=elsewhere))
    if job.several and not was_here:
        return (Advise(what="name-hosts-other"), _LOG)
    return (_LOG,)


def _sure(job: JobView, missing: Missing, together: bool, only_store: bool) -> str:
    if missing.reason == "exited" and not only_store:
        return CERTAIN
    # A host may be missing from a target that a user has typed.
    return GUESS if job.several and missing.reason == "absent" and not together else LIKELY


def _here(job: JobView) -> tuple[str, bool]:
    """Return the host that was inspected, if it is a single one of another name, and whether there are several."""
    hosts = job.snapshot.hosts
    if not job.several or len(hosts) > 1:
        return "", job.several
    return hosts[0].name, False


def plain(job: JobView, nodes: list[RankGroup], waiting: list[RankGroup]) -> FindingCandidate | None:
    """Return the candidate for ranks that wait for no rank and have no cause of their own: they have not arrived."""
    if not waiting or not nodes:
        return None
    ranks = union(nodes)
    victims = job.victims_of(ranks) - ranks
    if not victims:
        return None
    node = max(nodes, key=lambda node: (node.view.stands, len(node.ranks)))
    view = node.view
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
        confidence=_confidence(view),
        cause=NotEntered(verb=verb, call=call.op, behind=_behind(job, call, ranks), doing=view.doing),
        subject=job.subject(ranks),
        held_up=held_up(job, ranks, victims),
        victims_at=victims_place(waiting, ranks, victims),
        where=where_of(view.where),
        evidence=(
            *(
                RanksAt(ranks=str(other.ranks), doing=replace(other.view.doing, where=where_of(other.where)))
                for other in nodes[:_SHOWN]
            ),
            *call_facts.trait(job.progress, ranks),
            *_lone_gather(job, call, ranks),
            *victims_evidence(job, waiting),
        ),
        next=(
            RunBreakranks(command="stacks", args=("--rank", str(ranks), "--threads", "--native")),
            attach_to(ranks),
        ),
        grounds=(_ground(view),),
    )
    nap = view.activity.word == "sleep" and view.left is not None and view.left <= LONG_SLEEP_SECONDS
    needs = _needs(view)
    if nap and view.sleeps_again and not job.read_since(victims, view.woke):
        needs = max(needs, MOVING_SECONDS)  # it has woken since: the others may already wait in the next call
    return FindingCandidate(
        finding=finding, needs=needs, culprits=ranks, victims=victims, known_end=nap and not view.sleeps_again
    )


def missing_too(job: JobView, proposal: FindingCandidate, waiting: list[RankGroup]) -> Finding | None:
    """Return what a more precise verdict implies: these ranks have not entered what the others wait in."""
    if not waiting or not proposal.victims or proposal.culprits & union(waiting):
        return None
    if proposal.finding.kind in ("missing-from-collective", "rendezvous-incomplete", "unreachable"):
        return None  # it is not known what an uninspected rank has entered
    joining = all(node.reason == "rendezvous" for node in waiting)
    call = first_wait(waiting, proposal.culprits)
    behind = _behind(job, call, proposal.culprits)
    return Finding(
        kind="rendezvous-incomplete" if joining else "missing-from-collective",
        culprits=str(proposal.culprits),
        victims=str(proposal.victims),
        confidence=proposal.finding.confidence,
        cause=NotEntered(verb="joined" if joining else "entered", call=call.op, behind=behind),
        subject=job.subject(proposal.culprits),
        where=proposal.finding.where,
        evidence=victims_evidence(job, waiting),
        next=proposal.finding.next,
    )


def _lone_gather(job: JobView, node: RankGroup, missing: RankSet) -> tuple[Fact, ...]:
    """Return facts about a few ranks in a gather that the others have not entered: perhaps they should not be in it
    alone."""
    if not gathers(job, node.ranks) or len(node.ranks) > len(missing):
        return ()
    gather = gather_of(job, node.ranks)
    return (GatherNeedsAll(gather=gather), GatherAdvice(fsdp=gather.fsdp))


def _behind(job: JobView, node: RankGroup, ranks: RankSet) -> int:
    """Return by how many calls of the group the missing ranks are behind, if that is known."""
    return call_facts.behind(job.progress, node.call, ranks) if node.call is not None else 0


def _needs(view: ProcessView) -> float:
    """Return for how long the ranks must not have moved. A long sleep is a hang at once. A short one must be seen to
    end, and to begin again in the same place."""
    if view.activity.word == "sleep" and view.left is not None:
        if view.left > LONG_SLEEP_SECONDS:
            return AT_ONCE_SECONDS
        if not view.sleeps_again:
            return view.stands + view.left + 0.5
        return _between_sleeps(view)
    if _has_woken(view):
        return _between_sleeps(view) if view.sleeps_again else max(MOVING_SECONDS, view.stands + 1.0)
    if view.activity.word == "gpu-wait":
        return PATIENCE_SECONDS  # it may spin without making progress
    return MOVING_SECONDS if view.moved or view.busy >= BUSY_SHARE else PATIENCE_SECONDS


def _between_sleeps(view: ProcessView) -> float:
    """A short sleep between two pieces of work is work. A short sleep between two checks of a clock is waiting."""
    if bytes_moved(view.process) > NOISE_BYTES:
        return MOVING_SECONDS
    return WORKING_SECONDS if view.progresses else PATIENCE_SECONDS


def _has_woken(view: ProcessView) -> bool:
    """Whether its sleep ended just now. Earlier C frames, which may still be valid, show the sleep."""
    return view.activity.word == "sleep" and view.thread is not None and view.thread.call is None


def _confidence(view: ProcessView) -> str:
    if view.activity.word in ("unknown", "gpu-wait"):
        return GUESS if view.activity.word == "unknown" else LIKELY
    if view.activity.word == "sleep" and view.left is not None:
        return CERTAIN if view.left > LONG_SLEEP_SECONDS else LIKELY
    return CERTAIN if view.still and not view.moved and not _has_woken(view) else LIKELY


def _ground(view: ProcessView) -> str:
    if view.activity.word == "unknown":
        return "stack-unread"
    if view.activity.word == "gpu-wait":
        return "gpu"
    if view.activity.word == "sleep" and view.left is not None and view.left > LONG_SLEEP_SECONDS:
        return "own-sleep"
    return "moves" if view.moved or view.busy >= BUSY_SHARE else "stands"
