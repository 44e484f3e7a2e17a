"""Words for ``explain.causes.file_causes``."""

from __future__ import annotations

from breakranks.explain.causes import file_causes as f
from breakranks.explain.finding_parts import Subject
from breakranks.show.quantities import duration, plural
from breakranks.show.wording.grammar import its, noun, pronoun, verb
from breakranks.show.wording.value_wording import command, doing_for, number, opened, place, predicate, ranks, who
from breakranks.show.wording.wording_registry import cause_text, fact_text


def _modified(age: float | None) -> str:
    return "" if age is None else f", last modified {duration(age)} ago"


def _holder(holder: f.LockHolder) -> str:
    """``rank 3, process 41 (python train.py)``"""
    if not holder.pid:
        return who(holder.subject) if holder.subject is not None else f"rank {holder.rank}"
    text = f"process {holder.pid} ({command(holder.command)})"
    return text if holder.rank is None else f"rank {holder.rank}, {text}"


def _state(state: str) -> str:
    return "uninterruptible wait, state D" if state == "D" else f"state {state}"


@cause_text.register
def _(cause: f.UnknownLockFile, subject: Subject) -> str:
    return predicate(subject, "wait", f"for a lock file ({cause.op}), in {place(cause.where)}")


@cause_text.register
def _(cause: f.StaleLockFile, subject: Subject) -> str:
    text = f"for the lock file {cause.path}{_modified(cause.age)}, which no process holds: it was left behind"
    return predicate(subject, "wait", text)


@cause_text.register
def _(cause: f.LockFileHeld, subject: Subject) -> str:
    return predicate(
        subject, "wait", f"for the lock file {cause.path}{_modified(cause.age)}, held by {_holder(cause.holder)}"
    )


@cause_text.register
def _(cause: f.RankHoldsLock, subject: Subject) -> str:
    waiters = f"{ranks(cause.wanted_by)} {verb(number(cause.wanted_by), 'wait')} for it in {place(cause.wanted_where)}"
    if cause.doing.word == "unknown":
        stacks = f"{its(subject.count)} {noun(subject.count, 'stack')} could not be read"
        return predicate(subject, "hold", f"the lock {cause.path}; {stacks}; {waiters}")
    doing = f"{doing_for(cause.doing)} in {place(cause.doing.where)}"
    it_is = f"{pronoun(subject.count, 'it', 'they')} {verb(subject.count, 'are')}"
    return predicate(subject, "hold", f"the lock {cause.path} while {it_is} {doing}; {waiters}")


@cause_text.register
def _(cause: f.BlockedIo, subject: Subject) -> str:
    text = (
        f"{cause.verb} {opened(cause.about or 'a file', cause.peer)} ({_state(cause.state)}), in {place(cause.where)}"
    )
    return predicate(subject, "are", text)


@cause_text.register
def _(cause: f.BlockedBelow, subject: Subject) -> str:
    state = f" ({_state('D')})" if cause.uninterruptible else ""
    return predicate(subject, "are", f"blocked on files under {cause.folder}{state}")


@fact_text.register
def _(fact: f.UnknownFile) -> str:
    return "the file cannot be identified from outside the process"


@fact_text.register
def _(fact: f.FileExists) -> str:
    return f"{fact.path} exists{_modified(fact.age)}"


@fact_text.register
def _(fact: f.FileNotOpen) -> str:
    elsewhere = ", and no rank on another host" if fact.shared else ""
    return f"no process on {fact.host or 'this host'} has it open or locked{elsewhere}"


@fact_text.register
def _(fact: f.WaitsInCall) -> str:
    return f"the wait is in {fact.op}, called from {place(fact.where)}"


@fact_text.register
def _(fact: f.WaitsForFile) -> str:
    return f"{fact.op} waits for {fact.path}"


@fact_text.register
def _(fact: f.FileHeldBy) -> str:
    return f"held by {_holder(fact.holder)}"


@fact_text.register
def _(fact: f.LockOnFile) -> str:
    return f"{fact.kind} lock on {fact.path}, held by process {fact.pid}"


@fact_text.register
def _(fact: f.BlockedIn) -> str:
    return f"blocked in {fact.call or 'the kernel'}" + (f", kernel function {fact.kernel}" if fact.kernel else "")


@fact_text.register
def _(fact: f.BytesMoved) -> str:
    return f"{plural(fact.count, 'byte') if fact.count else 'no bytes'} moved in {duration(fact.seconds)}"
