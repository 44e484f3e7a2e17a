"""Interpret the answer of a process: which lock a thread waits for and which thread holds it, files, steps, samples."""

from __future__ import annotations

import os
import re
import time
from typing import Any, NamedTuple

from breakranks.introspect.library_waits import FILES, LOCK_FILES, library_row
from breakranks.introspect.process_answers import (
    AnsweredFrame,
    AnsweredThread,
    ProcessAnswer,
    Values,
    kind_of,
    numbers,
    plain,
)
from breakranks.introspect.source_analysis import NOTHING
from breakranks.introspect.wanted_variables import Questions, SeenThread
from breakranks.snapshot.code_owner import is_own
from breakranks.snapshot.introspection import (
    BY_ACQUIRE,
    BY_LOCK,
    BY_WITH,
    Introspection,
    Item,
    Loader,
    Loop,
    PolledFile,
    ThreadWait,
)
from breakranks.snapshot.model import Frame

_MAX_TEXT_CHARACTERS = 200
_LOCK_ENDING = re.compile(r"(lock|\.lck|\.pid)\Z", re.IGNORECASE)


class _Hold(NamedTuple):
    tid: int
    lock: int
    condition: int
    sure: bool
    frame: Frame
    line: int


def interpret(answer: ProcessAnswer, asked: Questions, threads: tuple[SeenThread, ...], pid: int) -> Introspection:
    """Interpret an answer. Of threads that have moved since ``threads`` were seen, only polled files count."""
    seen = {thread.tid: thread.frames for thread in threads}
    known = [thread for thread in answer.threads if seen.get(thread.tid, ())[-1:] == (thread.top,)]
    here = [thread for thread in answer.threads if thread.tid in seen]
    reader = _AnswerReader(known, asked)
    loaders = [loader for thread in known for loader in reader.loader(thread)]
    items = [item for thread in known for item in _item(thread)]
    return Introspection(
        time=time.time(),
        waits=tuple(wait for thread in known if (wait := reader.wait(thread)) is not None),
        loops=tuple(loop for thread in known for loop in reader.loops(thread)),
        polled=tuple(file for thread in here for file in reader.polled(thread, pid)),
        loader=loaders[0] if loaders else None,
        item=items[0] if items else None,
    )


