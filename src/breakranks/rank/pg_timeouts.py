"""Extend torch's timeouts to 24 hours while a rank is debugged, for every group of this process, and restore them.

torch is accessed through ``sys.modules`` only. If a version of it has another interface, the stop has a note; the job
gets no exception. NCCL's ephemeral timeouts do not help: like the default timeout they apply to operations that start
later. Timeouts that Python cannot set (gloo's send and receive) are left alone and mentioned in a note.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

LONG = timedelta(hours=24)
# Functions of distributed_c10d that wait for other ranks while a group is created.
CREATES = "_new_process_group_helper"
WAITS = ("rendezvous", "_store_based_barrier")
# Timeouts that are fixed when a group is created: Python has no access to them.
TRANSFERS = "gloo's send and receive"
CHECK = "the check of TORCH_DISTRIBUTED_DEBUG=DETAIL before each collective"


class _Knob(NamedTuple):
    """One timeout of a group: its key within the group, its label in notes, and how to read and set it."""

    key: str
    label: str
    get: Callable[[], timedelta | None]
    set: Callable[[timedelta], None]


class GroupTimeouts:
    """The timeouts of this process's groups: extends them, and restores the original values."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._extended = False
        self._notes: list[str] = []
        self._fixed: dict[str, timedelta] = {}  # by kind that cannot be extended, the shortest of its timeouts
        # By id of a group. Weak references: a group that the job destroys must be freed as without breakranks.
        self._groups: dict[int, weakref.ref[Any]] = {}
        self._own: dict[tuple[int, str], timedelta] = {}
        self._wrapped: dict[str, tuple[Any, Any]] = {}

    @property
    def extended(self) -> bool:
        return self._extended

    def extend(self) -> list[str]:
        """Extend all timeouts. Return a note for each that could not be extended: every note, at every call."""
        with self._lock:
            self._extended = True
            self.refresh()
            notes = [*self._notes, *_fixed_note(self._fixed)]
        return notes + _noted(_under_way)

    def refresh(self) -> None:
        """Extend the timeouts of groups that were created since."""
        with self._lock:
            if not self._extended:
                return
            notes = _noted(self._wrap)
            for group, store in _groups():
                if not self._known(group):
                    notes += _noted(self._extend_group, group, store)
            self._notes += [note for note in dict.fromkeys(notes) if note not in self._notes]

    def restore(self) -> None:
        """Restore the original timeout of every group."""
        with self._lock:
            self._unwrap()
            for group, store in _groups():
                if self._known(group):
                    _noted(self._restore_group, group, store)
            self._groups.clear()
            self._own.clear()
            self._notes.clear()
            self._fixed.clear()
            self._extended = False  # last: readers do not take the lock, and all is restored when they see it

    def abandon(self) -> None:
        """In a forked child: leave the parent's groups alone, and restore torch's functions."""
        self._lock = threading.RLock()
        self._unwrap()

    def _known(self, group: Any) -> bool:
        held = self._groups.get(id(group))
        return held is not None and held() is group

    def _hold(self, group: Any) -> None:
        self._groups[id(group)] = weakref.ref(group)
        for key in [key for key in self._own if key[0] == id(group)]:
            del self._own[key]  # of a destroyed group, whose address this one has

    def _extend_group(self, group: Any, store: Any) -> list[str]:
        notes: list[str] = []
        self._hold(group)
        for what, kept in _fixed(group):
            self._fixed[what] = min(kept, self._fixed.get(what, kept))
        for knob in _knobs(group, store):
            try:
                own = knob.get()
                if own is None:
                    notes.append(f"{knob.label} keeps its timeout: the current value cannot be read.")
                elif own < LONG:
                    knob.set(LONG)
                    self._own[id(group), knob.key] = own
            except Exception as error:
                notes.append(f"{knob.label} keeps its timeout: {_first_line(error)}.")
        return notes

    def _restore_group(self, group: Any, store: Any) -> list[str]:
        for knob in _knobs(group, store):
            own = self._own.get((id(group), knob.key))
            # Any other value was set by the job since.
            if own is not None and knob.get() == LONG:
                knob.set(own)
        return []

    def _wrap(self) -> list[str]:
        c10d = _c10d()
        if c10d is None or self._wrapped:
            return []
        for name in (CREATES, *WAITS):
            original = getattr(c10d, name, None)
            if not callable(original):
                continue
            wrapper = self._creating(original) if name == CREATES else self._waiting(original)
            setattr(c10d, name, wrapper)
            self._wrapped[name] = (original, wrapper)
        if CREATES in self._wrapped:
            return []
        return ["The creation of a new process group still uses the timeout of that group."]

    def _unwrap(self) -> None:
        c10d = _c10d()
        for name, (original, wrapper) in self._wrapped.items():
            if getattr(c10d, name, None) is wrapper:
                setattr(c10d, name, original)
        self._wrapped.clear()

    def _waiting(self, original: Any) -> Any:
        @functools.wraps(original)
        def with_long_timeout(*args: Any, **kwargs: Any) -> Any:
            args, kwargs, _ = _lengthened(original, args, kwargs)
            return original(*args, **kwargs)

        return with_long_timeout

    def _creating(self, original: Any) -> Any:
        @functools.wraps(original)
        def with_long_timeout(*args: Any, **kwargs: Any) -> Any:
            args, kwargs, requested = _lengthened(original, args, kwargs)
            store_timeout = _extend_store(original, args, kwargs)
            created = original(*args, **kwargs)
            _noted(self._record_created, created, requested, store_timeout)
            return created

        return with_long_timeout

    def _record_created(self, created: Any, requested: timedelta | None, store_timeout: timedelta | None) -> list[str]:
        """Record the original timeouts of a new group. If all groups are restored already, restore it at once."""
        group, prefix = created if isinstance(created, tuple) else (created, None)
        with self._lock:
            if not hasattr(group, "_device_types"):
                return []  # this rank is not a member
            if not self._known(group):
                self._hold(group)
            for knob in _knobs(group, prefix):
                own = store_timeout if knob.key == "store" else requested
                if own is not None and knob.get() == LONG:
                    self._own[id(group), knob.key] = own
            if not self._extended:
                self._restore_group(group, prefix)
        return []


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:120].rstrip(".")


