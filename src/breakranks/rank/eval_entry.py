"""One question to a rank, and out again: an expression, evaluated in a frame of a thread that goes on meanwhile."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from breakranks.rank import collective_guard, device_sync, inspector, thread_location, value_summary
from breakranks.rank.captured_output import CapturedOutput
from breakranks.rank.unload import Unload

_MAX_FRAMES = 1000


class _No(Exception):
    """Why there is no answer. Its text is said."""


def answer(given: dict[str, Any], finder: Any) -> Callable[[], dict[str, Any]]:
    """Tells what ``given["source"]`` is there, when it is called: that may take as long as it likes."""
    return functools.partial(_answer, given, finder)


def _answer(given: dict[str, Any], finder: Any) -> dict[str, Any]:
    """Without a frame by name or number: in the innermost that knows its names."""
    leaving = Unload(finder, frozenset(linecache.cache))
    try:
        found = _asked(given)
    except _No as no:
        found = {"error": str(no)}
    except BaseException as error:  # of ours: it must not look like one of the job's
        found = {"error": f"breakranks failed: {error!r}"}
    leaving.unload()
    return found


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    source = str(given["source"]).strip()
    tree = ast.parse(source)
    ident, frame = _frame(given, tree)
    told = {"where": thread_location.place(frame), "thread": inspector.name_of(ident)}
    takers = frozenset(given["takers"]) if given.get("effects") else frozenset()
    refused = collective_guard.precheck(source, frame.f_globals, frame.f_locals, takers)
    if refused:
        return {**told, "effect": refused}
    plain = not any(isinstance(node, ast.Call) for node in ast.walk(tree))
    return {**told, **_evaluate(source, frame, takers, plain)}


def _evaluate(source: str, frame: FrameType, takers: frozenset[int], plain: bool) -> dict[str, Any]:
    """What came of it. What the expression itself prints is told too; what it calls prints in the job."""
    printed = CapturedOutput()
    printed.own(None)
    # One scope, so that a comprehension sees the locals too.
    ours = {"locals": lambda: dict(frame.f_locals), "print": functools.partial(print, file=printed)}
    found = _value(source, frame, {**ours, **frame.f_globals, **frame.f_locals}, takers, plain)
    return {**found, "printed": printed.take()[0]}


def _value(source: str, frame: FrameType, scope: dict[str, Any], takers: frozenset[int], plain: bool) -> dict[str, Any]:
    try:
        with collective_guard.guarding(takers, modules=not plain), device_sync.not_waiting():
            try:
                code = compile(source, "<breakranks eval>", "eval", dont_inherit=True)
            except SyntaxError:
                exec(compile(source, "<breakranks eval>", "exec", dont_inherit=True), frame.f_globals, frame.f_locals)
                _keep(frame)
                return {"value": "", "described": None, "cut": 0}
            value = eval(code, scope)
            described = value_summary.describe(value)
            text, cut = value_summary.bounded(value)
            kept = text[: value_summary.MAX_TEXT_CHARACTERS]
            return {"value": kept, "cut": cut + len(text) - len(kept), "described": described}
    except collective_guard.CollectiveRefused as refused:
        return {"effect": str(refused)}
    except BaseException as error:
        return {"error": _said(error)}


def _keep(frame: FrameType) -> None:
    """Before 3.13 what is assigned to a local is lost otherwise."""
    if sys.version_info < (3, 13):
        import ctypes

        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(1))


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:2000]
    except BaseException:
        return type(error).__name__


def _frame(given: dict[str, Any], tree: ast.AST) -> tuple[int, FrameType]:
    """The thread that is meant, and its frame."""
    name = str(given.get("thread") or "main")
    ident = inspector.find(name)
    top = sys._current_frames().get(ident)
    if top is None:
        known = ", ".join(inspector.name_of(one) for one in list(inspector.theirs())[:20])
        raise _No(f"no thread {name!r} runs Python there; there is: {known}")
    frames = [one for one, _ in zip(thread_location.outwards(top), range(_MAX_FRAMES), strict=False)]
    return ident, _chosen(frames, given.get("frame"), tree)


def _chosen(frames: list[FrameType], wanted: Any, tree: ast.AST) -> FrameType:
    if wanted is None:
        return thread_location.knowing(frames, tree)
    if str(wanted).isdigit():
        if int(wanted) >= len(frames):
            raise _No(f"there is no frame {wanted}: the stack has {len(frames)}, 0 is the innermost")
        return frames[int(wanted)]
    for frame in frames:
        if wanted in (frame.f_code.co_name, getattr(frame.f_code, "co_qualname", "")):
            return frame
    listed = ", ".join(dict.fromkeys(frame.f_code.co_name for frame in frames[:20]))
    raise _No(f"no frame of {wanted!r} is on its stack; there is: {listed}")