class _AnswerReader:
    """Reads one answer. Locks are identified by the id of the object, never by name."""

    def __init__(self, known: list[AnsweredThread], asked: Questions) -> None:
        self._asked = asked
        self._tids = {thread.ident: thread.tid for thread in known}
        self._frames = {thread.tid: {frame.depth: frame for frame in thread.frames} for thread in known}
        self._conditions = {thread.tid: _condition(self._library_frame(thread)) for thread in known}
        self._holds = [hold for thread in known for hold in self._held(thread)]

    def wait(self, thread: AnsweredThread) -> ThreadWait | None:
        site = self._library_frame(thread)
        if site is not None:
            return self._library_wait(thread, site)
        at = self._innermost(thread)
        if at is None:
            return None
        locks = []
        for path in self._line(at.frame).waits:
            value = at.values.get(path)
            lock = value if kind_of(value) in ("Lock", "RLock") else at.values.get(f"{path}._lock")
            if isinstance(value, dict) and isinstance(lock, dict) and lock.get("locked"):
                locks.append(self._lock_wait(thread, lock, kind_of(value) or "lock", path))
        # A thread does not wait for a reentrant lock that it holds itself.
        locks = [wait for wait in locks if wait.owner != thread.tid or wait.kind not in ("RLock", "Condition")]
        # Of `with a, b:` it is the lock that another thread holds, or the last one if the holder is unknown.
        others = [wait for wait in locks if wait.owner and wait.owner != thread.tid]
        return others[0] if others else locks[-1] if locks else None

    def _innermost(self, thread: AnsweredThread) -> AnsweredFrame | None:
        return self._frames[thread.tid].get(thread.depth - 1)

    def _line(self, frame: Frame) -> Any:
        return self._asked.lines.get((frame.file, frame.function, frame.line), NOTHING)

    def _library_frame(self, thread: AnsweredThread) -> AnsweredFrame | None:
        """The outermost library frame in which a thread waits: ``get`` of a queue, not the lock in it."""
        found = None
        for depth in range(thread.depth - 1, -1, -1):
            frame = self._frames[thread.tid].get(depth)
            row = library_row(frame.frame) if frame is not None else None
            if frame is None or row is None or not row[2] or "self" not in row[3]:
                break
            found = frame
        return found

    def _library_wait(self, thread: AnsweredThread, site: AnsweredFrame) -> ThreadWait | None:
        values = site.values
        subject = values.get("self")
        kind = kind_of(subject)
        if site.frame.file.startswith("<frozen"):
            owner = plain(values.get("self.owner"), int) or 0
            name = plain(values.get("self.name"), str) or ""
            return ThreadWait(
                tid=thread.tid,
                kind="import lock",
                name=name,
                owner=self._tids.get(owner, 0),
                proof=BY_LOCK if owner else "",
            )
        if not kind or not isinstance(subject, dict):
            return None
        name = self._name(thread, site, subject)
        inner = values.get("self._lock") if kind == "Condition" else values.get("self.lock")
        if kind == "logging handler" or (kind == "Condition" and site.frame.function == "__enter__"):
            return (
                self._lock_wait(thread, inner, kind, name) if isinstance(inner, dict) and inner.get("locked") else None
            )
        if kind == "Thread":
            return ThreadWait(
                tid=thread.tid,
                kind=kind,
                name=plain(values.get("self._name"), str) or name,
                owner=plain(values.get("self._native_id"), int) or 0,
                proof=BY_LOCK,
            )
        if kind == "Semaphore":
            return self._lock_wait(thread, {**subject, "locked": True}, kind, name)
        if kind == "Future":
            return self._future_wait(thread, subject, name, plain(values.get("self._state"), str) or "")
        users = values.get("@refers self")
        ended = values.get("@ended")
        return ThreadWait(
            tid=thread.tid, kind=kind, name=name, state=_state(kind, values),
            users=tuple(tid for tid in users if isinstance(tid, int)) if isinstance(users, list) else (),
            ended=tuple(str(process)[:_MAX_TEXT_CHARACTERS] for process in ended) if isinstance(ended, list) else (),
        )  # fmt: skip

    def _future_wait(self, thread: AnsweredThread, future: Values, name: str, state: str) -> ThreadWait:
        for tid, frames in self._frames.items():
            for at in frames.values():
                work = at.values.get("self.future")
                if isinstance(work, dict) and work.get("id") == future["id"]:
                    frame = at.frame
                    return ThreadWait(
                        tid=thread.tid,
                        kind="Future",
                        name=name,
                        owner=tid,
                        proof=BY_LOCK,
                        function=frame.function,
                        file=frame.file,
                        line=frame.line,
                        state="running",
                    )
        return ThreadWait(tid=thread.tid, kind="Future", name=name, state=state.lower()[:_MAX_TEXT_CHARACTERS])

    def _lock_wait(self, thread: AnsweredThread, lock: Values, kind: str, name: str) -> ThreadWait:
        holds = [hold for hold in self._holds if lock.get("id") in (hold.lock, hold.condition)]
        # A thread that waits for a condition has released its lock. An unsure hold of the waiting thread itself does
        # not count: it may still be before its `with`.
        holds = [hold for hold in holds if self._conditions.get(hold.tid) not in (hold.condition, hold.lock)]
        holds = [hold for hold in holds if hold.sure or hold.tid != thread.tid]
        owner = self._tids.get(lock.get("owner", 0), 0)
        if owner:
            holds = [hold for hold in holds if hold.tid == owner]
        best = max(holds, key=lambda hold: (hold.sure, hold.tid != thread.tid), default=None)
        if best is None:
            return ThreadWait(tid=thread.tid, kind=kind, name=name, owner=owner, proof=BY_LOCK if owner else "")
        several = len({hold.tid for hold in holds if hold.sure == best.sure}) > 1
        proof = BY_LOCK if owner else BY_WITH if best.sure and not several else BY_ACQUIRE
        return ThreadWait(
            tid=thread.tid,
            kind=kind,
            name=name,
            owner=best.tid,
            proof=proof,
            function=best.frame.function,
            file=best.frame.file,
            line=best.line,
        )

    def _held(self, thread: AnsweredThread) -> list[_Hold]:
        found = []
        for frame in self._frames[thread.tid].values():
            for held in self._line(frame.frame).held:
                value = frame.values.get(held.path)
                if not isinstance(value, dict) or "id" not in value:
                    continue
                inner = frame.values.get(f"{held.path}._lock")
                lock = inner if isinstance(inner, dict) and "id" in inner else value
                found.append(
                    _Hold(
                        tid=thread.tid,
                        lock=lock["id"],
                        condition=value["id"],
                        sure=held.sure,
                        frame=frame.frame,
                        line=held.line,
                    )
                )
        return found

    def _name(self, thread: AnsweredThread, site: AnsweredFrame, subject: Values) -> str:
        """The expression by which the caller names the object: the one of its receivers with the same id."""
        caller = self._frames[thread.tid].get(site.depth - 1)
        if caller is None:
            return ""
        line = self._line(caller.frame)
        for path in (*line.receivers, *line.waits):
            value = caller.values.get(path)
            if isinstance(value, dict) and value.get("id") == subject.get("id"):
                return str(path)
        return ""

    def loops(self, thread: AnsweredThread) -> list[Loop]:
        found = []
        for answered in thread.frames:
            frame = answered.frame
            if not is_own(frame.file):
                continue
            counters = {
                path: number
                for path in self._line(frame).loops
                if (number := plain(answered.values.get(path), int)) is not None
            }
            if counters:
                names, values = tuple(counters), tuple(counters.values())
                found.append(Loop(tid=thread.tid, function=frame.function, file=frame.file, names=names, values=values))
        return found

    def polled(self, thread: AnsweredThread, pid: int) -> list[PolledFile]:
        found: dict[str, PolledFile] = {}
        for answered in thread.frames:
            file = answered.frame.file
            if any(part in file for part in LOCK_FILES):
                for path in FILES & answered.values.keys():
                    text = plain(answered.values[path], str)
                    if text:
                        found[text] = PolledFile(thread.tid, text, "file")
            for path, sure in self._asked.polled.get((file, answered.frame.function), ()):
                text = _path(answered.values.get(path), pid)
                known = found.get(text)
                if text and (sure or _LOCK_ENDING.search(text)) and (known is None or known.kind == "own"):
                    # A loop may test the file as well as create it.
                    found[text] = PolledFile(thread.tid, text, "own", sure or (known is not None and known.sure))
        return list(found.values())

    @staticmethod
    def loader(thread: AnsweredThread) -> list[Loader]:
        found = []
        for answered in thread.frames:
            loader = answered.values.get("@loader")
            if isinstance(loader, dict) and isinstance(loader.get("batch"), int):
                worker, pid = loader.get("worker", -1), loader.get("pid", 0)
                if isinstance(worker, int) and isinstance(pid, int):
                    found.append(Loader(thread.tid, loader["batch"], worker, pid))
        return found


