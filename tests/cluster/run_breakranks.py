"""Run breakranks on the machine, as a person does who looks at the hosts of the rig."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.consoles import records
from support.processes import defaults_for_signals
from support.stalls import undisturbed

from .nodes import Nodes

BREAKRANKS = str(Path(sys.executable).parent / "breakranks")
WITHIN = 120.0
# Seconds that a host has, where all of them must answer; and, where one of them cannot, seconds to begin with.
PATIENT = 60.0
HASTY = 4.0


@dataclass(frozen=True)
class Seen:
    """What a command said: exit status, output, errors."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.out)
        except ValueError:
            raise AssertionError(f"no JSON: {self}") from None

    @property
    def lines(self) -> list[Any]:
        return records(self.out)

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
        """Run a command on the target. With ``status``, it must end so. One that only looks does so undisturbed."""

        def ask() -> Seen:
            seen = breakranks(self.folder, command, *self.words, *words, environment=self.environment, within=within)
            assert status is None or seen.status == status, seen
            return seen

        return ask() if command == "console" else undisturbed(ask)

    def losing(self, command: str, *words: str, fine: Callable[[Seen], bool]) -> Seen:
        """The same where a host cannot answer, which costs the deadline: a short one, unless it was so for others."""
        seen = self(command, *words, f"--deadline={HASTY}")
        try:
            if fine(seen):
                return seen
        except AssertionError:  # nobody had answered so soon, and there is no JSON
            pass
        return self(command, *words, f"--deadline={PATIENT / 2}", within=2 * WITHIN)

    def start(self, command: str, *words: str) -> subprocess.Popen[str]:
        """The same, without waiting for it."""
        return start(self.folder, command, *self.words, *words, environment=self.environment)


def by_ssh(nodes: Nodes, hosts: str) -> Looker:
    return Looker(nodes.folder, (f"ssh:{hosts}", f"--ssh-config={nodes.ssh_config}"), {})


def breakranks(folder: Path, *words: str, environment: Mapping[str, str] | None = None, within: float = WITHIN) -> Seen:
    with start(folder, *words, environment=environment) as process:
        try:
            out, err = process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{words} took over {within:.0f} s, and said: {out}{err}") from None
    seen = Seen(process.returncode, out, err)
    assert "unexpected" not in seen.whole and "Traceback" not in seen.whole, (words, seen)
    return seen


def start(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [BREAKRANKS, *words],
        env={**os.environ, "BREAKRANKS_DEADLINE": str(PATIENT), **(environment or {})},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=defaults_for_signals,
    )
