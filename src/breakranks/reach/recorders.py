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

TYPE_CHECKING = False
if TYPE_CHECKING:
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


def ask(pids: Iterable[int], gil_held: Mapping[int, str], dog: Watchdog | None = None) -> dict[int, Dump | Problem]:
    """Each process's recorder, or why it cannot be had. A process without torch is left out.

    ``gil_held`` names the thread that keeps the GIL in C, for those where one does: they are not asked.
    """
    with_torch = [pid for pid in pids if has_torch(pid)]
    if not with_torch:
        return {}
    from breakranks.inside.door import ask_many
    from breakranks.inside.errors import InsideError

    found: dict[int, Dump | Problem] = {}
    for pid, answer in ask_many(with_torch, "flight", deadline=DEADLINE, gil_held=gil_held, dog=dog).items():
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
