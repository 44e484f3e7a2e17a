"""Words for ``explain.causes.helper_causes``."""

from __future__ import annotations

from breakranks.explain.causes import helper_causes as h
from breakranks.explain.finding_parts import Subject
from breakranks.show.quantities import duration
from breakranks.show.wording.grammar import all_of, its, listed, noun, verb
from breakranks.show.wording.value_wording import activity, command, lasted, place, predicate
from breakranks.show.wording.wording_registry import cause_text, fact_text

_COMMAND_CHARACTERS = 60
_LOST = "a helper died and its task was lost"


def _awaits(task: str) -> str:
    """Return the words between ``waits`` and the helper."""
    return f"in {task} for" if task else "for data from"


def _wait(task: str) -> str:
    return f"in {task}" if task else "for data"


def _pids(pids: tuple[int, ...]) -> str:
    return listed([str(pid) for pid in pids])


@cause_text.register
def _(cause: h.WorkerGone, subject: Subject) -> str:
    worker = f"worker {cause.worker} (process {cause.pid}), which is gone, in {place(cause.where)}"
    return predicate(subject, "wait", f"for data from {worker}")


@cause_text.register
def _(cause: h.HelperDead, subject: Subject) -> str:
    helpers = f"{its(subject.count)} helper {noun(len(cause.pids), 'process', 'processes')} {_pids(cause.pids)}"
    dead = f"which {verb(len(cause.pids), 'are')} dead"
    return predicate(subject, "wait", f"{_awaits(cause.task)} {helpers}, {dead}, in {place(cause.where)}")


@cause_text.register
def _(cause: h.HelperStopped, subject: Subject) -> str:
    helper = f"{its(subject.count)} helper process {cause.pid}"
    return predicate(subject, "wait", f"{_awaits(cause.task)} {helper}, which is stopped (state {cause.state})")


@cause_text.register
def _(cause: h.HelperStuck, subject: Subject) -> str:
    worker = "" if cause.worker is None else f" (worker {cause.worker})"
    sample = "" if cause.sample is None else f", at sample {cause.sample}"
    doing = f"which is {activity(cause.doing)} in {place(cause.doing.where)}{sample}"
    helper = f"{its(subject.count)} helper process {cause.pid}{worker}"
    return predicate(subject, "wait", f"{_awaits(cause.task)} {helper}, {doing}")


@cause_text.register
def _(cause: h.TaskLost, subject: Subject) -> str:
    text = f"in {cause.op} for a result that no helper is working on, in {place(cause.where)}: {_LOST}"
    return predicate(subject, "wait", text)


@cause_text.register
def _(cause: h.NoHelper, subject: Subject) -> str:
    none = f"but {verb(subject.count, 'have')} no helper process left"
    return predicate(subject, "wait", f"{_wait(cause.task)}, in {place(cause.where)}, {none}")


@cause_text.register
def _(cause: h.HelperWait, subject: Subject) -> str:
    return predicate(subject, "wait", f"{_wait(cause.task)}, in {place(cause.where)}")


@fact_text.register
def _(fact: h.BatchDue) -> str:
    gone = ", which no longer exists" if fact.gone else ""
    return f"batch {fact.batch} is due from worker {fact.worker}, process {fact.pid}{gone}"


@fact_text.register
def _(fact: h.HelperZombies) -> str:
    if len(fact.pids) == 1:
        return f"process {fact.pids[0]} is a zombie: it has ended and process {fact.parent} has not reaped it"
    return f"processes {_pids(fact.pids)} are zombies: they have ended and process {fact.parent} has not reaped them"


@fact_text.register
def _(fact: h.HelperState) -> str:
    return f"helper {fact.pid} is in state {fact.state}"


@fact_text.register
def _(fact: h.HelperDoing) -> str:
    return f"helper {fact.pid} is {activity(fact.doing)}, in {place(fact.doing.where)}{lasted(fact.doing.stands)}"


@fact_text.register
def _(fact: h.ForkedWithLock) -> str:
    return "it waits for a lock and has no other thread: a thread of its parent held the lock when it was forked"


@fact_text.register
def _(fact: h.ReadsSample) -> str:
    batch = f" of batch {fact.batch}" if fact.batch >= 0 else ""
    samples = ", ".join([*map(str, fact.samples), *(["…"] if fact.more else [])])
    indices = noun(len(fact.samples) + fact.more, "index", "indices")
    return f"it reads sample {fact.index}{batch}" + (f" (dataset {indices} {samples})" if samples else "")


@fact_text.register
def _(fact: h.HelpersIdle) -> str:
    if fact.count == 1:
        return "its only helper is idle, waiting for work"
    return f"{all_of(fact.count)} helpers are idle, waiting for work"


@fact_text.register
def _(fact: h.HelperReplaced) -> str:
    return f"one of them started {duration(fact.seconds)} after the first: it replaced one that died"


@fact_text.register
def _(fact: h.NoChildren) -> str:
    return f"process {fact.pid} has no child process"


@fact_text.register
def _(fact: h.HelperCommands) -> str:
    return f"its helpers: {listed([command(name, _COMMAND_CHARACTERS) for name in fact.commands])}"
