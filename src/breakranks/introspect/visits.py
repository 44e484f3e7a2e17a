"""What the processes of this host know themselves: flight recorders, owners of locks, steps. One visit for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from breakranks.inject import mailbox
from breakranks.inject.inject_errors import InjectError
from breakranks.inject.run_in_process import ask_many
from breakranks.introspect import answers
from breakranks.introspect.questions import SeenThread, SourceCache, merged, questions
from breakranks.observe.recorder.dump_parse import Dump
from breakranks.observe.recorder.live_recorder import read_answer
from breakranks.observe.recorder.safe_unpickle import DumpError
from breakranks.observe.watchdog import Watchdog
from breakranks.rankset import RankSet
from breakranks.snapshot.introspection import Introspection
from breakranks.snapshot.merge_recorders import RecorderMerger, rebuild
from breakranks.snapshot.model import Problem, StackTable
from breakranks.snapshot.recorder_tables import Group, Operation, Recorder

DEADLINE_SECONDS = 3.0
_LIBRARY = b"libtorch_python"


def has_torch(pid: int) -> bool:
    """Whether a process has loaded the library that holds the recorder."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return _LIBRARY in maps.read()
    except OSError:
        return False


class VisitResult(NamedTuple):
    """What one process said. ``dump`` None: it has no torch. ``problem``: why it could not be asked at all."""

    dump: Dump | Problem | None = None
    inside: Introspection | None = None
    problem: Problem | None = None


class SeenProcess(NamedTuple):
    """A process as it was seen from outside, a moment ago."""

    started: float
    threads: tuple[SeenThread, ...]


def visit(
    seen: Mapping[int, SeenProcess], gil_held: Mapping[int, str], dog: Watchdog | None = None, *, flight: bool = True
) -> dict[int, VisitResult]:
    """Each process's flight recorder, if it has torch, and what else only it knows. One of which nothing is to be
    asked is left alone.

    ``gil_held`` names the thread that keeps the GIL in C, for those where one does: they are not asked.
    """
    library = SourceCache()
    asked = {pid: questions(library, pid, one.started, one.threads) for pid, one in seen.items()}
    with_torch = {pid for pid in seen if flight and has_torch(pid)}
    pids = [pid for pid in seen if pid in with_torch or asked[pid].asked]
    if not pids:
        return {}

    # One question for all: ranks run the same files, and what is not asked of a frame costs nothing.
    arguments = {"asked": merged(asked.values()), "flight": mailbox.payload("flight_recorder") if with_torch else ""}
    found: dict[int, VisitResult] = {}
    for pid, answer in ask_many(
        pids, "frame_values", arguments, deadline=DEADLINE_SECONDS, gil_held=gil_held, dog=dog
    ).items():
        if isinstance(answer, InjectError):
            found[pid] = _refused(pid, pid in with_torch, answer)
            continue
        try:
            said = answers.read(answer)
        except ValueError as error:
            what = f"what process {pid} said of itself is not understood ({error})"
            found[pid] = VisitResult(problem=Problem(what))
            continue
        dump = _dump(pid, said) if pid in with_torch else None
        found[pid] = VisitResult(dump, answers.inside(said, asked[pid], seen[pid].threads, pid))
    return found


def _refused(pid: int, torch: bool, error: InjectError) -> VisitResult:
    what = "the recorder of" if torch else "what only the inside knows (owners of locks, steps) of"
    problem = Problem(f"{what} process {pid} cannot be read: {error.message}", error.help)
    return VisitResult(problem, problem=None) if torch else VisitResult(problem=problem)


def _dump(pid: int, said: answers.ProcessAnswer) -> Dump | Problem:
    if not said.flight:
        return Problem(f"the recorder of process {pid} cannot be read: {said.error or 'it said nothing'}")
    try:
        return read_answer(said.flight)
    except DumpError as error:
        return Problem(f"the recorder of process {pid} {error.message}", error.help)


def awaited_workers(found: Mapping[int, VisitResult]) -> list[int]:
    """The data loaders' workers whose batch a process waits for."""
    loaders = [one.inside.loader for one in found.values() if one.inside is not None]
    return [one.pid for one in loaders if one is not None and one.pid]


def join(
    dumps: Mapping[int, Dump], stacks: StackTable, world: RankSet
) -> tuple[dict[int, Recorder], tuple[Group, ...], tuple[Operation, ...]]:
    """The recorders by rank, with the tables that their rows are of."""
    joiner = RecorderMerger(stacks)
    recorders = {
        rank: joiner.add(one.recorder, one.table.operations, one.table.groups, one.stacks.frames, one.stacks.stacks)
        for rank, one in dumps.items()
    }
    groups, recorders = rebuild(joiner.table.groups, recorders, world)
    return recorders, groups, tuple(joiner.table.operations)
