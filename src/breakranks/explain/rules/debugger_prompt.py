"""debugger-prompt: a person is awaited."""

from __future__ import annotations

from breakranks.explain import phrases
from breakranks.explain.diagnosis import CERTAIN
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.rank_cause import AT_ONCE_SECONDS, RankCause


def reason(case: JobView, one: ProcessView) -> RankCause | None:
    if one.activity.word not in ("prompt", "held"):
        return None
    if one.activity.op == "breakranks":
        return _ours(one)
    terminal = next((file.path for file in one.process.files if file.fd == 0), "")
    evidence = [f"its stack is inside {one.activity.op}"]
    if terminal:
        evidence.append(f"its standard input is {terminal}")
    return RankCause(
        kind="debugger-prompt",
        text=f"waits for a person at a prompt ({one.activity.op}), in {phrases.place(one.where)}",
        evidence=tuple(evidence),
        next=(f"answer at {terminal} (c continues)" if terminal.startswith("/dev/") and "null" not in terminal
         else f"kill -INT {one.process.pid}  # its prompt has no terminal",),
        confidence=CERTAIN,
        needs=AT_ONCE_SECONDS,
        where=one.where,
        because="its stack shows the prompt",
    )  # fmt: skip


def _ours(one: ProcessView) -> RankCause:
    held = one.activity.word == "held"
    what = "is held at a breakpoint, and nobody is at a prompt" if held else "waits for a person at breakranks' prompt"
    return RankCause(
        kind="debugger-prompt",
        text=f"{what}, in {phrases.place(one.where)}",
        evidence=("its stack is in breakranks.breakpoint()",),
        next=("breakranks console", "breakranks console -c go  # lets all ranks run on"),
        confidence=CERTAIN,
        needs=AT_ONCE_SECONDS,
        where=one.where,
        because="its stack shows it",
    )
