"""debugger-prompt: a person is awaited."""

from __future__ import annotations

from breakranks.explain.actions import Action, Advise, RunBreakranks, RunShell
from breakranks.explain.causes.process_causes import AtBreakpoint, AtPrompt, InBreakpoint, InsidePrompt, StandardInput
from breakranks.explain.diagnosis import CERTAIN
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.rank_cause import AT_ONCE_SECONDS, RankCause
from breakranks.explain.values import where_of


def reason(case: JobView, one: ProcessView) -> RankCause | None:
    if one.activity.word not in ("prompt", "held"):
        return None
    if one.activity.op == "breakranks":
        return _ours(one)
    terminal = next((file.path for file in one.process.files if file.fd == 0), "")
    return RankCause(
        kind="debugger-prompt",
        cause=AtPrompt(op=one.activity.op, where=where_of(one.where)),
        evidence=(InsidePrompt(op=one.activity.op), *((StandardInput(path=terminal),) if terminal else ())),
        next=(_answer(terminal, one.process.pid),),
        confidence=CERTAIN,
        needs=AT_ONCE_SECONDS,
        where=one.where,
        grounds=("prompt-on-stack",),
    )


def _answer(terminal: str, pid: int) -> Action:
    if terminal.startswith("/dev/") and "null" not in terminal:
        return Advise(what="answer-prompt", path=terminal)
    return RunShell(script=f"kill -INT {pid}", comment="its prompt has no terminal")


def _ours(one: ProcessView) -> RankCause:
    return RankCause(
        kind="debugger-prompt",
        cause=AtBreakpoint(held=one.activity.word == "held", where=where_of(one.where)),
        evidence=(InBreakpoint(),),
        next=(
            RunBreakranks(command="console"),
            RunBreakranks(command="console", args=("-c", "go"), comment="lets all ranks run on"),
        ),
        confidence=CERTAIN,
        needs=AT_ONCE_SECONDS,
        where=one.where,
        grounds=("breakpoint-on-stack",),
    )
