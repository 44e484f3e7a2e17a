"""Holds torch's timeouts off while somebody looks: 24 hours for every group of this process, and back afterwards.

torch is touched through ``sys.modules`` only. A part of it that looks otherwise in another version costs a note,
never an exception in the job. NCCL's ephemeral timeouts are of no use here: like the default timeout they count
for operations that are yet to start.
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
# Functions of distributed_c10d that wait for other ranks while a group comes into being.
CREATES = "_new_process_group_helper"
WAITS = ("rendezvous", "_store_based_barrier")
# Timeouts that are set when a group is made, and have no way to them from Python.
TRANSFERS = "gloo's send and receive"
CHECK = "the check of TORCH_DISTRIBUTED_DEBUG=DETAIL before each collective"


class _Knob(NamedTuple):
    """One timeout of a group: its name within the group, what it is called in a note, and how to turn it."""

    key: str
    what: str
    get: Callable[[], timedelta | None]
    set: Callable[[timedelta], None]


class GroupTimeouts:
    """Every timeout of this process's groups, as they were and extended."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._extended = False
        self._told: list[str] = []
        self._fixed: dict[str, timedelta] = {}  # what stays as it is, and the shortest of its timeouts
        # By id of a group: groups are held weakly, so that one that is destroyed meanwhile goes as it would have.
        self._groups: dict[int, weakref.ref[Any]] = {}
        self._own: dict[tuple[int, str], timedelta] = {}
        self._wrapped: dict[str, tuple[Any, Any]] = {}

    @property
    def extended(self) -> bool:
        return self._extended

    def extend(self) -> list[str]:
        """Extend all timeouts; what could not be extended, in sentences: all of them, at every call."""
        with self._lock:
            self._extended = True
            self.refresh()
            notes = [*self._told, *_keeping(self._fixed)]
        return notes + _noted(_under_way)

    def refresh(self) -> None:
        """Extend also what came since."""
        with self._lock:
            if not self._extended:
                return
            found = _noted(self._wrap)
            for group, store in _groups():
                if not self._known(group):
                    found += _noted(self._extend_group, group, store)
            self._told += [note for note in dict.fromkeys(found) if note not in self._told]

    def restore(self) -> None:
        """Give every group its own timeout back."""
        with self._lock:
            self._unwrap()
            for group, store in _groups():
                if self._known(group):
                    _noted(self._restore_group, group, store)
            self._groups.clear()
            self._own.clear()
            self._told.clear()
            self._fixed.clear()
            self._extended = False  # last: who asks without the lock must find all of it so

    def abandon(self) -> None:
        """In a forked child: groups are its parent's, and are left alone; torch's functions are its own again."""
        self._lock = threading.RLock()
        self._unwrap()

    def _known(self, group: Any) -> bool:
        held = self._groups.get(id(group))
        return held is not None and held() is group

    def _hold(self, group: Any) -> None:
        self._groups[id(group)] = weakref.ref(group)
        for key in [key for key in self._own if key[0] == id(group)]:
            del self._own[key]  # of a group that is gone, and whose address this one has got

    def _extend_group(self, group: Any, store: Any) -> list[str]:
        notes: list[str] = []
        self._hold(group)
        for what, kept in _fixed(group):
            self._fixed[what] = min(kept, self._fixed.get(what, kept))
        for knob in _knobs(group, store):
            try:
                own = knob.get()
                if own is None:
                    notes.append(f"{knob.what} keeps its timeout: what it is now cannot be read.")
                elif own < LONG:
                    knob.set(LONG)
                    self._own[id(group), knob.key] = own
            except Exception as error:
                notes.append(f"{knob.what} keeps its timeout: {_plain(error)}.")
        return notes

    def _restore_group(self, group: Any, store: Any) -> list[str]:
        for knob in _knobs(group, store):
            own = self._own.get((id(group), knob.key))
            # Anything but ours was set by the job meanwhile.
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
        return ["Groups made from now on wait for other ranks no longer than they were asked to while they are made."]

    def _unwrap(self) -> None:
        c10d = _c10d()
        for name, (original, wrapper) in self._wrapped.items():
            if getattr(c10d, name, None) is wrapper:
                setattr(c10d, name, original)
        self._wrapped.clear()

    def _waiting(self, original: Any) -> Any:
        @functools.wraps(original)
        def with_patience(*args: Any, **kwargs: Any) -> Any:
            args, kwargs, _ = _patient(original, args, kwargs)
            return original(*args, **kwargs)

        return with_patience

    def _creating(self, original: Any) -> Any:
        @functools.wraps(original)
        def with_patience(*args: Any, **kwargs: Any) -> Any:
            args, kwargs, asked = _patient(original, args, kwargs)
            store = _extend_store(original, args, kwargs)
            made = original(*args, **kwargs)
            _noted(self._made, made, asked, store)
            return made

        return with_patience

    def _made(self, made: Any, asked: timedelta | None, store: timedelta | None) -> list[str]:
        """What a new group is to be given back. If all is restored already, it is given now."""
        group, prefix = made if isinstance(made, tuple) else (made, None)
        with self._lock:
            if not hasattr(group, "_device_types"):
                return []  # this rank is not a member
            if not self._known(group):
                self._hold(group)
            for knob in _knobs(group, prefix):
                own = store if knob.key == "store" else asked
                if own is not None and knob.get() == LONG:
                    self._own[id(group), knob.key] = own
            if not self._extended:
                self._restore_group(group, prefix)
        return []


