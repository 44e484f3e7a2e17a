"""Imports point one way, as the table in docs/architecture.md says; names are used once; no module imports itself."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "breakranks"

TABLE = Path(__file__).parents[2] / "docs" / "architecture.md"


def may_import() -> dict[str, set[str]]:
    """By package or lone module: which others it may import, besides itself. As the table in the docs says it."""
    rows = [
        line.strip("|").split("|") for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    found = {words(name)[0]: set(words(allowed)) for name, _, allowed in rows}
    return found | {"__init__": {"rank"}, "__main__": {"cli"}}


def words(cell: str) -> list[str]:
    return re.findall("`([a-z_]+)`", cell)


MAY_IMPORT = may_import()

# third-party package: where it may be imported, by path below src/breakranks. Anything else: nowhere.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "msgspec": ("",),
    "ahocorasick_rs": ("logs/log_scan.py",),
    "pystack": ("observe/",),
    "ClusterShell": ("hosts/transports/",),
    "rich": ("show/", "cli/top.py"),
    "typing_extensions": ("rank_messages.py",),  # for type checkers
}

# A snapshot from a cluster is explained on a laptop: these rooms must be unable to touch a process.
PROCESS_MODULES = {"asyncio", "ctypes", "fcntl", "multiprocessing", "pty", "signal", "socket", "subprocess"}
PURE_ROOMS: dict[str, set[str]] = {
    "errors": PROCESS_MODULES | {"os"},
    "rankset": PROCESS_MODULES | {"os"},
    "rank_messages": PROCESS_MODULES,
    "machine_suspension": PROCESS_MODULES | {"os"},
    "explain": PROCESS_MODULES | {"os"},
    "logs": PROCESS_MODULES,  # it reads files
    "snapshot": PROCESS_MODULES,  # it writes its file, so it may know about files
}

STANDARD = sys.stdlib_module_names | {"tomllib"}  # from 3.11; these tests run on 3.10 too

FILES = sorted(SOURCE.rglob("*.py"))


class Import(NamedTuple):
    line: int
    module: str


def room_of(file: Path) -> str:
    """The first part of the path below the package, without its suffix: ``explain``, ``rankset``."""
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(source: str, package: str) -> Iterator[Import]:
    """Every module that a source text imports, wherever in it, with relative ones made absolute.

    ``from a import b`` counts as ``a.b``, because ``b`` may be a module; so do ``import_module("a.b")``
    and ``__import__("a.b")`` when the name is written out.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (Import(node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                base = ".".join([*above, *([module] if module else [])])
                yield from (Import(node.lineno, f"{base}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(node.lineno, name)


def imports_in(file: Path) -> list[Import]:
    package = ".".join(["breakranks", *file.relative_to(SOURCE).parent.parts])
    return list(imports_of(file.read_text(encoding="utf-8"), package))


def names(files: list[Path]) -> list[str]:
    return [str(file.relative_to(SOURCE)) for file in files]


def _runs_in_a_rank(file: Path) -> bool:
    path = file.relative_to(SOURCE).as_posix()
    return path.startswith(("rank/", "rank/payloads/")) or path in ("inject/runner.py", "rank_messages.py")


def test_every_room_has_a_row() -> None:
    assert {room_of(file) for file in FILES} <= MAY_IMPORT.keys()


def test_the_drawing_in_the_docs_is_that_of_the_imports() -> None:
    drawn = "\n".join(f"    {'  '.join(layer)}" for layer in layers())
    assert f"\n\n{drawn}\n\n" in TABLE.read_text(encoding="utf-8"), f"docs/architecture.md should have:\n{drawn}"


def layers() -> Iterator[list[str]]:
    """The packages from the topmost down. Each imports from those below its own line, and from no other."""
    below: dict[str, set[str]] = {room_of(file): set() for file in FILES if not file.stem.startswith("__")}
    for file in FILES:
        targets = {found.module.split(".")[1] for found in imports_in(file) if found.module.startswith("breakranks.")}
        below.setdefault(room_of(file), set()).update(targets & below.keys() - {room_of(file)})
    left = {room: below[room] for room in below if not room.startswith("__")}
    depth: dict[str, int] = {}
    for room in TopologicalSorter(left).static_order():
        depth[room] = 1 + max((depth[one] for one in left[room]), default=0)
    for level in range(max(depth.values()), 0, -1):
        yield sorted(room for room in depth if depth[room] == level)


@pytest.mark.parametrize("file", FILES, ids=names(FILES))
def test_our_imports_point_one_way(file: Path) -> None:
    room = room_of(file)
    allowed = MAY_IMPORT.get(room, set()) | {room}
    wrong = []
    for line, module in imports_in(file):
        top, _, rest = module.partition(".")
        target = rest.split(".")[0]
        # `from breakranks import __version__` names something of the package itself, not a room.
        if top == "breakranks" and not target.startswith("__") and target not in allowed:
            wrong.append(f"line {line}: {module}")
    assert not wrong, f"{room} may import {sorted(allowed)}, but {file.name} imports {wrong}"


def test_every_module_name_is_used_once() -> None:
    stems = Counter(file.stem for file in FILES if not file.stem.startswith("__"))
    assert not [name for name, times in stems.items() if times > 1]


def test_every_public_class_name_is_used_once() -> None:
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in FILES]
    found = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert not [name for name, times in found.items() if times > 1 and not name.startswith("_")]


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports in functions count; those for type checkers do not."""
    modules = {module_of(file): file for file in FILES}
    sorter = TopologicalSorter({name: set(runtime_imports(file, modules)) - {name} for name, file in modules.items()})
    sorter.prepare()


def module_of(file: Path) -> str:
    return ".".join(("breakranks", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def runtime_imports(file: Path, modules: Collection[str]) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    checked = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
        for node in ast.walk(test)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in checked:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in modules or node.module in modules:
                    yield full if full in modules else node.module


@pytest.mark.parametrize("file", FILES, ids=names(FILES))
def test_third_party_imports_are_where_they_may_be(file: Path) -> None:
    path = file.relative_to(SOURCE).as_posix()
    wrong = []
    for line, module in imports_in(file):
        top = module.split(".")[0]
        if top == "breakranks" or top in STANDARD:
            continue
        if not path.startswith(THIRD_PARTY.get(top, ())):
            wrong.append(f"line {line}: {module}")
    assert not wrong, f"{path} imports {wrong}; THIRD_PARTY in this test says what may be imported where"


@pytest.mark.parametrize("file", [f for f in FILES if room_of(f) in PURE_ROOMS], ids=lambda file: names([file])[0])
def test_rooms_that_never_touch_a_process(file: Path) -> None:
    forbidden = PURE_ROOMS[room_of(file)]
    wrong = [found for found in imports_in(file) if found.module.split(".")[0] in forbidden]
    assert not wrong


@pytest.mark.parametrize("file", [f for f in FILES if _runs_in_a_rank(f)], ids=lambda file: names([file])[0])
def test_what_runs_in_a_rank_does_not_log(file: Path) -> None:
    """The loggers of a job are the job's own."""
    wrong = [found for found in imports_in(file) if {"logging", "log"} & set(found.module.split("."))]
    assert not wrong


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a.b as c", ["a.b"]),
        ("from a import b, c", ["a.b", "a.c"]),
        ("from . import x", ["breakranks.explain.x"]),
        ("from ..snapshot import model", ["breakranks.snapshot.model"]),
        ("from .rules.base import Rule", ["breakranks.explain.rules.base.Rule"]),
        ("def f():\n    import torch", ["torch"]),
        ("if TYPE_CHECKING:\n    from rich.text import Text", ["rich.text.Text"]),
        ("importlib.import_module('torch')", ["torch"]),
        ("__import__('torch')", ["torch"]),
        ("x = 'import torch'", []),
    ],
)
def test_the_walk_sees_every_way_to_import(source: str, expected: list[str]) -> None:
    assert [found.module for found in imports_of(source, "breakranks.explain")] == expected
