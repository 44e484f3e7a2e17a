"""Evaluate one expression in a rank, in a frame of a thread that keeps running, and unload: an injected entry point."""

from __future__ import annotations

import ast
import ctypes
import functools
import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from breakranks.rank import collective_guard, stuck_device, thread_location, thread_names, thread_states, value_summary
from breakranks.rank.captured_output import CapturedOutput
from breakranks.rank.unload import Unload

_MAX_FRAMES = 1000


class _NoAnswer(Exception):
    """Why there is no answer; the text is reported."""


def answer(given: dict[str, Any], finder: Any) -> Callable[[], dict[str, Any]]:
    """Return a function that evaluates ``given["source"]``. It may take any time."""
    return functools.partial(_answer, given, finder)


def _answer(given: dict[str, Any], finder: Any) -> dict[str, Any]:
    """Evaluate in the given frame, or else in the innermost frame that knows all names."""
    leaving = Unload(finder, frozenset(linecache.cache))
    try:
        reply = _reply(given)
    except _NoAnswer as reason:
        reply = {"error": str(reason)}
    except BaseException as error:  # of breakranks: it must not look like an error of the job
        reply = {"error": f"breakranks failed: {error!r}"}
    leaving.unload()
    return reply


def _reply(given: dict[str, Any]) -> dict[str, Any]:
    source = str(given["source"]).strip()
    tree = ast.parse(source)
    ident, frame = _frame(given, tree)
    names = {"thread": thread_names.numbered_name(ident), "thread_name": thread_states.name_of(ident)}
    head = {"where": thread_location.place(frame), **names}
    takers = frozenset(given["takers"]) if given.get("effects") else frozenset()
    refused = collective_guard.precheck(source, frame.f_globals, frame.f_locals, takers)
    if refused:
        return {**head, "effect": str(refused), "collective": refused.collective}
    plain = not any(isinstance(node, ast.Call) for node in ast.walk(tree))
    return {**head, **_evaluate(source, frame, takers, plain)}


def _evaluate(source: str, frame: FrameType, takers: frozenset[int], plain: bool) -> dict[str, Any]:
    """Return the result and what the expression itself prints. What it calls prints in the job."""
    printed = CapturedOutput()
    printed.own(None)
    # One scope, so that a comprehension sees the locals.
    extra = {"locals": lambda: dict(frame.f_locals), "print": functools.partial(print, file=printed)}
    result = _value(source, frame, {**extra, **frame.f_globals, **frame.f_locals}, takers, plain)
    return {**result, "printed": printed.take()[0]}


def _value(source: str, frame: FrameType, scope: dict[str, Any], takers: frozenset[int], plain: bool) -> dict[str, Any]:
    try:
        with collective_guard.guarding(takers, modules=not plain), stuck_device.not_waiting():
            try:
                code = compile(source, "<breakranks eval>", "eval", dont_inherit=True)
            except SyntaxError:
                exec(compile(source, "<breakranks eval>", "exec", dont_inherit=True), frame.f_globals, frame.f_locals)
                _keep_locals(frame)
                return {"value": "", "described": None, "cut": 0}
            value = eval(code, scope)
            described = value_summary.describe(value)
            text, cut = value_summary.bounded(value)
            kept = text[: value_summary.MAX_TEXT_CHARACTERS]
            return {"value": kept, "cut": cut + len(text) - len(kept), "described": described}
    except collective_guard.CollectiveRefused as refused:
        return {"effect": str(refused), "collective": refused.collective}
    except BaseException as error:
        return {"error": _error_text(error)}


def _keep_locals(frame: FrameType) -> None:
    """Before 3.13 a local that was assigned is lost without this."""
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(1))


def _error_text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:2000]
    except BaseException:
        return type(error).__name__


def _frame(given: dict[str, Any], tree: ast.AST) -> tuple[int, FrameType]:
    """Return the ident of the thread in ``given``, and its frame."""
    name = str(given.get("thread") or "main")
    ident = thread_names.find_thread(name)
    top = sys._current_frames().get(ident)
    if top is None:
        known = ", ".join(thread_names.numbered_name(other) for other in list(thread_states.others())[:20])
        raise _NoAnswer(f"no thread {name!r} runs Python there; threads: {known}")
    frames = [frame for frame, _ in zip(thread_location.outwards(top), range(_MAX_FRAMES), strict=False)]
    return ident, _chosen(frames, given.get("frame"), tree)


def _chosen(frames: list[FrameType], wanted: Any, tree: ast.AST) -> FrameType:
    if wanted is None:
        return thread_location.knowing(frames, tree)
    if str(wanted).isdigit():
        if int(wanted) >= len(frames):
            raise _NoAnswer(f"there is no frame {wanted}: the stack has {len(frames)}, 0 is the innermost")
        return frames[int(wanted)]
    for frame in frames:
        if wanted in (frame.f_code.co_name, getattr(frame.f_code, "co_qualname", "")):
            return frame
    listed = ", ".join(dict.fromkeys(frame.f_code.co_name for frame in frames[:20]))
    raise _NoAnswer(f"no function {wanted!r} is on its stack; functions: {listed}")
