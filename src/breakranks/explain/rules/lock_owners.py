"""thread-deadlock, lock-held: a lock of which the process itself said who has it."""

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
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView, goes_on
from breakranks.explain.rules.rank_cause import (
    LONG_SLEEP_SECONDS,
    MOMENT_SECONDS,
    MOVING_SECONDS,
    PATIENCE_SECONDS,
    RankCause,
)
from breakranks.explain.values import where_of
from breakranks.explain.wait_chains import WaitChain, follow, waited
from breakranks.snapshot.introspection import BY_ACQUIRE, BY_LOCK


def reason(case: JobView, one: ProcessView) -> RankCause | None:
    if one.activity.word not in ("thread-wait", "exit") or one.thread is None:
        return None
    chain = follow(one.process, one.threads, one.thread.tid)
    if chain is None:
        return None
    if chain.back is not None:
        return _deadlock(case, one, chain)
    if len(chain.steps) > 1 and not chain.joins:
        return _held(case, one, chain)
    return None


def _deadlock(case: JobView, one: ProcessView, chain: WaitChain) -> RankCause:
    assert chain.back is not None
    ring = chain.steps[chain.back :]
    cause: Cause = ThreadRing(steps=_steps(chain), back=chain.back)
    if len(ring) == 1 and chain.back == 0 and ring[0].wait is not None:
        cause = SelfDeadlock(wait=waited(ring[0].wait), where=where_of(one.where))
    return RankCause(
        kind="thread-deadlock",
        cause=cause,
        evidence=_evidence(chain),
        next=(stacks_of(one.process.pid, "--threads"), *attach(case, one)),
        confidence=CERTAIN if chain.sure else LIKELY,
        needs=MOMENT_SECONDS,
        where=one.where,
        grounds=(_ground(chain),),
    )


def _held(case: JobView, one: ProcessView, chain: WaitChain) -> RankCause:
    end = chain.end
    moving = goes_on(one.process, end.thread.tid)
    left = end.thread.call.left if end.thread.call is not None else None
    naps = left is not None and left <= LONG_SLEEP_SECONDS
    return RankCause(
        kind="lock-held",
        cause=OwnedByThread(steps=_steps(chain)),
        evidence=_evidence(chain),
        next=(stacks_of(one.process.pid, "--threads"), *attach(case, one)),
        confidence=CERTAIN if chain.sure and not moving and not naps else LIKELY,
        needs=MOVING_SECONDS if moving or naps else PATIENCE_SECONDS,
        where=one.where,
        grounds=(_ground(chain), *(("owner-works",) if moving else ())),
        # Who works with a lock in hand lets it go in time: of note only if ranks wait.
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


def attach(case: JobView, one: ProcessView) -> tuple[Action, ...]:
    """To look around in the rank itself."""
    rank = case.rank_of(one.process)
    return (attach_to(rank),) if rank is not None else ()
