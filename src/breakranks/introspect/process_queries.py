"""Read what only the processes themselves know: flight recorders, lock owners, steps. One injection serves all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from breakranks.inject import mailbox
from breakranks.inject.inject_errors import GilHeld, InjectError, InjectTimeout
from breakranks.inject.run_in_process import ask_many
from breakranks.introspect import process_answers
from breakranks.introspect.interpretation import interpret
from breakranks.introspect.wanted_variables import SeenThread, SourceCache, merged, questions
from breakranks.observe.recorder.dump_parse import Dump
from breakranks.observe.recorder.live_recorder import read_answer
from breakranks.observe.recorder.safe_unpickle import DumpError
from breakranks.observe.sigcont_guard import Watchdog
from breakranks.rankset import RankSet
from breakranks.snapshot.introspection import Introspection
from breakranks.snapshot.merge_recorders import RecorderMerger, rebuild
from breakranks.snapshot.model import Problem, StackTable
from breakranks.snapshot.recorder_tables import Group, Operation, Recorder

DEADLINE_SECONDS = 3.0
_LIBRARY = b"libtorch_python"


def has_torch(pid: int) -> bool:
    """Whether a process has loaded the library that contains the flight recorder."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return _LIBRARY in maps.read()
    except OSError:
        return False


class VisitResult(NamedTuple):
    """The result for one process. ``dump`` is None without torch. ``problem``: why nothing could be read."""

    dump: Dump | Problem | None = None
    inside: Introspection | None = None
    problem: Problem | None = None


class AskMany(Protocol):
    """Runs a payload in processes, as ``inject.run_in_process.ask_many`` does."""

    def __call__(
        self,
        pids: Iterable[int],
        payload: str,
        arguments: Mapping[str, object],
        *,
        deadline: float,
        gil_held: Mapping[int, str] | None,
        dog: Watchdog | None,
    ) -> dict[int, bytes | InjectError]: ...


class SeenProcess(NamedTuple):
    """A process as it was sampled from outside, a moment ago."""

    started: float
    threads: tuple[SeenThread, ...]


def visit(
    seen: Mapping[int, SeenProcess],
    gil_held: Mapping[int, str],
    dog: Watchdog | None = None,
    *,
    flight: bool = True,
    ask: AskMany = ask_many,
) -> dict[int, VisitResult]:
    """Read the flight recorder of each process that has torch, and the variables that its stacks make worth reading.
    Processes with neither are not touched.

    ``gil_held`` names the thread that holds the GIL in C code, by process: nothing is injected into these processes.
    ``ask`` runs the payload in them.
    """
    sources = SourceCache()
    asked = {pid: questions(sources, pid, process.started, process.threads) for pid, process in seen.items()}
    with_torch = {pid for pid in seen if flight and has_torch(pid)}
    pids = [pid for pid in seen if pid in with_torch or asked[pid].asked]
    if not pids:
        return {}

    # The same request for all processes: ranks run the same files, and a frame that does not occur costs nothing.
    arguments = {"asked": merged(asked.values()), "flight": mailbox.payload("flight_recorder") if with_torch else ""}
    found: dict[int, VisitResult] = {}
    for pid, answer in ask(
        pids, "frame_values", arguments, deadline=DEADLINE_SECONDS, gil_held=gil_held, dog=dog
    ).items():
        if isinstance(answer, InjectError):
            found[pid] = _refused(pid, pid in with_torch, answer)
            continue
        try:
            parsed = process_answers.read(answer)
        except ValueError as error:
            what = f"the answer of process {pid} to the introspection is invalid ({error})"
            found[pid] = VisitResult(problem=Problem(what))
            continue
        dump = _dump(pid, parsed) if pid in with_torch else None
        # Without a thread it is no answer: an earlier one remains.
        inside = interpret(parsed, asked[pid], seen[pid].threads, pid) if parsed.threads else None
        found[pid] = VisitResult(dump, inside)
    return found


def _refused(pid: int, torch: bool, error: InjectError) -> VisitResult:
    detail = f"cannot be read: {error.message}"
    late = isinstance(error, InjectTimeout) and not isinstance(error, GilHeld)
    if torch:
        return VisitResult(_recorder_problem(pid, detail, error.help)._replace(late=late))
    return VisitResult(problem=Problem(f"lock owners and steps of process {pid} {detail}", error.help, late=late))


def _recorder_problem(pid: int, detail: str, remedy: str = "") -> Problem:
    return Problem(f"the recorder of process {pid} {detail}", remedy, recorder_pid=pid, detail=detail)


def _dump(pid: int, answer: process_answers.ProcessAnswer) -> Dump | Problem:
    if not answer.flight:
        return _recorder_problem(pid, f"cannot be read: {answer.error or 'it returned nothing'}")
    try:
        return read_answer(answer.flight)
    except DumpError as error:
        return _recorder_problem(pid, error.message, error.help)


def awaited_workers(found: Mapping[int, VisitResult]) -> list[int]:
    """The workers of data loaders whose batch a process waits for."""
    loaders = [result.inside.loader for result in found.values() if result.inside is not None]
    return [loader.pid for loader in loaders if loader is not None and loader.pid]


def join(
    dumps: Mapping[int, Dump], stacks: StackTable, world: RankSet
) -> tuple[dict[int, Recorder], tuple[Group, ...], tuple[Operation, ...]]:
    """Merge the dumps: return the recorders by rank, and the tables that their rows refer to."""
    joiner = RecorderMerger(stacks)
    recorders = {
        rank: joiner.add(
            dump.recorder, dump.table.operations, dump.table.groups, dump.stacks.frames, dump.stacks.stacks
        )
        for rank, dump in dumps.items()
    }
    groups, recorders = rebuild(joiner.table.groups, recorders, world)
    return recorders, groups, tuple(joiner.table.operations)
