"""From what a process answered to what it means: which lock, whose, which file, which step, which sample.

The answer is data from somebody else's process: of each value it is checked what it is.
"""

from __future__ import annotations

import ast
import os
import re
import time
from typing import Any, NamedTuple

from breakranks.introspect.library_waits import FILES, LOCK_FILES, library_row
from breakranks.introspect.questions import Questions, SeenThread
from breakranks.introspect.sources import NOTHING
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

_MAX_ANSWER_BYTES = 8 << 20
_MAX_WORDS = 200
_LOCKISH = re.compile(r"(lock|\.lck|\.pid)\Z", re.IGNORECASE)
# Classes by the first of their names that is known; what a person calls them.
_KINDS = {
    "_thread.lock": "Lock",
    "_thread.RLock": "RLock",
    "threading._RLock": "RLock",
    "threading._PyRLock": "RLock",
    "threading.Condition": "Condition",
    "threading.BoundedSemaphore": "Semaphore",
    "threading.Semaphore": "Semaphore",
    "threading.Event": "Event",
    "threading.Barrier": "Barrier",
    "threading.Thread": "Thread",
    "queue.Queue": "Queue",
    "concurrent.futures._base.Future": "Future",
    "logging.Handler": "logging handler",
}
Values = dict[str, Any]


class AnsweredFrame(NamedTuple):
    """One frame that answered."""

    depth: int
    frame: Frame
    values: Values


class AnsweredThread(NamedTuple):
    """A thread of the answer: frames that were asked for, outermost first; ``depth``: how many it has in all, and
    ``top`` its innermost."""

    tid: int
    ident: int
    depth: int
    top: Frame
    frames: tuple[AnsweredFrame, ...]


class ProcessAnswer(NamedTuple):
    """``flight`` is what the flight recorder's payload gave; ``error`` says what went wrong with it there."""

    threads: tuple[AnsweredThread, ...]
    flight: bytes
    error: str


class _Hold(NamedTuple):
    tid: int
    lock: int
    condition: int
    sure: bool
    frame: Frame
    line: int


def read(data: bytes) -> ProcessAnswer:
    """What the payload ``frame_values`` wrote; raises ValueError if that is not what this is."""
    head, _, rest = data.partition(b"\n")
    if len(head) > _MAX_ANSWER_BYTES:
        raise ValueError("too long")
    try:
        said = ast.literal_eval(head.decode("ascii"))
        threads = tuple(
            AnsweredThread(
                tid=int(tid), ident=int(ident), depth=int(depth), top=Frame(str(top[0]), str(top[1]), int(top[2] or 0)),
                frames=tuple(AnsweredFrame(int(at), Frame(str(name), str(file), int(line)), dict(values))
                      for at, file, name, line, values in frames),
            )
            for tid, ident, depth, top, frames in said.get("threads", ())
        )  # fmt: skip
        size, error = int(said["flight"]), str(said["error"])
    except (SyntaxError, LookupError, TypeError, AttributeError, RecursionError, MemoryError, OverflowError) as wrong:
        raise ValueError(type(wrong).__name__) from None
    if size != len(rest):
        raise ValueError("cut off")
    return ProcessAnswer(threads, rest, error)


def inside(answer: ProcessAnswer, asked: Questions, threads: tuple[SeenThread, ...], pid: int) -> Introspection:
    """What a process said of itself. Of threads that have gone on since they were seen only what they poll for."""
    seen = {one.tid: one.frames for one in threads}
    known = [one for one in answer.threads if seen.get(one.tid, ())[-1:] == (one.top,)]
    here = [one for one in answer.threads if one.tid in seen]
    reader = _Reader(known, asked)
    loaders = [one for thread in known for one in reader.loader(thread)]
    items = [one for thread in known for one in _item(thread)]
    return Introspection(
        time=time.time(),
        waits=tuple(wait for thread in known if (wait := reader.wait(thread)) is not None),
        loops=tuple(one for thread in known for one in reader.loops(thread)),
        polled=tuple(one for thread in here for one in reader.polled(thread, pid)),
        loader=loaders[0] if loaders else None,
        item=items[0] if items else None,
    )


