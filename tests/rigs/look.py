"""Run breakranks on the machine, as a person does who looks at the hosts of the rig."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .nodes import Nodes

BREAKRANKS = str(Path(sys.executable).parent / "breakranks")
WITHIN = 60.0


@dataclass(frozen=True)
class Seen:
    """What a command said: exit status, output, errors, and how long it took."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.out)
        except ValueError:
            raise AssertionError(f"no JSON: {self}") from None

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def whole(self) -> str:
        return self.out + self.err


@dataclass(frozen=True)
class Looker:
    """Looks at hosts of a rig by one way: ``words`` are the target and the options that it needs."""

    folder: Path
    words: tuple[str, ...]
    environment: Mapping[str, str]

    def __call__(self, command: str, *words: str, status: int | None = None, within: float = WITHIN) -> Seen:
        """Run a command on the target. With ``status``, it must end so."""
        seen = breakranks(self.folder, command, *self.words, *words, environment=self.environment, within=within)
        assert status is None or seen.status == status, seen
        return seen

    def start(self, command: str, *words: str) -> subprocess.Popen[str]:
        """The same, without waiting for it."""
        return start(self.folder, command, *self.words, *words, environment=self.environment)


def by_ssh(nodes: Nodes, hosts: str) -> Looker:
    return Looker(nodes.folder, (f"ssh:{hosts}", f"--ssh-config={nodes.ssh_config}"), {})


def breakranks(folder: Path, *words: str, environment: Mapping[str, str] | None = None, within: float = WITHIN) -> Seen:
    began = time.monotonic()
    with start(folder, *words, environment=environment) as process:
        try:
            out, err = process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{words} took over {within:.0f} s, and said: {out}{err}") from None
    seen = Seen(process.returncode, out, err, time.monotonic() - began)
    assert "unexpected" not in seen.whole and "Traceback" not in seen.whole, (words, seen)
    return seen


def start(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [BREAKRANKS, *words],
        env={**os.environ, **(environment or {})},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