def _item(thread: AnsweredThread) -> list[Item]:
    """The batch and the samples that a worker of a DataLoader loads."""
    found = Item()
    for answered in thread.frames:
        values = answered.values
        if answered.frame.file.endswith("/_utils/worker.py"):
            worker, batch = plain(values.get("worker_id"), int), plain(values.get("idx"), int)
            found = Item(-1 if worker is None else worker, -1 if batch is None else batch, numbers(values.get("index")))
        elif answered.frame.file.endswith("/_utils/fetch.py"):
            index = plain(values.get("idx"), int)
            lone = plain(values.get("possibly_batched_index"), int)
            samples = numbers(values.get("possibly_batched_index")) or found.samples
            found = Item(
                found.worker, found.batch, samples, next((i for i in (index, lone) if i is not None), found.sample)
            )
    return [found] if found != Item() else []


def _condition(site: AnsweredFrame | None) -> int | None:
    """The id of the lock of the condition that a thread waits for, or None."""
    if site is None or site.frame.function == "__enter__" or kind_of(site.values.get("self")) != "Condition":
        return None
    inner = site.values.get("self._lock")
    return int(inner["id"]) if isinstance(inner, dict) and "id" in inner else int(site.values["self"]["id"])


def _state(kind: str, values: Values) -> str:
    if kind == "Queue":
        inner = values.get("self.queue")
        size = inner.get("size") if isinstance(inner, dict) else None
        limit = plain(values.get("self.maxsize"), int)
        if size == 0:
            return "empty"
        if not limit or not isinstance(size, int) or size < limit:
            return ""
        return f"full, with {size} {'item' if size == 1 else 'items'}"
    if kind == "Event":
        return "not set" if plain(values.get("self._flag"), bool) is False else ""
    if kind == "Barrier":
        here, parties = plain(values.get("self._count"), int), plain(values.get("self._parties"), int)
        if here is None or parties is None:
            return ""
        return f"{here} of {parties} {'has' if here == 1 else 'have'} arrived"
    return ""


def _path(value: object, pid: int) -> str:
    """A path, or the file of an open descriptor; empty if the value is neither."""
    text = plain(value, str)
    if text is not None:
        return str(text)
    fd = value.get("fd", plain(value, int)) if isinstance(value, dict) else None
    if not isinstance(fd, int) or isinstance(fd, bool) or fd < 0:
        return ""
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""
