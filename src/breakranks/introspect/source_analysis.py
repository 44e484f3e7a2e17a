"""What the source tells of a line: the locks that it may wait for or hold, its loops, the files that it polls.

Only expressions of names and attributes are kept (``self.pool.lock``): their values can be read in the process without
calling any code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

# Usual names of step counters.
COUNTERS = frozenset(
    "step steps_done global_step iteration iter it epoch batch_idx batch_index n_iter i idx step_idx train_step".split()
)
_ASKS = frozenset({"exists", "lexists", "isfile", "is_file", "isdir", "stat", "access"})
_MAKES = frozenset({"mkdir", "link", "symlink", "open"})
_IDLE = frozenset("sleep print time monotonic perf_counter debug info warning format TimeoutError".split())
_LOCKS_FILE = frozenset({"flock", "lockf"})
_MAX_NAMES = 12  # of each kind, per line


class HeldLock(NamedTuple):
    """A lock that a frame at this line holds. ``sure``: the line is inside a ``with``; otherwise after ``acquire``."""

    path: str
    line: int
    sure: bool


class PolledPath(NamedTuple):
    """A file that the loop around a line polls.

    ``sure``: the loop runs as long as the file exists, or creates the file and fails if it exists. Otherwise only a
    file with the name of a lock counts.
    """

    path: str
    sure: bool


class SourceLine(NamedTuple):
    """What the source tells of one line.

    ``receivers`` are the objects whose methods are called here. ``loops`` are the variables of the loops around the
    line, outermost first.
    """

    waits: tuple[str, ...] = ()
    held: tuple[HeldLock, ...] = ()
    receivers: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()
    polled: tuple[PolledPath, ...] = ()


NOTHING = SourceLine()
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
_Loop = ast.For | ast.AsyncFor | ast.While


class SourceFile:
    """One source file. It is parsed once, and each line is analysed once."""

    def __init__(self, text: str) -> None:
        self._known: dict[tuple[str, int], SourceLine] = {}
        try:
            self._tree: ast.Module | None = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._tree = None

    def line(self, function: str, line: int) -> SourceLine:
        key = (function, line)
        if key not in self._known:
            scope = _function(self._tree, function, line) if self._tree is not None else None
            self._known[key] = NOTHING if scope is None else _read(scope, line)
        return self._known[key]


def path_of(node: ast.AST | None) -> str:
    """An expression such as ``self.pool.lock``; empty if it has more than names and attributes."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or len(parts) > 6:
        return ""
    return ".".join([node.id, *reversed(parts)])


def _function(tree: ast.Module, name: str, line: int) -> _Function | None:
    if name == "<module>":
        return tree
    best: _Function | None = None
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == name
            and node.lineno <= line <= (node.end_lineno or 0)
            and (best is None or isinstance(best, ast.Module) or node.lineno > best.lineno)
        ):
            best = node
    return best


