"""Runs in a rank: returns requested variables, frame by frame, and the flight recorder in the same visit.

The caller has read the sources and knows which names matter at which line. This code only looks them up. It calls
nothing of the program: no property, no ``__getattr__``, no ``__eq__``, no ``__repr__``. Only plain values are returned,
shortened; of any other object its type and id. Nothing is imported. The answer is a line of Python literals, then the
bytes of the flight recorder.
"""

from __future__ import annotations

import sys

MYPY = False  # typing is not imported if the process has not imported it
if MYPY:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any

_MAX_FRAMES = 500  # per thread
_MAX_VALUES = 2000  # per visit
_MAX_VALUES_OF_THREAD = 500
_MAX_CPU_SECONDS = 0.005  # in which no other thread of the process can run Python
_MAX_SEARCHES = 16  # of the variables of one thread's frames; a search of all threads counts as four
_MAX_CHARACTERS = 400
_MAX_ITEMS = 64
_GONE = object()
_MRO = type.__dict__["__mro__"].__get__
_VARIABLES = type.__dict__["__dict__"].__get__
_NAME = type.__dict__["__qualname__"].__get__
_MODULE = type.__dict__["__module__"].__get__
_MEMBER = type(type.__dict__["__dictoffset__"])  # the type of slots and of fields of C structs
_GETSET = type(type.__dict__["__dict__"])
_LOCK = type(sys.modules["_thread"].allocate_lock())
_RLOCK = sys.modules["_thread"].RLock
_SCOPES = (dict, type((lambda: sys._getframe().f_locals)()))  # from 3.13 on the locals of a function are a view


def answer(arguments: dict[str, Any]) -> bytes:
    flight, error = _flight(arguments.get("flight", ""))
    try:
        facts = _facts(arguments.get("asked", {}))
    except Exception as raised:  # in an unknown version of Python
        facts, error = {}, error or type(raised).__name__
    return b"".join([ascii({**facts, "flight": len(flight), "error": error}).encode(), b"\n", flight])


def _flight(source: str) -> tuple[bytes, str]:
    if not source:
        return b"", ""
    scope: dict[str, Any] = {"__name__": "breakranks_payload", "__builtins__": __builtins__}
    try:
        exec(compile(source, "<breakranks>", "exec"), scope)
        return scope["answer"]({}), ""
    except Exception as error:
        return b"", type(error).__name__
    finally:
        scope.clear()


def _facts(asked: dict[str, dict[str, list[str]]]) -> dict[str, Any]:
    """``asked``: by file and ``function:line`` or ``function:*``, the names that are requested of such a frame."""
    visit = _Visit()
    try:
        order = sorted(visit.tids, key=lambda ident: visit.tids[ident] != visit.pid)  # the main thread first
        return {"threads": [visit.thread(ident, asked) for ident in order]}
    finally:
        # The frame of this function is among them: without this, they would keep one another, and so the job's tensors,
        # until Python's collector runs.
        visit.stacks.clear()


