"""Words for ``explain.causes.process_causes``."""

from __future__ import annotations

from breakranks.explain.causes import process_causes as p
from breakranks.explain.finding_parts import Subject
from breakranks.show.quantities import plural
from breakranks.show.wording.grammar import its, listed, pronoun, verb
from breakranks.show.wording.value_wording import place, predicate
from breakranks.show.wording.wording_registry import cause_text, fact_text

_STOPPED = {
    "signal": "stopped by a signal (state T)",
    "debugger": "stopped by a debugger (state t)",
    "": "stopped",
}
_STATES = {
    "T": "in state T: stopped by a signal (SIGSTOP, SIGTSTP, SIGTTIN or SIGTTOU)",
    "t": "in state t: stopped by a tracer (ptrace)",
    "Z": "a zombie",
    "X": "gone",
}


def _share(share: float) -> str:
    return f"{share * 100:.0f} % of a CPU"


@cause_text.register
def _(cause: p.Stopped, subject: Subject) -> str:
    return predicate(subject, "are", _STOPPED[cause.by])


@cause_text.register
def _(cause: p.Ended, subject: Subject) -> str:
    zombie = f" and {its(subject.count)} launcher has not reaped {pronoun(subject.count)} (zombie)"
    return predicate(subject, "have", "ended" + (zombie if cause.zombie else ""))


@cause_text.register
def _(cause: p.AtPrompt, subject: Subject) -> str:
    return predicate(subject, "wait", f"for input at a prompt ({cause.op}), in {place(cause.where)}")


@cause_text.register
def _(cause: p.AtBreakpoint, subject: Subject) -> str:
    if cause.held:
        return predicate(subject, "are", f"held at a breakpoint in {place(cause.where)}, and no rank is at a prompt")
    return predicate(subject, "wait", f"at a breakranks prompt, in {place(cause.where)}")


@cause_text.register
def _(cause: p.GilHeldInC, subject: Subject) -> str:
    inside = f"no Python code can run in {pronoun(subject.count)}"
    return predicate(
        subject, "hold", f"the GIL in C code ({cause.function}), called from {place(cause.where)}; {inside}"
    )


@cause_text.register
def _(cause: p.Spinning, subject: Subject) -> str:
    return predicate(subject, "are", f"spinning in a loop without making progress, in {place(cause.where)}")


@cause_text.register
def _(cause: p.Computing, subject: Subject) -> str:
    context = f", {cause.context}" if cause.context else ""
    return predicate(subject, "are", f"still computing{context} in {place(cause.where)}")


@fact_text.register
def _(fact: p.KernelState) -> str:
    return f"process {fact.pid} is {_STATES[fact.state]}"


@fact_text.register
def _(fact: p.OomKilled) -> str:
    return f"the kernel killed it because memory ran out: {fact.line}"


@fact_text.register
def _(fact: p.InsidePrompt) -> str:
    return f"its stack is inside {fact.op}"


@fact_text.register
def _(fact: p.InBreakpoint) -> str:
    return "its stack is in breakranks.breakpoint()"


@fact_text.register
def _(fact: p.StandardInput) -> str:
    return f"its standard input is {fact.path}"


@fact_text.register
def _(fact: p.GilHolder) -> str:
    how = f"blocked in {fact.call}" if fact.call else "computing"
    return f"thread {fact.thread} holds the GIL in every sample, {how}"


@fact_text.register
def _(fact: p.CFrames) -> str:
    return f"C frames: {' > '.join(fact.functions)}" if fact.functions else "no C frames could be read"


@fact_text.register
def _(fact: p.GilWaiters) -> str:
    return f"{plural(fact.threads, 'other thread')} of the process {verb(fact.threads, 'wait')} for it"


@fact_text.register
def _(fact: p.NeverLeaves) -> str:
    return f"it uses {_share(fact.share)} and never leaves {fact.function}"


@fact_text.register
def _(fact: p.SeenAtLines) -> str:
    lines = listed([str(line) for line in fact.lines], "or")
    return f"it was at line {lines} in {'all ' if fact.looks != 1 else ''}{plural(fact.looks, 'sample')}"


@fact_text.register
def _(fact: p.MovesInCode) -> str:
    lines = plural(fact.lines, "different line") if fact.lines != 1 else "1 line"
    return f"it uses {_share(fact.share)}, at {lines} in {plural(fact.looks, 'sample')}"