class _Reader:
    """One answer. Locks are told apart by which object they are, never by their names."""

    def __init__(self, known: list[AnsweredThread], asked: Questions) -> None:
        self._asked = asked
        self._tids = {one.ident: one.tid for one in known}
        self._frames = {one.tid: {asked.depth: asked for asked in one.frames} for one in known}
        self._notified = {one.tid: _condition(self._subject(one)) for one in known}
        self._holds = [hold for one in known for hold in self._held(one)]

    def wait(self, thread: AnsweredThread) -> ThreadWait | None:
        site = self._subject(thread)
        if site is not None:
            return self._of_library(thread, site)
        at = self._innermost(thread)
        if at is None:
            return None
        locks = []
        for path in self._line(at.frame).waits:
            value = at.values.get(path)
            lock = value if _kind(value) in ("Lock", "RLock") else at.values.get(f"{path}._lock")
            if isinstance(value, dict) and isinstance(lock, dict) and lock.get("locked"):
                locks.append(self._of_lock(thread, lock, _kind(value) or "lock", path))
        # One that may be taken again by who has it is not waited for by who has it.
        locks = [one for one in locks if one.owner != thread.tid or one.kind not in ("RLock", "Condition")]
        # Of `with a, b:` it is the one that somebody else has; if that cannot be told, the last.
        others = [one for one in locks if one.owner and one.owner != thread.tid]
        return others[0] if others else locks[-1] if locks else None

    def _innermost(self, thread: AnsweredThread) -> AnsweredFrame | None:
        return self._frames[thread.tid].get(thread.depth - 1)

    def _line(self, frame: Frame) -> Any:
        return self._asked.lines.get((frame.file, frame.function, frame.line), NOTHING)

    def _subject(self, thread: AnsweredThread) -> AnsweredFrame | None:
        """The outermost of the library's frames in which a thread waits: a queue's ``get``, not the lock in it."""
        found = None
        for depth in range(thread.depth - 1, -1, -1):
            one = self._frames[thread.tid].get(depth)
            row = library_row(one.frame) if one is not None else None
            if one is None or row is None or not row[2] or "self" not in row[3]:
                break
            found = one
        return found

    def _of_library(self, thread: AnsweredThread, site: AnsweredFrame) -> ThreadWait | None:
        values = site.values
        one = values.get("self")
        kind = _kind(one)
        if site.frame.file.startswith("<frozen"):
            owner = _plain(values.get("self.owner"), int) or 0
            name = _plain(values.get("self.name"), str) or ""
            return ThreadWait(
                tid=thread.tid,
                kind="import lock",
                name=name,
                owner=self._tids.get(owner, 0),
                proof=BY_LOCK if owner else "",
            )
        if not kind or not isinstance(one, dict):
            return None
        name = self._name(thread, site, one)
        inner = values.get("self._lock") if kind == "Condition" else values.get("self.lock")
        if kind == "logging handler" or (kind == "Condition" and site.frame.function == "__enter__"):
            return self._of_lock(thread, inner, kind, name) if isinstance(inner, dict) and inner.get("locked") else None
        if kind == "Thread":
            called = _plain(values.get("self._name"), str) or name
            return ThreadWait(
                tid=thread.tid,
                kind=kind,
                name=called,
                owner=_plain(values.get("self._native_id"), int) or 0,
                proof=BY_LOCK,
            )
        if kind == "Semaphore":
            return self._of_lock(thread, {**one, "locked": True}, kind, name)
        if kind == "Future":
            return self._of_future(thread, one, name, _plain(values.get("self._state"), str) or "")
        users = values.get("@refers self")
        ended = values.get("@ended")
        return ThreadWait(
            tid=thread.tid, kind=kind, name=name, state=_state(kind, values),
            users=tuple(tid for tid in users if isinstance(tid, int)) if isinstance(users, list) else (),
            ended=tuple(str(word)[:_MAX_WORDS] for word in ended) if isinstance(ended, list) else (),
        )  # fmt: skip

    def _of_future(self, thread: AnsweredThread, one: Values, name: str, state: str) -> ThreadWait:
        for tid, frames in self._frames.items():
            for at in frames.values():
                work = at.values.get("self.future")
                if isinstance(work, dict) and work.get("id") == one["id"]:
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
        return ThreadWait(tid=thread.tid, kind="Future", name=name, state=state.lower()[:_MAX_WORDS])

    def _of_lock(self, thread: AnsweredThread, lock: Values, kind: str, name: str) -> ThreadWait:
        holds = [one for one in self._holds if lock.get("id") in (one.lock, one.condition)]
        # Whoever waits for a condition has let go of its lock; and who may be before its `with` waits for no other.
        holds = [one for one in holds if self._notified.get(one.tid) not in (one.condition, one.lock)]
        holds = [one for one in holds if one.sure or one.tid != thread.tid]
        owner = self._tids.get(lock.get("owner", 0), 0)
        if owner:
            holds = [one for one in holds if one.tid == owner]
        best = max(holds, key=lambda one: (one.sure, one.tid != thread.tid), default=None)
        if best is None:
            return ThreadWait(tid=thread.tid, kind=kind, name=name, owner=owner, proof=BY_LOCK if owner else "")
        several = len({one.tid for one in holds if one.sure == best.sure}) > 1
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
        for one in self._frames[thread.tid].values():
            for held in self._line(one.frame).held:
                value = one.values.get(held.path)
                if not isinstance(value, dict) or "id" not in value:
                    continue
                inner = one.values.get(f"{held.path}._lock")
                lock = inner if isinstance(inner, dict) and "id" in inner else value
                found.append(
                    _Hold(
                        tid=thread.tid,
                        lock=lock["id"],
                        condition=value["id"],
                        sure=held.sure,
                        frame=one.frame,
                        line=held.line,
                    )
                )
        return found

    def _name(self, thread: AnsweredThread, site: AnsweredFrame, one: Values) -> str:
        """What the caller calls the thing: of the objects whose methods it calls there, the very same."""
        caller = self._frames[thread.tid].get(site.depth - 1)
        if caller is None:
            return ""
        line = self._line(caller.frame)
        for path in (*line.receivers, *line.waits):
            value = caller.values.get(path)
            if isinstance(value, dict) and value.get("id") == one.get("id"):
                return str(path)
        return ""

    def loops(self, thread: AnsweredThread) -> list[Loop]:
        found = []
        for one in thread.frames:
            if not is_own(one.frame.file):
                continue
            numbers = {
                path: number
                for path in self._line(one.frame).loops
                if (number := _plain(one.values.get(path), int)) is not None
            }
            if numbers:
                names, values = tuple(numbers), tuple(numbers.values())
                found.append(
                    Loop(tid=thread.tid, function=one.frame.function, file=one.frame.file, names=names, values=values)
                )
        return found

    def polled(self, thread: AnsweredThread, pid: int) -> list[PolledFile]:
        found: dict[str, PolledFile] = {}
        for one in thread.frames:
            file = one.frame.file
            if any(part in file for part in LOCK_FILES):
                for path in FILES & one.values.keys():
                    text = _plain(one.values[path], str)
                    if text:
                        found[text] = PolledFile(thread.tid, text, "file")
            for path, sure in self._asked.polled.get((file, one.frame.function), ()):
                text = _path(one.values.get(path), pid)
                if text and (sure or _LOCKISH.search(text)):
                    found.setdefault(text, PolledFile(thread.tid, text, "own"))
        return list(found.values())

    @staticmethod
    def loader(thread: AnsweredThread) -> list[Loader]:
        found = []
        for one in thread.frames:
            said = one.values.get("@loader")
            if isinstance(said, dict) and isinstance(said.get("batch"), int):
                worker, pid = said.get("worker", -1), said.get("pid", 0)
                if isinstance(worker, int) and isinstance(pid, int):
                    found.append(Loader(thread.tid, said["batch"], worker, pid))
        return found


