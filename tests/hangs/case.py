"""What the table of the zoo is made of: one job, and how it is prepared."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


def ranks_of(text: str) -> frozenset[int]:
    """`0-2,5` as a set."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def nothing(folder: Path) -> None:
    """Most jobs need no preparation."""


def left_over(path: str) -> Callable[[Path], None]:
    """An empty lock file whose maker is gone."""

    def prepare(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()

    return prepare


def named_pipe(path: str) -> Callable[[Path], None]:
    """A named pipe, which blocks whoever opens it until somebody opens the other end."""
    return lambda folder: os.mkfifo(folder / path)


def c_library(folder: Path) -> None:
    """A C function that never returns."""
    source = "void solve(void) { for (volatile unsigned long step = 0;; step++) {} }"
    compiler = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "libsolver.so")]
    subprocess.run(compiler, input=source.encode(), check=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One job: how it is started, where its ranks must stand, and what `why` must say of it.

    How it is started. `launcher` is shell (a loop of `RANK=$r python job.py &`, the quickest), torchrun, mpirun or
    python (the job starts its ranks itself). `started` are the ranks that the loop starts, all unless told. `other`
    is a program that is no rank and runs beside the job. `signals` go to the rank or helper of that mark.

    Where it stands. `stands` says which function is on the stack of which ranks or marked `helpers`: the
    harness waits for it. `busy` ranks may use the CPU, `gone` ones must have exited.

    What `why` must say. `kinds` are the accepted ones, the best first; none means a healthy job: no verdict,
    exit status 0. `culprits` and `victims` list accepted rank sets, None leaves them open; `involved` is both
    together. `function` is what `where` may name. `mentions` are words that the summary must hold: `@file`
    stands for what the job wrote into that file, `{folder}` for its folder. `proof` are words that must be in its
    evidence. `sure`: a guess will not do, `certain`: nothing less will.

    When it runs. Its recording is explained in every run. `live` ones are also started in every run: of each kind and
    launcher the quickest and most telling, and all healthy ones. The others are started with `--all`.
    """

    name: str
    launcher: str = "shell"
    ranks: int = 3
    started: str = ""
    other: str = ""
    stdin: str = "null"
    prepare: Callable[[Path], None] = nothing
    signals: tuple[tuple[str, int], ...] = ()

    stands: dict[str, str] = field(default_factory=dict)
    helpers: tuple[str, ...] = ()
    busy: str = ""
    gone: str = ""

    kinds: tuple[str, ...] = ()
    culprits: tuple[str, ...] | None = None
    victims: tuple[str, ...] | None = None
    involved: str | None = None
    function: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()
    proof: tuple[str, ...] = ()
    sure: bool = True
    certain: bool = False
    live: bool = False

    @property
    def starts(self) -> frozenset[int]:
        """The ranks that are started."""
        return ranks_of(self.started or f"0-{self.ranks - 1}")

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks that say that the job is about to be in its state."""
        return (*map(str, sorted(self.starts)), *self.helpers)

    @property
    def in_every_run(self) -> bool:
        """Whether it is started also without `--all`."""
        return self.live or not self.kinds

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the job that the table mentions."""
        return tuple(word[1:] for word in (*self.mentions, *self.proof) if word.startswith("@"))