class _Visit:
    """The threads that Python has started, innermost frames first, and how many lookups are still allowed."""

    def __init__(self) -> None:
        self.pid = sys.modules["posix"].getpid()
        self.active = dict(getattr(sys.modules.get("threading"), "_active", {}))
        self.stacks = {ident: list(_chain(frame)) for ident, frame in sys._current_frames().items()}
        known = {ident: _attribute(thread, "_native_id") for ident, thread in self.active.items()}
        self.tids = {ident: tid for ident, tid in known.items() if type(tid) is int and ident in self.stacks}
        own = sys.modules["_thread"].get_ident()
        others = [ident for ident, frames in self.stacks.items() if ident != own and not _is_injected(frames)]
        if not self.active and len(others) == 1:
            self.tids = {others[0]: self.pid}  # a program that has not imported threading
        self.left = _MAX_VALUES
        self.searches = _MAX_SEARCHES
        self.clock = sys.modules["time"].thread_time
        self.end = self.clock() + _MAX_CPU_SECONDS

    def thread(self, ident: int, asked: dict[str, dict[str, list[str]]]) -> tuple[Any, ...]:
        innermost = self.stacks[ident][0]
        top = (innermost.f_code.co_name, innermost.f_code.co_filename, innermost.f_lineno)
        found = list(self.frames(ident, asked))
        return self.tids[ident], ident, len(self.stacks[ident]), top, found[::-1]

    def frames(self, ident: int, asked: dict[str, dict[str, list[str]]]) -> Iterator[tuple[Any, ...]]:
        frames = self.stacks[ident]
        budget = min(self.left, _MAX_VALUES_OF_THREAD) if self.clock() < self.end else 0
        for above, frame in enumerate(frames):
            code = frame.f_code
            wanted = asked.get(code.co_filename)
            if wanted is None:
                continue
            names = wanted.get(f"{code.co_name}:{frame.f_lineno}") or wanted.get(f"{code.co_name}:*") or ()
            if names and budget >= len(names):
                budget -= len(names)
                self.left -= len(names)
                values = {name: self.asked(name, frame, ident) for name in names}
                yield len(frames) - 1 - above, code.co_filename, code.co_name, frame.f_lineno, values

    def asked(self, name: str, frame: FrameType, ident: int) -> Any:
        if name == "@loader":
            return _loader(_variable(frame, "self"))
        if not name.startswith("@"):
            value = _look_up(frame, name)
            return None if value is _GONE else _described(value)
        self.searches -= 1 if name == "@ended" else 4
        if self.searches < 0:
            return None
        if name == "@ended":
            return _ended(self.stacks[ident], self.active)
        value = _look_up(frame, name.removeprefix("@refers "))
        others = {key: frames for key, frames in self.stacks.items() if key != ident and key in self.tids}
        return [self.tids[key] for key, frames in others.items() if any(kept is value for kept in _kept(frames))]


def _chain(frame: FrameType | None) -> Iterator[FrameType]:
    count = 0
    while frame is not None and count < _MAX_FRAMES:
        yield frame
        frame = frame.f_back
        count += 1


def _is_injected(frames: list[FrameType]) -> bool:
    """Whether a thread was started by breakranks. There are two where the first one did not get the GIL in time. The
    outermost frame is that of inject/mailbox, whose first statement sets the name."""
    scope = frames[-1].f_globals
    return _is(type(scope), dict) and ("__breakranks__" in scope or scope.keys() == {"__builtins__"})


def _look_up(frame: FrameType, path: str) -> Any:
    """Return the object that a path such as ``self.pool.lock`` names in this frame."""
    first, *rest = path.split(".")
    value = _variable(frame, first)
    for name in rest:
        if value is _GONE:
            break
        value = _attribute(value, name)
    return value


def _variable(frame: FrameType, name: str) -> Any:
    for scope in (frame.f_locals, frame.f_globals):
        # A dictionary of the job's own type would run code of the job.
        if _is(type(scope), *_SCOPES) and name in scope:
            return scope[name]
    return _GONE


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute that is stored: in the object's dictionary, in a slot, or as a plain value of its class."""
    kind = type(value)
    is_class = any(base is type for base in _MRO(kind))
    above = _first(_MRO(kind), name)
    if type(above) is _MEMBER:
        try:
            return above.__get__(value)
        except AttributeError:
            return _GONE
    if above is not _GONE and _has(above, "__set__"):
        return _GONE  # a property: its code must not run
    if is_class:
        own = _first(_MRO(value), name)
        return _GONE if own is not _GONE and _has(own, "__get__") else own
    attributes = _dictionary(value)
    if attributes is not None and name in attributes:
        return attributes[name]
    return _GONE if above is not _GONE and _has(above, "__get__") else above


def _is(kind: type, *kinds: type) -> bool:
    """Whether it is one of these. Not with ``in``, which would call the ``__eq__`` of a metaclass."""
    return any(kind is other for other in kinds)


def _first(classes: tuple[type, ...], name: str) -> Any:
    for kind in classes:
        variables = _VARIABLES(kind)
        if name in variables:
            return variables[name]
    return _GONE


def _has(value: Any, name: str) -> bool:
    return _first(_MRO(type(value)), name) is not _GONE


def _dictionary(value: Any) -> dict[str, Any] | None:
    descriptor = _first(_MRO(type(value)), "__dict__")
    if not _is(type(descriptor), _GETSET, _MEMBER):
        return None
    try:
        found = descriptor.__get__(value)
    except AttributeError:
        return None
    return found if type(found) is dict else None


