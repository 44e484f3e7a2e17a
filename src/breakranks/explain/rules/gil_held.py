"""gil-held: C code keeps the GIL, so no Python code can run in that process."""

from __future__ import annotations

from breakranks.explain.actions import stacks_of
from breakranks.explain.activity import BUSY_SHARE
from breakranks.explain.causes.process_causes import CFrames, GilHeldInC, GilHolder, GilWaiters
from breakranks.explain.diagnosis import CERTAIN, LIKELY
from breakranks.explain.finding_parts import where_of
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.rank_cause import PATIENCE_SECONDS, RankCause
from breakranks.snapshot.code_owner import innermost_own
from breakranks.snapshot.model import Thread

# For these calls the file is a better answer than the GIL that is held during the call.
FILE_CALLS = frozenset({"read", "write", "pread64", "pwrite64", "readv", "writev", "fsync", "fdatasync", "recvfrom"})
_OWN_CODE = ("libpython", "/python", "libc.so", "libpthread", "ld-linux", "linux-vdso")


def reason(job: JobView, view: ProcessView) -> RankCause | None:
    holder = _holder(view)
    if holder is None:
        return None
    tail = next((a.tail for t, a in view.threads if t.tid == holder.tid), ())
    foreign = [frame for frame in tail if not any(part in frame.file for part in _OWN_CODE)]
    blocked = holder.state in "SD" and holder.call is not None
    if blocked and holder.call is not None and (holder.call.path or holder.call.name in FILE_CALLS):
        return None  # the file is the better answer: see blocked-io
    busy = view.busy >= BUSY_SHARE and bool(foreign)
    if not (blocked or busy):
        return None
    frame = innermost_own(job.snapshot.stack(holder.stack))
    inside = foreign[0].function if foreign else (tail[0].function if tail else "C code")
    waiters = sum(1 for _, activity in view.threads if activity.word == "gil-wait")
    return RankCause(
        kind="gil-held",
        cause=GilHeldInC(function=inside, where=where_of(frame)),
        evidence=(
            GilHolder(thread=holder.name, call=holder.call.name if blocked and holder.call is not None else ""),
            CFrames(functions=tuple(frame.function for frame in tail[-6:])),
            *((GilWaiters(threads=waiters),) if waiters else ()),
        ),
        next=(stacks_of(view.process.pid, "--native", "--threads"),),
        confidence=CERTAIN if blocked else LIKELY,
        needs=PATIENCE_SECONDS,
        where=frame,
        grounds=("gil-while-asleep" if blocked else "gil-each-time",),
    )


def _holder(view: ProcessView) -> Thread | None:
    """Return the thread that held the GIL in every sample."""
    samples = [sample for sample in view.process.samples if sample.threads]
    if len(samples) < 2:
        return None
    holders = [next((t for t in sample.threads if t.gil), None) for sample in samples]
    first = holders[0]
    if first is None or any(h is None or h.tid != first.tid or h.stack != first.stack for h in holders):
        return None
    return holders[-1]
