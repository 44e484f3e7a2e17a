"""Files and lines of the code that this process runs: what FILE:LINE means here, and which lines have code."""

from __future__ import annotations

import dis
import linecache
import os
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

from breakranks.rank import thread_states

_RESUME = dis.opmap.get("RESUME")  # since 3.11
_NEAREST = 3


class NoSuchLine(Exception):
    """There is no such place; its text says what there is instead."""


def canonic(file: str) -> str:
    """One name for a file, however code objects call it. A script keeps its own, also after a chdir."""
    if os.path.isabs(file) or (file.startswith("<") and file.endswith(">")):
        return os.path.normpath(file)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(main, str) and os.path.isabs(main) and main.endswith(os.sep + os.path.normpath(file)):
        return os.path.normpath(main)
    return os.path.abspath(file)


def loaded() -> set[str]:
    """The source files that modules and running frames are made of."""
    found = {canonic(one) for one in map(_file_of, list(sys.modules.values())) if one}
    for frame in thread_states.others().values():
        found.update(canonic(one.f_code.co_filename) for one in thread_states.stack(frame))
    return found


def _file_of(module: Any) -> str:
    file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    return file if isinstance(file, str) and file.endswith((".py", ".pyw")) else ""


def find(name: str) -> str:
    """The one file that is meant by a path, the end of one, or a module's name. Raises NoPlace."""
    files = loaded()
    if os.path.isabs(name):
        found = sorted({os.path.normpath(name), os.path.realpath(name)} & files)
    else:
        module = _file_of(sys.modules.get(name))
        ends = {os.sep + os.path.normpath(one) for one in (name, f"{name}.py")}
        found = [canonic(module)] if module else sorted(one for one in files if one.endswith(tuple(ends)))
        if len(found) > 1 and canonic(name) in found:
            found = [canonic(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise NoSuchLine(f"{name} is more than one file here; say which: " + ", ".join(found[:10]))
    raise NoSuchLine(f"no file {name} is loaded in this process" + _similar(name, files))


def _similar(name: str, files: set[str]) -> str:
    base = os.path.basename(name).partition(".")[0]
    like = sorted(one for one in files if base and base in os.path.basename(one))[:5]
    return f"; there is {', '.join(like)}" if like else ""


def lines_of(file: str) -> set[int]:
    """The lines of a source file that have code; none, where it cannot be read."""
    source = "".join(linecache.getlines(file))
    try:
        whole = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return set()
    return {line for code in _within(whole) for line in lines_in(code)}


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _within(one)


def lines_in(code: CodeType) -> Iterator[int]:
    """The lines at which this code can be stopped; a ``def`` is a line of the code around it."""
    start = _begin(code)
    return (line for _, end, line in code.co_lines() if line and end > start)


def first_line(code: CodeType) -> int:
    """The first line of a function that is executed."""
    return next(lines_in(code), code.co_firstlineno)


def _begin(code: CodeType) -> int:
    """Where in its bytecode a function's body begins."""
    if _RESUME is None:
        return 0
    resume = next((at for at, one in enumerate(code.co_code[::2]) if one == _RESUME), -1)
    return 2 * resume + 2


def why_not(file: str, line: int) -> str:
    """Why a line cannot be stopped at, with those near it that can; nothing, if it can."""
    known = lines_of(file)
    if not known or line in known:
        return ""
    near = sorted(sorted(known, key=lambda one: (abs(one - line), one))[:_NEAREST])
    words = ", ".join(map(str, near))
    return f"line {line} of {os.path.basename(file)} has no code; the nearest that have: {words}"
