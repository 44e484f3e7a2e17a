"""Words for ``explain.causes.helper_causes``."""

from __future__ import annotations

from breakranks.explain.causes import helper_causes as h
from breakranks.explain.values import Subject
from breakranks.show.quantities import duration
from breakranks.show.wording.grammar import its, listed, verb
from breakranks.show.wording.registry import cause_text, fact_text
from breakranks.show.wording.value_wording import activity, command, place, predicate, stood

_SHORT = 60  # characters of a command within a sentence
_LOST = "a helper died and its task is lost"


def _task(task: str) -> str:
    return f"in {task}" if task else "loading data"


def _pids(pids: tuple[int, ...]) -> str:
    return listed([str(pid) for pid in pids])


@cause_text.register
def _(cause: h.WorkerGone, subject: Subject) -> str:
    worker = f"worker {cause.worker} (process {cause.pid}), which is gone, in {place(cause.where)}"
    return predicate(subject, "wait", f"({_task('')}) for {worker}")


@cause_text.register
def _(cause: h.HelperDead, subject: Subject) -> str:
    which = f"{its(subject.count)} helper process" + ("" if len(cause.pids) == 1 else "es")
    dead = "which is dead" if len(cause.pids) == 1 else "which are dead"
    text = f"({_task(cause.task)}) for {which} {_pids(cause.pids)}, {dead}, in {place(cause.where)}"
    return predicate(subject, "wait", text)


@cause_text.register
def _(cause: h.HelperStopped, subject: Subject) -> str:
    helper = f"{its(subject.count)} helper process {cause.pid}"
    return predicate(subject, "wait", f"({_task(cause.task)}) for {helper}, which is stopped (state {cause.state})")


@cause_text.register
def _(cause: h.HelperStuck, subject: Subject) -> str:
    worker = "" if cause.worker is None else f" (worker {cause.worker})"
    sample = "" if cause.sample is None else f", at sample {cause.sample}"
    doing = f"which is {activity(cause.doing)} in {place(cause.doing.where)}{sample}"
    helper = f"{its(subject.count)} helper process {cause.pid}{worker}"
    return predicate(subject, "wait", f"({_task(cause.task)}) for {helper}, {doing}")


@cause_text.register
def _(cause: h.TaskLost, subject: Subject) -> str:
    text = f"in {cause.op} for a result that no helper is working on, in {place(cause.where)}: {_LOST}"
    return predicate(subject, "wait", text)


@cause_text.register
def _(cause: h.NoHelper, subject: Subject) -> str:
    none = f"but {verb(subject.count, 'have')} no helper process any more"
    return predicate(subject, "wait", f"{_task(cause.task)} in {place(cause.where)}, {none}")


@cause_text.register
def _(cause: h.HelperWait, subject: Subject) -> str:
    return predicate(subject, "wait", f"{_task(cause.task)} in {place(cause.where)}")


@fact_text.register
def _(fact: h.BatchDue) -> str:
    gone = ": there is none" if fact.gone else ""
    return f"batch {fact.batch} is due from worker {fact.worker}, process {fact.pid}{gone}"


@fact_text.register
def _(fact: h.HelperZombies) -> str:
    if len(fact.pids) == 1:
        return f"process {fact.pids[0]} is a zombie: it ended and {fact.parent} has not taken note"
    return f"processes {_pids(fact.pids)} are zombies: they ended and {fact.parent} has not taken note"


@fact_text.register
def _(fact: h.HelperState) -> str:
    return f"helper {fact.pid} is in state {fact.state}"


@fact_text.register
def _(fact: h.HelperDoing) -> str:
    return f"helper {fact.pid} is {activity(fact.doing)}, in {place(fact.doing.where)}{stood(fact.doing.stands)}"


@fact_text.register
def _(fact: h.ForkedWithLock) -> str:
    return "it waits for a lock and has no other thread: a thread of its parent held the lock when it was forked"


@fact_text.register
def _(fact: h.ReadsSample) -> str:
    batch = f", of batch {fact.batch}" if fact.batch >= 0 else ""
    samples = ", ".join([*map(str, fact.samples), *(["…"] if fact.more else [])])
    return f"it reads sample {fact.index}{batch}" + (f": {samples}" if samples else "")


@fact_text.register
def _(fact: h.HelpersIdle) -> str:
    if fact.count == 1:
        return "its only helper is idle, waiting for work"
    return f"all {fact.count} helpers are idle, waiting for work"


@fact_text.register
def _(fact: h.HelperReplaced) -> str:
    return f"one of them started {duration(fact.seconds)} after the first: it replaced one that died"


@fact_text.register
def _(fact: h.NoChildren) -> str:
    return f"process {fact.pid} has no children"


@fact_text.register
def _(fact: h.HelperCommands) -> str:
    return f"its helpers: {listed([command(one, _SHORT) for one in fact.commands])}"
