"""debugger-prompt: a rank waits for input."""

from __future__ import annotations

from breakranks.explain.actions import Action, Advise, RunBreakranks, RunShell
from breakranks.explain.causes.process_causes import AtBreakpoint, AtPrompt, InBreakpoint, InsidePrompt, StandardInput
from breakranks.explain.diagnosis import CERTAIN
from breakranks.explain.finding_parts import where_of
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules.rank_cause import AT_ONCE_SECONDS, RankCause


def reason(job: JobView, view: ProcessView) -> RankCause | None:
    if view.activity.word not in ("prompt", "held"):
        return None
    if view.activity.op == "breakranks":
        return _ours(view)
    terminal = next((file.path for file in view.process.files if file.fd == 0), "")
    return RankCause(
        kind="debugger-prompt",
        cause=AtPrompt(op=view.activity.op, where=where_of(view.where)),
        evidence=(InsidePrompt(op=view.activity.op), *((StandardInput(path=terminal),) if terminal else ())),
        next=(_answer(terminal, view.process.pid),),
        confidence=CERTAIN,
        needs=AT_ONCE_SECONDS,
        where=view.where,
        grounds=("prompt-on-stack",),
    )


def _answer(terminal: str, pid: int) -> Action:
    if terminal.startswith("/dev/") and "null" not in terminal:
        return Advise(what="answer-prompt", path=terminal)
    return RunShell(script=f"kill -INT {pid}", comment="its prompt has no terminal")


def _ours(view: ProcessView) -> RankCause:
    return RankCause(
        kind="debugger-prompt",
        cause=AtBreakpoint(held=view.activity.word == "held", where=where_of(view.where)),
        evidence=(InBreakpoint(),),
        next=(
            RunBreakranks(command="console"),
            RunBreakranks(command="console", args=("-c", "go"), comment="resumes all ranks"),
        ),
        confidence=CERTAIN,
        needs=AT_ONCE_SECONDS,
        where=view.where,
        grounds=("breakpoint-on-stack",),
    )
