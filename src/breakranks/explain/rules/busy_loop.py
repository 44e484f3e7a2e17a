"""busy-loop, straggler: a rank that works while other ranks wait."""

from __future__ import annotations

from breakranks.explain.actions import RunBreakranks, stacks_of
from breakranks.explain.activity import BUSY_SHARE
from breakranks.explain.causes.process_causes import Computing, MovesInCode, NeverLeaves, SeenAtLines, Spinning
from breakranks.explain.diagnosis import GUESS, LIKELY
from breakranks.explain.finding_parts import where_of
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.lock_owners import attach
from breakranks.explain.rules.rank_cause import SLOW_SECONDS, WORKING_SECONDS, RankCause
from breakranks.snapshot.code_owner import is_own, native_tail
from breakranks.snapshot.model import PROGRESS, Frame, Thread

# A loop that only waits has a short body: `while not ready(): pass`.
_SHORT_BODY = 2
_MIN_SAMPLES = 6


def reason(job: JobView, view: ProcessView) -> RankCause | None:
    if (
        view.activity.word in ("sleep", "unknown", "event-loop", "idle", "gpu-wait")
        or view.thread is None
        or view.busy < BUSY_SHARE
    ):
        return None
    threads = [t for sample in view.process.samples for t in sample.threads if t.tid == view.thread.tid and t.stack]
    stacks = [job.snapshot.stack(thread.stack) for thread in threads]
    share = min(view.busy, 1.0)
    loop, lines, callees = _loop(stacks)
    short = len(lines) <= _SHORT_BODY and callees <= 1
    if loop is not None and short and not _computes(job, threads, stacks) and not _counts(threads, loop):
        return RankCause(
            kind="busy-loop",
            cause=Spinning(where=where_of(loop)),
            evidence=(
                NeverLeaves(share=share, function=loop.function),
                SeenAtLines(looks=len(stacks), lines=tuple(sorted(lines))),
            ),
            next=(stacks_of(view.process.pid, "--native"), *attach(job, view)),
            confidence=LIKELY,
            needs=SLOW_SECONDS,
            where=loop,
            grounds=("same-loop",),
            samples=_MIN_SAMPLES,
        )
    return RankCause(
        kind="straggler",
        cause=Computing(context=view.activity.context, where=where_of(loop or view.where)),
        evidence=(MovesInCode(share=share, lines=len({stack[-1] for stack in stacks}), looks=len(stacks)),),
        next=(RunBreakranks(command="top", args=("--rank", str(job.rank_of(view.process) or 0))),),
        confidence=LIKELY if view.moved or len(lines) > 1 else GUESS,
        needs=WORKING_SECONDS,
        where=loop or view.where,
        grounds=("works",),
        samples=_MIN_SAMPLES,
    )


def _loop(stacks: list[tuple[Frame, ...]]) -> tuple[Frame | None, set[int], int]:
    """Return the innermost function of the user's code that is on every stack, the lines at which it was seen, and how
    many functions it was seen to call."""
    owns = [[frame for frame in stack if is_own(frame.file)] for stack in stacks]
    depth = 0
    for level in zip(*owns, strict=False):
        if len({(frame.function, frame.file) for frame in level}) > 1:
            break
        depth += 1
        if len({frame.line for frame in level}) > 1:
            break  # the calls below differ
    if not depth:
        return None, set(), 0
    lines = {own[depth - 1].line for own in owns}
    callees = {own[depth].function for own in owns if len(own) > depth}
    return owns[-1][depth - 1], lines, len(callees)


def _computes(job: JobView, threads: list[Thread], stacks: list[tuple[Frame, ...]]) -> bool:
    """Whether it was seen in a library: numpy and torch compute, a plain loop stays in the interpreter. True if no C
    frames could be read."""
    if any(not is_own(stack[-1].file) for stack in stacks):
        return True
    merged = [job.snapshot.stack(thread.native) for thread in threads if thread.native]
    if not merged:
        return True
    return any(
        not frame.file.rsplit("/", 1)[-1].startswith(("python", "libpython", "libc.so"))
        for frames in merged
        for frame in native_tail(frames)
    )


def _counts(threads: list[Thread], loop: Frame) -> bool:
    """Whether the plain values of the loop's function change: it counts or collects. Unknown counts as work."""
    key = f"{loop.function}.{PROGRESS}"
    marks = {thread.hints.get(key) for thread in threads}
    return len(marks) > 1 or None in marks
