"""The interpreters of target processes. The tests themselves run on one of them.

``scripts/setup --test`` makes an environment for each version that is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark.structures import ParameterSet

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
VERSIONS = ((3, 10), (3, 11), (3, 12), (3, 13))


class Interpreter(NamedTuple):
    """One Python: its path and its version."""

    path: str
    version: tuple[int, ...]

    @property
    def monitors(self) -> bool:
        """Whether it has sys.monitoring. Earlier versions have one trace function per thread."""
        return self.version >= (3, 12)

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


THIS = Interpreter(sys.executable, sys.version_info[:2])


def of(version: tuple[int, ...]) -> Interpreter:
    """The interpreter of a version, installed or not."""
    if version == THIS.version:
        return THIS
    name = ".".join(map(str, version))
    return Interpreter(str(ROOT / f".venv-{name}" / "bin" / "python"), version)


def is_here(interpreter: Interpreter) -> bool:
    return Path(interpreter.path).exists()


def on(*interpreters: Interpreter) -> pytest.MarkDecorator:
    """Run a test once with each of these as its ``interpreter``. Those that are not installed are skipped."""
    return pytest.mark.parametrize("interpreter", [_parameter(one) for one in interpreters])


def on_every_python_with(name: str, values: Iterable[str], core: Iterable[str]) -> pytest.MarkDecorator:
    """Run a test with every value of ``name`` on the Python of the tests, and with those of ``core`` on the others."""
    parameters = [_parameter(THIS, value) for value in values]
    parameters += [_parameter(one, value) for one in OTHERS for value in core]
    return pytest.mark.parametrize((name, "interpreter"), parameters)


def _parameter(one: Interpreter, *values: str) -> ParameterSet:
    missing = pytest.mark.skipif(not is_here(one), reason=f"no Python {one.name} on this machine")
    return pytest.param(*values, one, id="-".join([*values, one.name]), marks=missing)


EVERY = tuple(of(version) for version in VERSIONS)
OTHERS = tuple(one for one in EVERY if one != THIS)

# The fixture ``interpreter`` is each of them in turn, even if only another fixture uses it.
on_every_python = on(*EVERY)