def _described(value: Any) -> dict[str, Any]:
    kind = type(value)
    if _is(kind, bool, int, float, str, bytes):
        return _plain(value)
    made: dict[str, Any] = {"id": id(value), "kinds": [_named(base) for base in _MRO(kind)[:8]]}
    if kind is _LOCK:
        made["locked"] = value.locked()
    elif kind is _RLOCK:
        made |= _recursive(repr(value))
    elif made["kinds"][0] in ("threading._RLock", "threading._PyRLock"):
        owner = _attribute(value, "_owner")
        made |= {"locked": owner is not None, "owner": owner if type(owner) is int else 0}
    elif _is(kind, list, tuple):
        made["size"] = len(value)
        some = value[:_MAX_ITEMS]
        if all(type(item) is int and item.bit_length() < 64 for item in some):
            made["numbers"] = list(some)
    elif made["kinds"][0] in ("collections.deque", "builtins.dict", "builtins.set"):
        made["size"] = len(value)
    elif made["kinds"][0] in ("pathlib.PosixPath", "pathlib._local.PosixPath"):
        made["plain"] = str(value)[:_MAX_CHARACTERS]
    elif made["kinds"][0].startswith("_io."):
        made["fd"] = _descriptor(value)
    return made


def _plain(value: Any) -> dict[str, Any]:
    if type(value) is int and value.bit_length() >= 64:
        return {}
    if type(value) is bytes:
        value = value[:_MAX_CHARACTERS].decode("utf-8", "surrogateescape")
    return {"plain": value[:_MAX_CHARACTERS] if type(value) is str else value}


def _named(kind: type) -> str:
    module = _MODULE(kind)
    return f"{module[:80] if type(module) is str else '?'}.{_NAME(kind)[:80]}"


def _recursive(text: str) -> dict[str, Any]:
    """Parse ``<locked _thread.RLock object owner=140 count=1 at 0x7f>``."""
    owner = text.partition("owner=")[2].partition(" ")[0]
    return {"locked": text.startswith("<locked"), "owner": int(owner) if owner.isdigit() else 0}


def _descriptor(file: Any) -> int:
    for _ in range(3):
        name = _named(type(file))
        if name == "_io.FileIO":
            return -1 if file.closed else int(file.fileno())
        if name not in ("_io.TextIOWrapper", "_io.BufferedReader", "_io.BufferedWriter", "_io.BufferedRandom"):
            break
        # Fields of C structs: check the wrapped object next.
        file = file.buffer if name == "_io.TextIOWrapper" else file.raw
    return -1


def _is_thread(value: Any) -> bool:
    kind = getattr(sys.modules.get("threading"), "Thread", None)
    return any(base is kind for base in _MRO(type(value)))


def _kept(frames: list[FrameType]) -> Iterator[Any]:
    """Yield the values of the variables of these frames, and the attributes of their ``self``."""
    for frame in frames:
        scope = frame.f_locals
        if not _is(type(scope), *_SCOPES):
            continue
        for name, value in list(scope.items()):
            yield value
            if _is(type(value), list, tuple):
                yield from value[:_MAX_ITEMS]
            if name == "self":
                for inner in list((_dictionary(value) or {}).values()):
                    yield inner
                    if _is(type(inner), list, tuple):
                        yield from inner[:_MAX_ITEMS]


def _ended(frames: list[FrameType], active: dict[int, Any]) -> list[str]:
    """Return names of threads in the variables of these frames that were started and have ended."""
    found: dict[str, None] = {}
    for value in _kept(frames):
        if _is_thread(value):
            ident, name = _attribute(value, "_ident"), _attribute(value, "_name")
            if type(ident) is int and active.get(ident) is not value and type(name) is str:
                found[name[:80]] = None
    return list(found)[:8]


def _loader(loader: Any) -> dict[str, Any]:
    """Return the worker of torch's DataLoader that must deliver the next batch."""
    batch = _attribute(loader, "_rcvd_idx")
    tasks, workers = _attribute(loader, "_task_info"), _attribute(loader, "_workers")
    if type(batch) is not int or type(tasks) is not dict or type(workers) is not list:
        return {}
    task = tasks.get(batch)
    worker = task[0] if type(task) is tuple and len(task) == 1 else -1
    if type(worker) is not int or not 0 <= worker < len(workers):
        return {"batch": batch}
    pid = _attribute(_attribute(workers[worker], "_popen"), "pid")
    return {"batch": batch, "worker": worker, "pid": pid if type(pid) is int else 0}