def _walk(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, in the order of its lines, without nested functions and classes."""
    left = [scope]
    while left:
        node = left.pop()
        if node is not scope:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                continue
            yield node
        left.extend(reversed(list(ast.iter_child_nodes(node))))


def _read(scope: _Function, line: int) -> SourceLine:
    nodes = list(_walk(scope))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    around = [node for node in nodes if isinstance(node, _Loop) and node.lineno <= line <= _last(node)]
    waits, held = _with_blocks(nodes, line)
    waits += [path for call, path in _calls_of(calls, "acquire") if _on(call, line)]
    held += _acquired(calls, line)
    receivers = [path_of(call.func.value) for call in calls if isinstance(call.func, ast.Attribute) and _on(call, line)]
    return SourceLine(
        waits=_some(waits),
        held=tuple(held[:_MAX_NAMES]),
        receivers=_some(receivers),
        loops=_some([*(name for loop in around for name in _variables(loop)), *_counters(scope, nodes, around)]),
        polled=tuple(dict.fromkeys(one for loop in around for one in _files(loop)))[:_MAX_NAMES],
    )


def _some(paths: list[str]) -> tuple[str, ...]:
    return tuple(path for path in dict.fromkeys(paths) if path)[:_MAX_NAMES]


def _last(node: _Loop | ast.With | ast.AsyncWith) -> int:
    """The last line of the body, without ``else``."""
    return node.body[-1].end_lineno or node.body[-1].lineno


def _on(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _with_blocks(nodes: list[ast.AST], line: int) -> tuple[list[str], list[HeldLock]]:
    waits: list[str] = []
    held: list[HeldLock] = []
    for node in nodes:
        if not isinstance(node, ast.With) or not node.lineno <= line <= _last(node):
            continue
        paths = [path for item in node.items if (path := path_of(item.context_expr))]
        body = node.body[0].lineno
        if line < body or line == node.lineno:
            waits += paths
        if line >= body:
            # If the body is on the line of the `with`, the frame may be before the body or in it.
            held += [HeldLock(path, node.lineno, line > node.lineno) for path in paths]
    return waits, held


def _calls_of(calls: list[ast.Call], name: str) -> Iterator[tuple[ast.Call, str]]:
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == name and (path := path_of(call.func.value)):
            yield call, path


def _acquired(calls: list[ast.Call], line: int) -> list[HeldLock]:
    """The locks that were acquired on a line above, and not released since."""
    taken: dict[str, int] = {}
    events = [(call.lineno, True, path) for call, path in _calls_of(calls, "acquire") if not _on(call, line)]
    events += [(call.lineno, False, path) for call, path in _calls_of(calls, "release") if not _on(call, line)]
    for at, takes, path in sorted(events):
        if at >= line:
            break
        if takes:
            taken[path] = at
        else:
            taken.pop(path, None)
    return [HeldLock(path, at, False) for path, at in taken.items()]


def _variables(loop: _Loop) -> Iterator[str]:
    if isinstance(loop, ast.While):
        changed = {path_of(node) for node in _walk(loop) if isinstance(getattr(node, "ctx", None), ast.Store)}
        tested = (path_of(node) for node in ast.walk(loop.test) if isinstance(node, ast.Name | ast.Attribute))
        yield from (path for path in tested if path in changed)
        return
    # A variable named "_" is not used: `for _ in range(3)`.
    yield from (node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name) and node.id != "_")


def _counters(scope: _Function, nodes: list[ast.AST], around: list[_Loop]) -> Iterator[str]:
    """Variables, arguments and attributes of ``self`` with the name of a counter, without variables of other loops."""
    elsewhere = {
        name for loop in nodes if isinstance(loop, ast.For) and loop not in around for name in _variables(loop)
    }
    if not isinstance(scope, ast.Module):
        arguments = (*scope.args.args, *scope.args.kwonlyargs)
        yield from (argument.arg for argument in arguments if argument.arg in COUNTERS)
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in COUNTERS - elsewhere:
            yield node.id
        if isinstance(node, ast.Attribute) and node.attr in COUNTERS and path_of(node) == f"self.{node.attr}":
            yield path_of(node)


def _files(loop: _Loop) -> Iterator[PolledPath]:
    """The files that a loop tests, or tries to create or to lock."""
    until_gone = set(_asked_in(loop.test)) if isinstance(loop, ast.While) and _only_waits(loop) else set()
    for call in _walk(loop):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else path_of(call.func)
        path = _file(call, name)
        if path and name in _LOCKS_FILE:
            yield PolledPath(path, True)
        elif path and name in _ASKS:
            yield PolledPath(path, path in until_gone)
        elif path and name in _MAKES:
            yield PolledPath(path, _only_if_new(call) if name == "open" else not call.keywords)


def _only_waits(loop: ast.While) -> bool:
    """Whether a loop only waits. A loop that works as long as a file exists does not wait for its removal."""
    names = {
        call.func.attr if isinstance(call.func, ast.Attribute) else path_of(call.func)
        for call in _walk(loop)
        if isinstance(call, ast.Call)
    }
    return names <= _ASKS | _IDLE


def _file(call: ast.Call, name: str) -> str:
    """The file in ``os.path.exists(self.path)`` and in ``self.path.exists()``."""
    if name in ("link", "symlink"):
        return path_of(call.args[1]) if len(call.args) > 1 else ""
    if call.args and (path := path_of(call.args[0])):
        return path
    return path_of(call.func.value) if isinstance(call.func, ast.Attribute) and not call.args else ""


def _asked_in(test: ast.expr) -> Iterator[str]:
    """The files that must exist for a loop to continue, without those after a ``not``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for operand in test.values:
            yield from _asked_in(operand)
    if isinstance(test, ast.Call):
        name = test.func.attr if isinstance(test.func, ast.Attribute) else path_of(test.func)
        if name in _ASKS and (path := _file(test, name)):
            yield path


def _only_if_new(call: ast.Call) -> bool:
    """Whether it is ``os.open(path, O_CREAT | O_EXCL)`` or ``open(path, "x")``."""
    return any(
        (isinstance(node, ast.Attribute | ast.Name) and path_of(node).endswith("O_EXCL"))
        or (isinstance(node, ast.Constant) and node.value in ("x", "xb"))
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        for node in ast.walk(argument)
    )
