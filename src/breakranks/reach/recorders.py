"""The flight recorders of the ranks of this host, asked of the processes themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from breakranks.observe.recorder.answer import read_answer
from breakranks.observe.recorder.dump import Dump
from breakranks.observe.recorder.safely import DumpError
from breakranks.rankset import RankSet
from breakranks.snapshot.joining import Joiner, rebuild
from breakranks.snapshot.model import Problem, StackTable
from breakranks.snapshot.recorder import Group, Operation, Recorder

DEADLINE = 3.0
_LIBRARY = b"libtorch_python"


def has_torch(pid: int) -> bool:
    """Whether a process has loaded the library that holds the recorder."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return _LIBRARY in maps.read()
    except OSError:
        return False


def ask(pids: Iterable[int], gil_held: Mapping[int, str]) -> dict[int, Dump | Problem]:
    """Each process's recorder, or why it cannot be had. A process without torch is left out.

    ``gil_held`` names the thread that keeps the GIL in C, for those where one does: they are not asked.
    """
    from breakranks.inside.door import ask_many
    from breakranks.inside.errors import InsideError

    found: dict[int, Dump | Problem] = {}
    free = []
    for pid in pids:
        if not has_torch(pid):
            continue
        if pid in gil_held:
            found[pid] = Problem(
                f"the recorder of process {pid} cannot be read: {gil_held[pid]} holds its GIL in C code"
            )
        else:
            free.append(pid)
    for pid, answer in ask_many(free, "flight", deadline=DEADLINE).items() if free else ():
        if isinstance(answer, InsideError):
            found[pid] = Problem(f"the recorder of process {pid} cannot be read: {answer.message}", answer.help)
            continue
        try:
            found[pid] = read_answer(answer)
        except DumpError as error:
            found[pid] = Problem(f"the recorder of process {pid} {error.message}", error.help)
    return found


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
