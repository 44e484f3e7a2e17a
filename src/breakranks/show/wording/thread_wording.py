"""Words for ``explain.causes.thread_causes``."""

from __future__ import annotations

from breakranks.explain.causes import thread_causes as t
from breakranks.explain.values import Subject
from breakranks.show.wording.grammar import its, listed, pronoun, verb
from breakranks.show.wording.registry import cause_text, fact_text
from breakranks.show.wording.value_wording import activity, place, predicate

# Waits for a thread to do something, and not for a lock that it has.
_JOINS = frozenset({"Thread", "Future"})


def thing(wait: t.WaitedObject) -> str:
    """``self.lock (Lock)``"""
    if wait.kind == "Thread":
        return f"thread {wait.name}"
    if wait.kind == "import lock":
        return f"the import lock of {wait.name}"
    return f"{wait.name} ({wait.kind})" if wait.name else f"a {wait.kind}"


def _thread(name: str) -> str:
    return name if name == "MainThread" else f"thread {name}"


def _owner(wait: t.WaitedObject, owner: str) -> str:
    if wait.kind == "Thread":
        return ""
    return f", run by {_thread(owner)}" if wait.kind == "Future" else f", held by {_thread(owner)}"


def _chain(steps: tuple[t.ThreadStep, ...], back: int | None, *, named: bool) -> str:
    """``MainThread waits for a (Lock), held by thread x, which waits for b (Lock), held by MainThread``. Not ``named``:
    without its first words, where the subject is named before."""
    text = ""
    for index, step in enumerate(steps):
        if index:
            text += ", which " if step.wait is not None else ", which is "
        elif named:
            text = f"{step.thread} "
        if step.wait is None:
            return f"{text}{activity(step.doing)} in {place(step.doing.where)}"
        text += ("waits for " if index or named else "") + thing(step.wait)
        text += "" if index else f" in {place(step.doing.where)}"
        following = steps[index + 1] if index + 1 < len(steps) else steps[back] if back is not None else None
        text += _owner(step.wait, following.thread) if following is not None else ""
    return text


@cause_text.register
def _(cause: t.ThreadRing, subject: Subject) -> str:
    return predicate(
        subject, "have", f"threads that wait for each other: {_chain(cause.steps, cause.back, named=True)}"
    )


@cause_text.register
def _(cause: t.SelfDeadlock, subject: Subject) -> str:
    taken = f", taken in {place(cause.wait.taken)}" if cause.wait.taken is not None else ""
    holds = "it holds itself" if subject.count == 1 else "they hold themselves"
    return predicate(subject, "wait", f"for {thing(cause.wait)} in {place(cause.where)}, which {holds}{taken}")


@cause_text.register
def _(cause: t.OwnedByThread, subject: Subject) -> str:
    return predicate(subject, "wait", f"for {_chain(cause.steps, None, named=False)}")


@cause_text.register
def _(cause: t.AtEndOfProgram, subject: Subject) -> str:
    names = listed(cause.threads) or f"{its(subject.count)} threads"
    waits = verb(subject.count, "wait")
    return predicate(subject, "have", f"reached the end of {its(subject.count)} program and {waits} for {names} to end")


@cause_text.register
def _(cause: t.ThreadsAtLocks, subject: Subject) -> str:
    text = f"{cause.count} threads that wait for locks ({listed(cause.threads)}), the main one in {place(cause.where)}"
    return predicate(subject, "have", text)


@cause_text.register
def _(cause: t.AwaitsObject, subject: Subject) -> str:
    wait = cause.wait
    which = "to which" if wait.kind == "Barrier" else "which is"
    told = f"{thing(wait)}, {which} {wait.state}," if wait.state else thing(wait)
    ended = ""
    if cause.ended:
        threads = "thread" if len(cause.ended) == 1 else "threads"
        started = "it has started" if subject.count == 1 else "they have started"
        ended = f"; {threads} {listed(cause.ended)}, which {started}, {verb(len(cause.ended), 'have')} ended"
    return predicate(subject, "wait", f"for {told} in {place(cause.where)}{ended}")


@cause_text.register
def _(cause: t.AwaitsUnknown, subject: Subject) -> str:
    if cause.releasable:
        return predicate(subject, "wait", f"for a {cause.what} in {place(cause.where)}")
    them = pronoun(subject.count)
    return predicate(
        subject, "wait", f"for a {cause.what} that no thread of {them} can release, in {place(cause.where)}"
    )


@fact_text.register
def _(fact: t.ThreadWaitsFor) -> str:
    said = ""
    if fact.owner and fact.wait.taken is not None:
        said = f"; {fact.owner} took it in {place(fact.wait.taken)}"
    elif fact.owner and fact.wait.kind not in _JOINS:
        said = f"; it belongs to {fact.owner}"
    return f"thread {fact.thread} waits for {thing(fact.wait)} in {place(fact.where)}{said}"


@fact_text.register
def _(fact: t.ThreadDoes) -> str:
    return f"thread {fact.thread} is {activity(fact.doing)}" + (
        f", in {place(fact.doing.where)}" if fact.placed else ""
    )


@fact_text.register
def _(fact: t.ThreadWaitsIn) -> str:
    return f"thread {fact.thread} waits ({fact.op}) in {place(fact.where)}"


@fact_text.register
def _(fact: t.UnknownLock) -> str:
    return "which lock it is cannot be seen from outside"


@fact_text.register
def _(fact: t.QueueUsers) -> str:
    queue = fact.queue or "the queue"
    if not fact.threads:
        return f"no other thread of the process has {queue} in its variables"
    return f"{listed(fact.threads)} {verb(len(fact.threads), 'have')} {queue} too"


@fact_text.register
def said_wait(fact: t.SaidWait) -> str:
    """What a thread waits for, in a few words."""
    if fact.wait is None:
        return f"waits for {fact.path}" if fact.path else f"waits for batch {fact.batch} of worker {fact.worker}"
    text = f"waits for {thing(fact.wait)}"
    if fact.own:
        return f"{text}, which it holds itself"
    if fact.owner and fact.wait.kind not in _JOINS:
        text += f", held by {fact.owner}"
    return f"{text}, {fact.wait.state}" if fact.wait.state else text
