"""Source files and lines of this process: which file a FILE:LINE names, and which lines have code."""

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
_MAX_NEAREST = 3


class NoSuchLine(Exception):
    """FILE or LINE does not exist here. The text names similar files or the nearest lines."""


class AmbiguousFile(NoSuchLine):
    """FILE is the end of more than one path."""


def canonic(file: str) -> str:
    """Return the absolute path of a code object's file. A script keeps its path after a chdir."""
    if os.path.isabs(file) or (file.startswith("<") and file.endswith(">")):
        return os.path.normpath(file)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(main, str) and os.path.isabs(main) and main.endswith(os.sep + os.path.normpath(file)):
        return os.path.normpath(main)
    return os.path.abspath(file)


def loaded() -> set[str]:
    """Return the source files of modules and of running frames."""
    files = {canonic(file) for file in map(_file_of, list(sys.modules.values())) if file}
    for innermost in thread_states.others().values():
        files.update(canonic(frame.f_code.co_filename) for frame in thread_states.stack(innermost))
    return files


def _file_of(module: Any) -> str:
    file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    return file if isinstance(file, str) and file.endswith((".py", ".pyw")) else ""


def find(name: str) -> str:
    """Return the one file that a path, the end of a path or a module's name stands for. Raises NoSuchLine."""
    files = loaded()
    if os.path.isabs(name):
        found = sorted({os.path.normpath(name), os.path.realpath(name)} & files)
    else:
        module = _file_of(sys.modules.get(name))
        ends = tuple(os.sep + os.path.normpath(end) for end in (name, f"{name}.py"))
        found = [canonic(module)] if module else sorted(file for file in files if file.endswith(ends))
        if len(found) > 1 and canonic(name) in found:
            found = [canonic(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise AmbiguousFile(f"{name} matches more than one file: " + ", ".join(found[:10]))
    raise NoSuchLine(f"no file {name} is loaded in this process" + _similar(name, files))


def _similar(name: str, files: set[str]) -> str:
    base = os.path.basename(name).partition(".")[0]
    similar = sorted(file for file in files if base and base in os.path.basename(file))[:5]
    return f"; similar: {', '.join(similar)}" if similar else ""


def lines_of(file: str) -> set[int]:
    """Return the lines of a source file that have code; none, if it cannot be read."""
    source = "".join(linecache.getlines(file))
    try:
        whole = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return set()
    return {line for code in _within(whole) for line in lines_in(code)}


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)


def lines_in(code: CodeType) -> Iterator[int]:
    """Yield the lines at which this code can be stopped. A ``def`` is a line of the enclosing code."""
    start = _begin(code)
    return (line for _, end, line in code.co_lines() if line and end > start)


def first_line(code: CodeType) -> int:
    """Return the first executed line of a function."""
    return next(lines_in(code), code.co_firstlineno)


def _begin(code: CodeType) -> int:
    """Return the offset in the bytecode at which a function's body begins."""
    if _RESUME is None:
        return 0
    resume = next((at for at, opcode in enumerate(code.co_code[::2]) if opcode == _RESUME), -1)
    return 2 * resume + 2


def why_not(file: str, line: int) -> str:
    """Return why a line cannot be stopped at, with the nearest lines that can; an empty text if it can."""
    known = lines_of(file)
    if not known or line in known:
        return ""
    near = sorted(sorted(known, key=lambda other: (abs(other - line), other))[:_MAX_NEAREST])
    lines = ", ".join(map(str, near))
    return f"line {line} of {os.path.basename(file)} has no code; nearest lines with code: {lines}"