def _noted(function: Callable[..., list[str]], *args: Any) -> list[str]:
    try:
        return function(*args)
    except Exception as error:
        return [f"Some timeouts may not be extended: {_first_line(error)}."]


def _c10d() -> Any:
    return sys.modules.get("torch.distributed.distributed_c10d")


def _groups() -> list[tuple[Any, Any]]:
    try:
        return [(group, entry[1]) for group, entry in list(_c10d()._world.pg_map.items())]
    except Exception:
        return []


def _knobs(group: Any, store: Any) -> Iterator[_Knob]:
    """Yield the timeouts of a group that can be set: those of its backends and of its store."""
    name = str(getattr(group, "group_desc", "") or getattr(group, "group_name", ""))
    for device, main, _ in _backends(group):
        kind = _kind(main)
        if kind not in ("MPI", "FakeProcessGroup"):  # have no timeouts
            yield _backend_knob(f"Group {name!r} ({kind})", f"backend {device}", main)
    innermost = _innermost_store(store)
    if innermost is not None:
        yield _Knob("store", f"The store of group {name!r}", lambda: innermost.timeout, innermost.set_timeout)


def _fixed(group: Any) -> Iterator[tuple[str, timedelta]]:
    """Yield each kind of operation whose timeout cannot be set, with that timeout."""
    for _, main, checked in _backends(group):
        own = _read(main)
        if own is not None and own < LONG:
            if _kind(main) == "Gloo":
                yield TRANSFERS, own
            if checked:
                yield CHECK, own


