"""thread-deadlock, lock-held: a lock of which the process itself said who has it."""

from __future__ import annotations

from breakranks.explain import phrases
from breakranks.explain.diagnosis import CERTAIN, LIKELY
from breakranks.explain.introspected import JOINS, ChainStep, WaitChain, follow, thing
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView, goes_on
from breakranks.explain.rules.rank_cause import (
    LONG_SLEEP_SECONDS,
    MOMENT_SECONDS,
    MOVING_SECONDS,
    PATIENCE_SECONDS,
    RankCause,
)
from breakranks.snapshot.introspection import BY_ACQUIRE, BY_LOCK, ThreadWait


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
    if len(ring) == 1 and chain.back == 0:
        wait = ring[0].wait
        assert wait is not None
        text = (
            f"waits for {thing(wait)} in {phrases.place(one.where)}, which it holds itself{_taken(wait, ', taken in')}"
        )
    else:
        text = f"has threads that wait for each other: {_told(chain)}"
    return RankCause(
        kind="thread-deadlock",
        text=text,
        evidence=_evidence(chain),
        next=(f"breakranks stacks pid:{one.process.pid} --threads", *attach(case, one)),
        confidence=CERTAIN if chain.sure else LIKELY,
        needs=MOMENT_SECONDS,
        where=one.where,
        because=_because(chain),
    )


def _held(case: JobView, one: ProcessView, chain: WaitChain) -> RankCause:
    end = chain.end
    moving = goes_on(one.process, end.thread.tid)
    left = end.thread.call.left if end.thread.call is not None else None
    naps = left is not None and left <= LONG_SLEEP_SECONDS
    return RankCause(
        kind="lock-held",
        text=f"waits for {_told(chain, one)}",
        evidence=_evidence(chain),
        next=(f"breakranks stacks pid:{one.process.pid} --threads", *attach(case, one)),
        confidence=CERTAIN if chain.sure and not moving and not naps else LIKELY,
        needs=MOVING_SECONDS if moving or naps else PATIENCE_SECONDS,
        where=one.where,
        because=_because(chain) + (", and its owner works" if moving else ""),
        # Who works with a lock in hand lets it go in time: of note only if ranks wait.
        alone=not moving and not naps,
    )


def _told(chain: WaitChain, one: ProcessView | None = None) -> str:
    """``MainThread waits for a (Lock), held by thread x, which waits for b (Lock), held by MainThread``. Of a rank that
    was named before, without its thread."""
    parts = []
    for index, step in enumerate(chain.steps):
        if step.wait is None:
            parts.append(f"{step.activity.phrase} in {phrases.place(step.activity.where)}")
            break
        following = chain.steps[index + 1] if index + 1 < len(chain.steps) else chain.steps[chain.back or 0]
        begin = (
            "" if index == 0 and one is not None else f"{step.thread.name} waits for " if index == 0 else "waits for "
        )
        known = index + 1 < len(chain.steps) or chain.back is not None
        place = f" in {phrases.place(step.activity.where)}" if index == 0 else ""
        parts.append(f"{begin}{thing(step.wait)}{place}" + (_by(step.wait, following) if known else ""))
    text = parts[0]
    for index, part in enumerate(parts[1:], 1):
        verb = "which " if chain.steps[index].wait is not None else "which is "
        text += f", {verb}{part}"
    return text


def _by(wait: ThreadWait, owner: ChainStep) -> str:
    who = owner.thread.name if owner.thread.name == "MainThread" else f"thread {owner.thread.name}"
    if wait.kind == "Thread":
        return ""
    return f", run by {who}" if wait.kind == "Future" else f", held by {who}"


def _taken(wait: ThreadWait, before: str) -> str:
    if not wait.function:
        return ""
    return f"{before} {wait.function}, {phrases.base(wait.file)}:{wait.line}"


def _evidence(chain: WaitChain) -> tuple[str, ...]:
    names = {step.thread.tid: step.thread.name for step in chain.steps}
    lines = []
    for step in chain.steps:
        if step.wait is None:
            lines.append(
                f"thread {step.thread.name} is {step.activity.phrase}, in {phrases.place(step.activity.where)}"
            )
            continue
        owner = names.get(step.wait.owner, "")
        said = f"; {owner} took it{_taken(step.wait, ' in')}" if owner and step.wait.function else ""
        if owner and not said and step.wait.kind not in JOINS:
            said = f"; it belongs to {owner}"
        lines.append(
            f"thread {step.thread.name} waits for {thing(step.wait)} in {phrases.place(step.activity.where)}{said}"
        )
    return tuple(lines)


def _because(chain: WaitChain) -> str:
    proofs = {step.wait.proof for step in chain.steps if step.wait is not None}
    if BY_ACQUIRE in proofs:
        return "who called acquire() is known, and no release() was seen since"
    return (
        "the locks themselves say who has them" if proofs == {BY_LOCK} else "each owner stands inside the lock's with"
    )


def attach(case: JobView, one: ProcessView) -> tuple[str, ...]:
    """To look around in the rank itself."""
    rank = case.rank_of(one.process)
    return (f"breakranks attach --ranks {rank}",) if rank is not None else ()
