"""One job of the zoo's table, and how it is prepared."""

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
    """An empty lock file whose owner has ended."""

    def prepare(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()

    return prepare


def named_pipe(path: str) -> Callable[[Path], None]:
    """A named pipe, whose opening blocks until another process opens the other end."""
    return lambda folder: os.mkfifo(folder / path)


def c_library(folder: Path) -> None:
    """A C function that never returns."""
    source = "void solve(void) { for (volatile unsigned long step = 0;; step++) {} }"
    compiler = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "libsolver.so")]
    subprocess.run(compiler, input=source.encode(), check=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One job: how it is started, where its ranks must be blocked, and the verdict that `why` must give.

    Start. `launcher` is shell (a loop of `RANK=$r python job.py &`, the quickest), torchrun, mpirun or python (the job
    starts its ranks itself). `started` are the ranks that the loop starts; the default is all. `other` is a program
    that runs beside the job and is not a rank. `signals` are sent to the rank or helper with that mark.

    State. `stands` is the function on the stack of ranks or marked `helpers` for which the harness waits. `busy` ranks
    may use the CPU, `gone` ranks must have exited.

    Verdict. `kinds` are the accepted kinds, the best first; none means a healthy job: no verdict, exit status 0.
    `culprits` and `victims` are accepted rank sets, None accepts any; `involved` is both together. `function` is the
    accepted place. `mentions` are words that the summary must contain: `@file` stands for the content that the job
    wrote into that file, `{folder}` for its folder. `proof` are words that the evidence must contain. `sure`: the
    confidence must not be a guess. `certain`: it must be certain.

    Runs. The recording is explained in every run. `live` jobs are also started in every run: for each kind and launcher
    the quickest and clearest one, and all healthy ones. The others are started with `--all`.
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
        """The marks that the job writes when it is about to be in its state."""
        return (*map(str, sorted(self.starts)), *self.helpers)

    @property
    def in_every_run(self) -> bool:
        """Whether it is started even without `--all`."""
        return self.live or not self.kinds

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the job that the table mentions."""
        return tuple(word[1:] for word in (*self.mentions, *self.proof) if word.startswith("@"))
