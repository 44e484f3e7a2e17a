"""What the processes of this host know themselves: flight recorders, owners of locks, steps. One visit for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from breakranks.observe.recorder.answer import read_answer
from breakranks.observe.recorder.dump import Dump
from breakranks.observe.recorder.safely import DumpError
from breakranks.rankset import RankSet
from breakranks.reach import answers
from breakranks.reach.questions import Library, Thread, merged, questions
from breakranks.snapshot.inside import Inside
from breakranks.snapshot.joining import Joiner, rebuild
from breakranks.snapshot.model import Problem, StackTable
from breakranks.snapshot.recorder import Group, Operation, Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from breakranks.inside.errors import InsideError
    from breakranks.observe.watchdog import Watchdog

DEADLINE = 3.0
_LIBRARY = b"libtorch_python"


def has_torch(pid: int) -> bool:
    """Whether a process has loaded the library that holds the recorder."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return _LIBRARY in maps.read()
    except OSError:
        return False


class Visited(NamedTuple):
    """What one process said. ``dump`` None: it has no torch. ``problem``: why it could not be asked at all."""

    dump: Dump | Problem | None = None
    inside: Inside | None = None
    problem: Problem | None = None


class Known(NamedTuple):
    """A process as it was seen from outside, a moment ago."""

    started: float
    threads: tuple[Thread, ...]


def visit(
    seen: Mapping[int, Known], gil_held: Mapping[int, str], dog: Watchdog | None = None, *, flight: bool = True
) -> dict[int, Visited]:
    """Each process's flight recorder, if it has torch, and what else only it knows. One of which nothing is to be
    asked is left alone.

    ``gil_held`` names the thread that keeps the GIL in C, for those where one does: they are not asked.
    """
    library = Library()
    asked = {pid: questions(library, pid, one.started, one.threads) for pid, one in seen.items()}
    with_torch = {pid for pid in seen if flight and has_torch(pid)}
    pids = [pid for pid in seen if pid in with_torch or asked[pid].asked]
    if not pids:
        return {}
    from breakranks.inside import channel
    from breakranks.inside.door import ask_many
    from breakranks.inside.errors import InsideError

    # One question for all: ranks run the same files, and what is not asked of a frame costs nothing.
    arguments = {"asked": merged(asked.values()), "flight": channel.payload("flight") if with_torch else ""}
    found: dict[int, Visited] = {}
    for pid, answer in ask_many(pids, "facts", arguments, deadline=DEADLINE, gil_held=gil_held, dog=dog).items():
        if isinstance(answer, InsideError):
            found[pid] = _refused(pid, pid in with_torch, answer)
            continue
        try:
            said = answers.read(answer)
        except ValueError as error:
            what = f"what process {pid} said of itself is not understood ({error})"
            found[pid] = Visited(problem=Problem(what))
            continue
        dump = _dump(pid, said) if pid in with_torch else None
        found[pid] = Visited(dump, answers.inside(said, asked[pid], seen[pid].threads, pid))
    return found


def _refused(pid: int, torch: bool, error: InsideError) -> Visited:
    what = "the recorder of" if torch else "what only the inside knows (owners of locks, steps) of"
    problem = Problem(f"{what} process {pid} cannot be read: {error.message}", error.help)
    return Visited(problem, problem=None) if torch else Visited(problem=problem)


def _dump(pid: int, said: answers.Answer) -> Dump | Problem:
    if not said.flight:
        return Problem(f"the recorder of process {pid} cannot be read: {said.error or 'it said nothing'}")
    try:
        return read_answer(said.flight)
    except DumpError as error:
        return Problem(f"the recorder of process {pid} {error.message}", error.help)


def awaited_workers(found: Mapping[int, Visited]) -> list[int]:
    """The data loaders' workers whose batch a process waits for."""
    loaders = [one.inside.loader for one in found.values() if one.inside is not None]
    return [one.pid for one in loaders if one is not None and one.pid]


def join(
    dumps: Mapping[int, Dump], stacks: StackTable, world: RankSet
) -> tuple[dict[int, Recorder], tuple[Group, ...], tuple[Operation, ...]]:
    """The recorders by rank, with the tables that their rows are of."""
    joiner = Joiner(stacks)
    recorders = {
        rank: joiner.add(one.recorder, one.table.operations, one.table.groups, one.stacks.frames, one.stacks.stacks)
        for rank, one in dumps.items()
    }
    groups, recorders = rebuild(joiner.table.groups, recorders, world)
    return recorders, groups, tuple(joiner.table.operations)