def _fixed_note(fixed: dict[str, timedelta]) -> list[str]:
    """Return the note on timeouts that cannot be set, one for all groups."""
    if not fixed:
        return []
    kinds, shortest = ", and ".join(fixed), _seconds(min(fixed.values()))
    if list(fixed) == [CHECK]:
        return [f"{kinds[0].upper()}{kinds[1:]} keeps its timeout of {shortest} s."]
    return [f"{kinds[0].upper()}{kinds[1:]} keep their timeouts; the shortest is {shortest} s."]


def _kind(backend: Any) -> str:
    return type(backend).__name__.removeprefix("ProcessGroup")


def _backends(group: Any) -> Iterator[tuple[Any, Any, bool]]:
    """Yield for each backend of a group a device of it, the backend, and whether DETAIL checks its collectives."""
    seen: list[Any] = []
    for device in group._device_types:
        backend = group._get_backend(device)
        if any(backend is other for other in seen):
            continue
        seen.append(backend)  # keeps a reference: else the next backend may have its address
        wrapped = getattr(backend, "wrapped_pg", None)
        yield device, backend if wrapped is None else wrapped, wrapped is not None


def _backend_knob(label: str, key: str, backend: Any) -> _Knob:
    def change(timeout: timedelta) -> None:
        method = getattr(backend, "_set_default_timeout", None)
        if method is not None:
            method(timeout)
        else:
            backend.options._timeout = timeout  # the object that the backend reads

    return _Knob(key, label, lambda: _read(backend), change)


def _read(backend: Any) -> timedelta | None:
    timeout = getattr(getattr(backend, "options", None), "_timeout", None)
    return timeout if isinstance(timeout, timedelta) else None


def _innermost_store(store: Any) -> Any:
    """Return the store below all prefix stores, which pass everything on, timeouts included."""
    for _ in range(16):
        below = getattr(store, "underlying_store", None)
        if below is None:
            break
        store = below
    return store if hasattr(store, "timeout") and hasattr(store, "set_timeout") else None


def _extend_store(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> timedelta | None:
    """Extend the timeout of a new default group's store while its members meet. Return the original, if changed."""
    try:
        store = _innermost_store(inspect.signature(original).bind(*args, **kwargs).arguments.get("store"))
        own = store.timeout
        if isinstance(own, timedelta) and own < LONG:
            store.set_timeout(LONG)
            return own
    except Exception:
        pass
    return None


def _lengthened(
    original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], timedelta | None]:
    """Return a call's arguments with a long timeout, and the timeout that was requested."""
    requested = kwargs.get("timeout")
    if isinstance(requested, timedelta):
        return (args, {**kwargs, "timeout": max(requested, LONG)}, requested)
    try:
        at = list(inspect.signature(original).parameters).index("timeout")
        requested = args[at]
    except (ValueError, TypeError, IndexError):
        return args, kwargs, None
    if not isinstance(requested, timedelta):
        return args, kwargs, None
    return (*args[:at], max(requested, LONG), *args[at + 1 :]), kwargs, requested


def _under_way() -> list[str]:
    """Return the note on operations under way: they keep the timeout they began with. The flight recorder has them."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_fr_trace_json", None) or getattr(c10d, "_dump_nccl_trace_json", None)
    if dump is None:
        return []
    operations = _not_retired(dump)
    if operations:
        time.sleep(0.05)  # an operation that has just ended is retired a moment later
        operations = [operation for operation in _not_retired(dump) if operation in operations]
    limits = [operation.get("timeout_ms", 0) / 1000 for operation in operations]
    kept = [limit for limit in limits if 0 < limit < LONG.total_seconds()]
    if not kept:
        return []
    shortest = _seconds(timedelta(seconds=min(kept)))
    if len(kept) == 1:
        return [f"1 operation already under way keeps its timeout of {shortest} s."]
    return [f"{len(kept)} operations already under way keep their timeouts; the shortest is {shortest} s."]


def _not_retired(dump: Callable[[bool, bool], bytes]) -> list[dict[str, Any]]:
    entries = json.loads(dump(True, True)).get("entries") or []
    return [entry for entry in entries if not entry.get("retired", True)]


def _seconds(timeout: timedelta) -> str:
    return f"{timeout.total_seconds():g}"
