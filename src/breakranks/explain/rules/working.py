"""busy-loop, straggler: a rank that works while the others wait."""

from __future__ import annotations

from breakranks.explain import words
from breakranks.explain.case import Case
from breakranks.explain.look import BUSY, Look
from breakranks.explain.model import GUESS, LIKELY
from breakranks.explain.rules.reason import PATIENCE, SLOW, Reason
from breakranks.snapshot.code import is_own


def reason(case: Case, one: Look) -> Reason | None:
    if one.activity.word in ("sleep", "unknown", "event-loop", "idle") or one.thread is None:
        return None
    if one.busy < BUSY:
        return None
    frames = case.snapshot.stack(one.thread.stack)
    own_leaf = bool(frames) and is_own(frames[-1].file)
    foreign = [frame for frame in one.activity.tail if "python" not in words.base(frame.file)]
    context = f", {one.activity.context}" if one.activity.context else ""
    share = f"{min(one.busy, 1) * 100:.0f} % of a CPU"
    if one.moved or foreign or not own_leaf or len(one.functions) > 1:
        return Reason(
            "straggler",
            f"is still computing{context} in {words.place(one.where)}",
            (f"it uses {share} and its stack changes" if one.moved else f"it uses {share}",),
            (f"breakranks top --rank {case.by_pid.get(one.process.pid, 0)}",),
            LIKELY if one.moved else GUESS,
            SLOW,
            one.where,
            "it works; whether it will end cannot be seen",
        )
    return Reason(
        "busy-loop",
        f"runs in a loop that does not end, in {words.place(one.where)}",
        (
            f"it uses {share} and never leaves {one.where.function if one.where else 'that function'}",
            "lines seen: " + ", ".join(map(str, sorted(_lines(case, one)))),
        ),
        (f"breakranks stacks pid:{one.process.pid} --native",),
        LIKELY,
        PATIENCE,
        one.where,
        "it was in the same function each time we looked, using a whole CPU",
    )


def _lines(case: Case, one: Look) -> set[int]:
    assert one.thread is not None
    found = set()
    for sample in one.process.samples:
        for thread in sample.threads:
            if thread.tid == one.thread.tid and thread.stack:
                found.add(case.snapshot.stack(thread.stack)[-1].line)
    return found
