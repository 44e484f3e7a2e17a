"""thread-deadlock, lock-held: a lock whose owner is known by introspection."""

from __future__ import annotations

from breakranks.explain.actions import Action, attach_to, stacks_of
from breakranks.explain.causes import Cause, Fact
from breakranks.explain.causes.thread_causes import (
    OwnedByThread,
    SelfDeadlock,
    ThreadDoes,
    ThreadRing,
    ThreadStep,
    ThreadWaitsFor,
)
from breakranks.explain.diagnosis import CERTAIN, LIKELY
from breakranks.explain.finding_parts import where_of
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView, keeps_moving
from breakranks.explain.rules.rank_cause import (
    LONG_SLEEP_SECONDS,
    MOMENT_SECONDS,
    MOVING_SECONDS,
    PATIENCE_SECONDS,
    RankCause,
)
from breakranks.explain.wait_chains import WaitChain, follow, waited
from breakranks.snapshot.introspection import BY_ACQUIRE, BY_LOCK


def reason(job: JobView, view: ProcessView) -> RankCause | None:
    if view.activity.word not in ("thread-wait", "exit") or view.thread is None:
        return None
    chain = follow(view.process, view.threads, view.thread.tid)
    if chain is None:
        return None
    if chain.back is not None:
        return _deadlock(job, view, chain)
    if len(chain.steps) > 1 and not chain.joins:
        return _held(job, view, chain)
    return None


def _deadlock(job: JobView, view: ProcessView, chain: WaitChain) -> RankCause:
    assert chain.back is not None
    ring = chain.steps[chain.back :]
    cause: Cause = ThreadRing(steps=_steps(chain), back=chain.back)
    if len(ring) == 1 and chain.back == 0 and ring[0].wait is not None:
        cause = SelfDeadlock(wait=waited(ring[0].wait), where=where_of(view.where))
    return RankCause(
        kind="thread-deadlock",
        cause=cause,
        evidence=_evidence(chain),
        next=(stacks_of(view.process.pid, "--threads"), *attach(job, view)),
        confidence=CERTAIN if chain.sure else LIKELY,
        needs=MOMENT_SECONDS,
        where=view.where,
        grounds=(_ground(chain),),
    )


def _held(job: JobView, view: ProcessView, chain: WaitChain) -> RankCause:
    end = chain.end
    moving = keeps_moving(view.process, end.thread.tid)
    left = end.thread.call.left if end.thread.call is not None else None
    naps = left is not None and left <= LONG_SLEEP_SECONDS
    return RankCause(
        kind="lock-held",
        cause=OwnedByThread(steps=_steps(chain)),
        evidence=_evidence(chain),
        next=(stacks_of(view.process.pid, "--threads"), *attach(job, view)),
        confidence=CERTAIN if chain.sure and not moving and not naps else LIKELY,
        needs=MOVING_SECONDS if moving or naps else PATIENCE_SECONDS,
        where=view.where,
        grounds=(_ground(chain), *(("owner-works",) if moving else ())),
        # A thread that works while it holds a lock will release it: this matters only if ranks wait.
        alone=not moving and not naps,
    )


def _steps(chain: WaitChain) -> tuple[ThreadStep, ...]:
    return tuple(
        ThreadStep(
            thread=step.thread.name,
            doing=step.activity.doing(),
            wait=waited(step.wait) if step.wait is not None else None,
        )
        for step in chain.steps
    )


def _evidence(chain: WaitChain) -> tuple[Fact, ...]:
    names = {step.thread.tid: step.thread.name for step in chain.steps}
    found: list[Fact] = []
    for step in chain.steps:
        if step.wait is None:
            found.append(ThreadDoes(thread=step.thread.name, doing=step.activity.doing()))
        else:
            found.append(
                ThreadWaitsFor(
                    thread=step.thread.name,
                    wait=waited(step.wait),
                    where=where_of(step.activity.where),
                    owner=names.get(step.wait.owner, ""),
                )
            )
    return tuple(found)


def _ground(chain: WaitChain) -> str:
    proofs = {step.wait.proof for step in chain.steps if step.wait is not None}
    if BY_ACQUIRE in proofs:
        return "by-acquire"
    return "by-lock" if proofs == {BY_LOCK} else "by-with"


def attach(job: JobView, view: ProcessView) -> tuple[Action, ...]:
    """Return the command to inspect the rank at a prompt."""
    rank = job.rank_of(view.process)
    return (attach_to(rank),) if rank is not None else ()
