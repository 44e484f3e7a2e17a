"""Words for ``explain.causes.thread_causes``."""

from __future__ import annotations

from breakranks.explain.causes import thread_causes as t
from breakranks.explain.finding_parts import Subject
from breakranks.explain.wait_chains import JOINS
from breakranks.show.wording.grammar import its, listed, noun, pronoun, verb
from breakranks.show.wording.value_wording import activity, place, predicate
from breakranks.show.wording.wording_registry import cause_text, fact_text

# Kinds with the article "an".
_AN = frozenset({"Event", "RLock"})


def thing(wait: t.WaitedObject) -> str:
    """``self.lock (Lock)``"""
    if wait.kind == "Thread":
        return f"thread {wait.name}"
    if wait.kind == "import lock":
        return f"the import lock of {wait.name}"
    return f"{wait.name} ({wait.kind})" if wait.name else f"{'an' if wait.kind in _AN else 'a'} {wait.kind}"


def _thread(name: str) -> str:
    return name if name == "MainThread" else f"thread {name}"


def _owner(wait: t.WaitedObject, owner: str) -> str:
    if wait.kind == "Thread":
        return ""
    return f", run by {_thread(owner)}" if wait.kind == "Future" else f", held by {_thread(owner)}"


def _chain(steps: tuple[t.ThreadStep, ...], back: int | None, *, named: bool) -> str:
    """Return ``MainThread waits for a (Lock), held by thread x, which waits for b (Lock), held by MainThread``. Not
    ``named``: without the first words, because the subject has been named before."""
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
    text = (
        f"{cause.count} threads that wait for locks ({listed(cause.threads)}), the main thread in {place(cause.where)}"
    )
    return predicate(subject, "have", text)


@cause_text.register
def _(cause: t.AwaitsObject, subject: Subject) -> str:
    wait = cause.wait
    which = "at which" if wait.kind == "Barrier" else "which is"
    object_text = f"{thing(wait)}, {which} {wait.state}," if wait.state else thing(wait)
    ended = ""
    if cause.ended:
        threads = f"{noun(len(cause.ended), 'thread')} {listed(cause.ended)}"
        starter = pronoun(subject.count, "it", "they")
        ended = f"; {threads}, which {starter} started, {verb(len(cause.ended), 'have')} ended"
    return predicate(subject, "wait", f"for {object_text} in {place(cause.where)}{ended}")


@cause_text.register
def _(cause: t.AwaitsUnknown, subject: Subject) -> str:
    if cause.releasable:
        return predicate(subject, "wait", f"for a {cause.what} in {place(cause.where)}")
    end = f"none of {its(subject.count)} threads can end this wait"
    return predicate(subject, "wait", f"for a {cause.what} in {place(cause.where)}, and {end}")


@fact_text.register
def _(fact: t.ThreadWaitsFor) -> str:
    said = ""
    if fact.owner and fact.wait.taken is not None:
        said = f"; {fact.owner} took it in {place(fact.wait.taken)}"
    elif fact.owner and fact.wait.kind not in JOINS:
        said = f"; {fact.owner} holds it"
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
    return "the lock cannot be identified from outside the process"


@fact_text.register
def _(fact: t.QueueUsers) -> str:
    queue = fact.queue or "the queue"
    if not fact.threads:
        return f"no other thread of the process has {queue} among its variables"
    number = len(fact.threads)
    return f"{listed(fact.threads)} also {verb(number, 'have')} {queue} among {its(number)} variables"


@fact_text.register
def reported_wait(fact: t.ReportedWait) -> str:
    """Return what a thread waits for, in a few words."""
    if fact.wait is None:
        return f"waits for {fact.path}" if fact.path else f"waits for batch {fact.batch} of worker {fact.worker}"
    text = f"waits for {thing(fact.wait)}"
    if fact.own:
        return f"{text}, which it holds itself"
    if fact.owner and fact.wait.kind not in JOINS:
        text += f", held by {fact.owner}"
    return f"{text}, {fact.wait.state}" if fact.wait.state else text
