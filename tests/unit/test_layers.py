"""Imports point one way: TARGET → jobs → reach → observe → snapshot → explain → show, and cli sees all.

The tables below are the design. A new room gets a row here first, and then its code.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "breakranks"

# room: the rooms of ours that it may import, besides itself. A room is a package or a lone module.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "rankset": {"errors"},
    "stall": set(),
    "log": {"errors"},
    "snapshot": {"errors", "rankset"},
    "observe": {"errors", "log", "rankset", "stall", "snapshot"},
    "jobs": {"errors", "log", "rankset", "snapshot", "observe"},
    "inside": {"errors", "log", "rankset", "stall", "snapshot", "observe", "jobs"},
    "debug": {"errors", "log", "rankset", "stall", "observe", "jobs", "inside"},
    "reach": {"errors", "log", "rankset", "stall", "snapshot", "observe", "jobs", "inside", "debug"},
    "explain": {"errors", "rankset", "snapshot"},
    "show": {"errors", "rankset", "snapshot", "explain", "debug"},
    "cli": {"errors", "log", "rankset", "snapshot", "observe", "jobs", "inside", "debug", "reach", "explain", "show"},
    "pdb_utils": {"inside"},
    "__init__": {"inside"},
    "__main__": {"cli"},
}

# third-party package: where it may be imported, by path below src/breakranks. Anything else: nowhere.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "msgspec": ("",),
    "pystack": ("observe/",),
    "ClusterShell": ("reach/ways/",),
    "rich": ("show/", "cli/top.py"),
}

# A snapshot from a cluster is explained on a laptop: these rooms must be unable to touch a process.
PROCESS_MODULES = {"asyncio", "ctypes", "fcntl", "multiprocessing", "pty", "signal", "socket", "subprocess"}
PURE_ROOMS: dict[str, set[str]] = {
    "errors": PROCESS_MODULES | {"os"},
    "rankset": PROCESS_MODULES | {"os"},
    "stall": PROCESS_MODULES | {"os"},
    "explain": PROCESS_MODULES | {"os"},
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
    return path.startswith(("inside/rank/", "inside/payloads/")) or path == "inside/runner.py"


def test_every_room_has_a_row() -> None:
    assert {room_of(file) for file in FILES} <= MAY_IMPORT.keys()


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