def _plain(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:120].rstrip(".")


def _noted(function: Callable[..., list[str]], *args: Any) -> list[str]:
    try:
        return function(*args)
    except Exception as error:
        return [f"Some timeouts may not be extended: {_plain(error)}."]


def _c10d() -> Any:
    return sys.modules.get("torch.distributed.distributed_c10d")


def _groups() -> list[tuple[Any, Any]]:
    try:
        return [(group, entry[1]) for group, entry in list(_c10d()._world.pg_map.items())]
    except Exception:
        return []


def _knobs(group: Any, store: Any) -> Iterator[_Knob]:
    """The timeouts of a group: of its backends, of its store."""
    name = str(getattr(group, "group_desc", "") or getattr(group, "group_name", ""))
    for device, main, _ in _backends(group):
        kind = _kind(main)
        if kind not in ("MPI", "FakeProcessGroup"):  # have no timeouts
            yield _backend_knob(f"Group {name!r} ({kind})", f"backend {device}", main)
    inmost = _inmost(store)
    if inmost is not None:
        yield _Knob("store", f"The store of group {name!r}", lambda: inmost.timeout, inmost.set_timeout)


def _fixed(group: Any) -> Iterator[tuple[str, timedelta]]:
    """What of a group keeps its timeout, and that timeout."""
    for _, main, checked in _backends(group):
        own = _read(main)
        if own is not None and own < LONG:
            if _kind(main) == "Gloo":
                yield TRANSFERS, own
            if checked:
                yield CHECK, own


def _keeping(fixed: dict[str, timedelta]) -> list[str]:
    """The sentence that is said of it, one for all groups."""
    if not fixed:
        return []
    what, least = ", and ".join(fixed), _seconds(min(fixed.values()))
    return [f"{what[0].upper()}{what[1:]} keep their timeouts, the shortest of {least} s."]


def _kind(backend: Any) -> str:
    return type(backend).__name__.removeprefix("ProcessGroup")


def _backends(group: Any) -> Iterator[tuple[Any, Any, bool]]:
    """Of each backend of a group a device that it is for, itself, and whether DETAIL checks its collectives."""
    seen: list[Any] = []
    for device in group._device_types:
        backend = group._get_backend(device)
        if any(backend is other for other in seen):
            continue
        seen.append(backend)  # kept: else the next one may be at its address
        wrapped = getattr(backend, "wrapped_pg", None)
        yield device, backend if wrapped is None else wrapped, wrapped is not None


def _backend_knob(what: str, key: str, backend: Any) -> _Knob:
    def change(timeout: timedelta) -> None:
        method = getattr(backend, "_set_default_timeout", None)
        if method is not None:
            method(timeout)
        else:
            backend.options._timeout = timeout  # the very options that the backend reads

    return _Knob(key, what, lambda: _read(backend), change)


def _read(backend: Any) -> timedelta | None:
    found = getattr(getattr(backend, "options", None), "_timeout", None)
    return found if isinstance(found, timedelta) else None


def _inmost(store: Any) -> Any:
    """Prefixes hand on to the store below them, timeouts too."""
    for _ in range(16):
        below = getattr(store, "underlying_store", None)
        if below is None:
            break
        store = below
    return store if hasattr(store, "timeout") and hasattr(store, "set_timeout") else None


def _extend_store(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> timedelta | None:
    """A new default group's store must be patient while its members meet; its own timeout, if it was changed."""
    try:
        store = _inmost(inspect.signature(original).bind(*args, **kwargs).arguments.get("store"))
        own = store.timeout
        if isinstance(own, timedelta) and own < LONG:
            store.set_timeout(LONG)
            return own
    except Exception:
        pass
    return None


def _patient(
    original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], timedelta | None]:
    """A call's arguments with a long timeout, and the one that was asked for."""
    asked = kwargs.get("timeout")
    if isinstance(asked, timedelta):
        return (args, {**kwargs, "timeout": max(asked, LONG)}, asked)
    try:
        at = list(inspect.signature(original).parameters).index("timeout")
        asked = args[at]
    except (ValueError, TypeError, IndexError):
        return args, kwargs, None
    if not isinstance(asked, timedelta):
        return args, kwargs, None
    return (*args[:at], max(asked, LONG), *args[at + 1 :]), kwargs, asked


def _under_way() -> list[str]:
    """Operations carry the timeout that they began with. The flight recorder knows them, where it is on."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_fr_trace_json", None) or getattr(c10d, "_dump_nccl_trace_json", None)
    if dump is None:
        return []
    began = _not_retired(dump)
    if began:
        time.sleep(0.05)  # one that has just ended is retired a moment later
        began = [one for one in _not_retired(dump) if one in began]
    limits = [one.get("timeout_ms", 0) / 1000 for one in began]
    short = [limit for limit in limits if 0 < limit < LONG.total_seconds()]
    if not short:
        return []
    least = _seconds(timedelta(seconds=min(short)))
    if len(short) == 1:
        return [f"1 operation already under way keeps its timeout of {least} s."]
    return [f"{len(short)} operations already under way keep their timeouts, the shortest of {least} s."]


def _not_retired(dump: Callable[[bool, bool], bytes]) -> list[dict[str, Any]]:
    entries = json.loads(dump(True, True)).get("entries") or []
    return [one for one in entries if not one.get("retired", True)]


def _seconds(timeout: timedelta) -> str:
    return f"{timeout.total_seconds():g}"
