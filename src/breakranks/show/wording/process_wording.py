"""Words for ``explain.causes.process_causes``."""

from __future__ import annotations

from breakranks.explain.causes import process_causes as p
from breakranks.explain.values import Subject
from breakranks.show.quantities import plural, times
from breakranks.show.wording.grammar import listed, verb
from breakranks.show.wording.registry import cause_text, fact_text
from breakranks.show.wording.value_wording import place, predicate

_STOPPED = {
    "signal": "stopped by a signal (state T)",
    "debugger": "stopped by a debugger (state t)",
    "": "stopped",
}
_STATES = {
    "T": "in state T: it was sent SIGSTOP or SIGTSTP and does not run",
    "t": "in state t: another process traces it and holds it",
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
    its = "its launcher has" if subject.count == 1 else "their launcher has"
    return predicate(subject, "have", "ended" + (f" and {its} not noticed (zombie)" if cause.zombie else ""))


@cause_text.register
def _(cause: p.AtPrompt, subject: Subject) -> str:
    return predicate(subject, "wait", f"for a person at a prompt ({cause.op}), in {place(cause.where)}")


@cause_text.register
def _(cause: p.AtBreakpoint, subject: Subject) -> str:
    if cause.held:
        return predicate(subject, "are", f"held at a breakpoint, and no rank is at a prompt, in {place(cause.where)}")
    return predicate(subject, "wait", f"at a prompt of breakranks, in {place(cause.where)}")


@cause_text.register
def _(cause: p.GilHeldInC, subject: Subject) -> str:
    inside = "it" if subject.count == 1 else "them"
    text = f"the GIL in C code ({cause.function}), called from {place(cause.where)}; no Python can run in {inside}"
    return predicate(subject, "hold", text)


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
    return f"the kernel killed it, out of memory: {fact.line}"


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
    return f"seen {times(fact.looks)}, always at line {listed([str(line) for line in fact.lines], 'or')}"


@fact_text.register
def _(fact: p.MovesInCode) -> str:
    lines = plural(fact.lines, "different line") if fact.lines != 1 else "1 line"
    return f"it uses {_share(fact.share)}, at {lines} in {plural(fact.looks, 'look')}"