def _item(thread: AnsweredThread) -> list[Item]:
    """What a worker of a DataLoader is at."""
    found = Item()
    for one in thread.frames:
        values = one.values
        if one.frame.file.endswith("/_utils/worker.py"):
            worker, batch = _plain(values.get("worker_id"), int), _plain(values.get("idx"), int)
            found = Item(
                -1 if worker is None else worker, -1 if batch is None else batch, _numbers(values.get("index"))
            )
        elif one.frame.file.endswith("/_utils/fetch.py"):
            index = _plain(values.get("idx"), int)
            lone = _plain(values.get("possibly_batched_index"), int)
            samples = _numbers(values.get("possibly_batched_index")) or found.samples
            found = Item(
                found.worker, found.batch, samples, next((i for i in (index, lone) if i is not None), found.index)
            )
    return [found] if found != Item() else []


def _condition(site: AnsweredFrame | None) -> int | None:
    """The lock, by which object it is, of the condition whose notice a thread awaits."""
    if site is None or site.frame.function == "__enter__" or _kind(site.values.get("self")) != "Condition":
        return None
    inner = site.values.get("self._lock")
    return int(inner["id"]) if isinstance(inner, dict) and "id" in inner else int(site.values["self"]["id"])


def _kind(value: object) -> str:
    kinds = value.get("kinds") if isinstance(value, dict) else None
    for name in kinds if isinstance(kinds, list) else ():
        if name in _KINDS:
            return _KINDS[name]
    return ""


def _state(kind: str, values: Values) -> str:
    if kind == "Queue":
        inner = values.get("self.queue")
        size = inner.get("size") if isinstance(inner, dict) else None
        limit = _plain(values.get("self.maxsize"), int)
        if size == 0:
            return "empty"
        return f"full, with {size} items" if limit and isinstance(size, int) and size >= limit else ""
    if kind == "Event":
        return "not set" if _plain(values.get("self._flag"), bool) is False else ""
    if kind == "Barrier":
        here, parties = _plain(values.get("self._count"), int), _plain(values.get("self._parties"), int)
        return f"{here} of {parties} have come" if here is not None and parties is not None else ""
    return ""


def _plain(value: object, kind: type) -> Any:
    """The plain value of exactly this type, or None."""
    found = value.get("plain") if isinstance(value, dict) else None
    return found if type(found) is kind else None


def _numbers(value: object) -> tuple[int, ...]:
    found = value.get("numbers") if isinstance(value, dict) else None
    return tuple(one for one in found if type(one) is int) if isinstance(found, list) else ()


def _path(value: object, pid: int) -> str:
    """A path, or the file that an open descriptor is of."""
    text = _plain(value, str)
    if text is not None:
        return str(text)
    fd = value.get("fd", _plain(value, int)) if isinstance(value, dict) else None
    if not isinstance(fd, int) or isinstance(fd, bool) or fd < 0:
        return ""
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""
