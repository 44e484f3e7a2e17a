"""Many stacks folded into one prefix tree whose branches carry rank sets.

Ranks are grouped by their row in ``Snapshot.stacks`` first, as integers, and each different stack is inserted once. So
100,000 ranks in 300 classes cost one pass over the ranks and 300 insertions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from breakranks.rankset import RankSet
from breakranks.snapshot.debugger_threads import cut_agent, is_agent_thread
from breakranks.snapshot.model import Frame, Sample, Snapshot, Thread

_NO_FRAME = Frame("", "", 0)

# Frames that only lead to the frame that matters: function → file. The innermost frame of a stack is never cut, so a
# rank that is blocked in one of these is still shown there.
_BOILERPLATE: dict[str, tuple[str, ...]] = {
    "_run_module_as_main": ("runpy>", "runpy.py"),
    "_run_code": ("runpy>", "runpy.py"),
    "_run_module_code": ("runpy>", "runpy.py"),
    "run_path": ("runpy>", "runpy.py"),
    "run_module": ("runpy>", "runpy.py"),
    "_call_with_frames_removed": ("importlib._bootstrap>",),
    "_find_and_load_unlocked": ("importlib._bootstrap>",),
    "_load_unlocked": ("importlib._bootstrap>",),
    "_handle_fromlist": ("importlib._bootstrap>",),
    "exec_module": ("importlib._bootstrap_external>",),
    "_bootstrap": ("/threading.py", "/multiprocessing/process.py"),
    "_bootstrap_inner": ("/threading.py",),
    "run": ("/threading.py", "/multiprocessing/process.py", "/concurrent/futures/thread.py"),
    "_worker": ("/concurrent/futures/thread.py",),
    "spawn_main": ("/multiprocessing/spawn.py",),
    "_main": ("/multiprocessing/spawn.py", "/multiprocessing/forkserver.py"),
    "start": ("/multiprocessing/process.py",),
    "_Popen": ("/multiprocessing/context.py",),
    "__init__": ("/multiprocessing/popen_fork.py", "/multiprocessing/popen_spawn_posix.py"),
    "_launch": ("/multiprocessing/popen_fork.py", "/multiprocessing/popen_spawn_posix.py"),
    "inner": ("/contextlib.py", "/torch/_dynamo/eval_frame.py"),
    "_wrap": ("/torch/multiprocessing/spawn.py",),
    "wrapper": (
        "/torch/distributed/c10d_logger.py",
        "/torch/distributed/elastic/multiprocessing/errors/__init__.py",
        "/torch/optim/optimizer.py",
        "/torch/optim/lr_scheduler.py",
    ),
    "_wrapped_call_impl": ("/torch/nn/modules/module.py",),
    "_call_impl": ("/torch/nn/modules/module.py",),
    "decorate_context": ("/torch/utils/_contextlib.py",),
    "decorate_autocast": ("/torch/amp/autocast_mode.py",),
    "decorate_fwd": ("/torch/amp/autocast_mode.py",),
    "_use_grad": ("/torch/optim/optimizer.py",),
    "_fn": ("/torch/_dynamo/eval_frame.py",),
    "wrapped_fn": ("/deepspeed/utils/nvtx.py",),
    "log_wrapper": ("/deepspeed/comm/comm.py",),
    "_call_and_handle_interrupt": ("/trainer/call.py",),
}

# C frames between Python and the function that it called, and those that started the thread.
_GLUE = (
    r"_?PyObject_|_?PyEval_|_?PyVectorcall_|_?PyFunction_|_?PyCFunction_|_?PyRun_|Py_(?:BytesMain|RunMain)"
    r"|object_vacall|cfunction_|method_vectorcall|slot_tp_|builtin_exec|pymain_|run_(?:mod|eval_code_obj)"
    r"|type_call|(?:void )?pybind11::|std::_?_?(?:invoke|function)|THPVariable_\w*dispatch"
    r"|(?:_start|main|__libc_start\w*|start_thread|_*clone3?|thread_run|pythread_wrapper)\Z"
)


class StackNode:
    """One frame of the tree. ``ranks`` pass through it; ``ends`` have it as their innermost frame."""

    __slots__ = ("_below", "ends", "frame", "ranks")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.ranks = RankSet()
        self.ends = RankSet()
        self._below: dict[Frame, StackNode] = {}

    @property
    def children(self) -> list[StackNode]:
        """Return the branches in an order that depends only on the snapshot: by lowest rank, then by frame."""
        if len(self._below) < 2:
            return list(self._below.values())
        return sorted(self._below.values(), key=_order)

    def add(self, frames: Iterable[Frame], ranks: RankSet) -> None:
        """Insert one stack, outermost frame first, below this node."""
        node = self
        node.ranks |= ranks
        for frame in frames:
            below = node._below.get(frame)
            if below is None:
                below = node._below[frame] = StackNode(frame)
            node = below
            node.ranks |= ranks
        node.ends |= ranks

    def walk(self) -> Iterator[tuple[int, StackNode]]:
        """Yield every node below this one with its depth, parents first, without recursion."""
        left = [(0, child) for child in reversed(self.children)]
        while left:
            depth, node = left.pop()
            yield depth, node
            left.extend((depth + 1, child) for child in reversed(node.children))

    def __repr__(self) -> str:
        return f"Node({self.frame.function or 'root'}, {str(self.ranks)!r}, {len(self._below)} below)"


def _order(node: StackNode) -> tuple[int, str, str, int, bool]:
    frame = node.frame
    return (node.ranks.first if node.ranks else -1, frame.function, frame.file, frame.line, frame.native)


class ThreadTree:
    """The folded stacks of the threads with one name: ``pt_autograd_#`` represents all of them."""

    __slots__ = ("count", "name", "root")

    def __init__(self, name: str, root: StackNode, count: int) -> None:
        self.name = name
        self.root = root
        self.count = count


def fold(
    snapshot: Snapshot,
    *,
    ranks: RankSet | None = None,
    native: bool = False,
    full: bool = False,
    sample: int = -1,
) -> StackNode:
    """Return the stacks of the main threads as one tree. Ranks without a stack end at the root.

    ``ranks`` limits it, ``native`` adds the C frames, ``full`` cuts nothing, ``sample`` chooses the sample.
    """
    root = StackNode(_NO_FRAME)
    for row, found in classes(snapshot, ranks=ranks, native=native, sample=sample):
        root.add(frames_of(snapshot, row, full=full), found)
    return root


def classes(
    snapshot: Snapshot, *, ranks: RankSet | None = None, native: bool = False, sample: int = -1
) -> list[tuple[int, RankSet]]:
    """Return the ranks whose main threads have the same stack, largest class first."""
    rows: dict[int, list[int]] = {}
    for rank in snapshot.ranks:
        if ranks is not None and rank.rank not in ranks:
            continue
        main = _main_thread(rank.process.samples, sample)
        row = 0 if main is None else _row(main, native)
        rows.setdefault(row, []).append(rank.rank)
    found = [(row, RankSet(members)) for row, members in rows.items()]
    found.sort(key=lambda item: (-len(item[1]), item[1].first, item[0]))
    return found


def fold_threads(
    snapshot: Snapshot,
    *,
    ranks: RankSet | None = None,
    native: bool = False,
    full: bool = False,
    sample: int = -1,
) -> list[ThreadTree]:
    """Return one tree per thread name: the main thread first, then by name. Threads that are unknown to Python have
    only C frames, and are included with ``native``; those of breakranks itself with ``full``."""
    rows: dict[str, dict[int, list[int]]] = {}
    counts: dict[str, int] = {}
    spelled: dict[str, set[str]] = {}
    labels: dict[str, str] = {}
    for rank in snapshot.ranks:
        if ranks is not None and rank.rank not in ranks:
            continue
        samples = rank.process.samples
        threads = samples[sample].threads if -len(samples) <= sample < len(samples) else ()
        for index, thread in enumerate(threads):
            if not (thread.python or (native and thread.native)):
                continue
            if index and not full and is_agent_thread(snapshot, thread):
                continue
            label = labels.get(thread.name)
            if label is None:
                label = labels[thread.name] = _label(thread.name)
            if index == 0:
                label = ""
            rows.setdefault(label, {}).setdefault(_row(thread, native), []).append(rank.rank)
            counts[label] = counts.get(label, 0) + 1
            spelled.setdefault(label, set()).add(thread.name)
    trees = []
    for label in sorted(rows):
        root = StackNode(_NO_FRAME)
        for row, members in rows[label].items():
            root.add(frames_of(snapshot, row, full=full), RankSet(members))
        only = next(iter(spelled[label])) if len(spelled[label]) == 1 else label
        trees.append(ThreadTree(only if label else "main thread", root, counts[label]))
    return trees


def frames_of(snapshot: Snapshot, row: int, *, full: bool = False) -> tuple[Frame, ...]:
    """Return the frames of a class, outermost first."""
    frames = snapshot.stack(row)
    return frames if full else cut(frames)


def cut(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames without boilerplate of the interpreter and of libraries, and without those of breakranks. The
    innermost of the others always stays.

    >>> cut((Frame("_run_code", "<frozen runpy>", 88), Frame("main", "train.py", 3)))
    (Frame(function='main', file='train.py', line=3, native=False),)
    """
    if not frames:
        return frames
    frames = cut_agent(frames)
    kept = []
    last = len(frames) - 1
    glue = True  # still in the C frames between Python and the function that it called
    for index, frame in enumerate(frames):
        if index == last:
            kept.append(frame)
        elif frame.native:
            glue = glue and re.match(_GLUE, frame.function) is not None
            if not glue:
                kept.append(frame)
        else:
            glue = True
            # ``<string>`` is also the code of ``python -c``: it is boilerplate only if it calls boilerplate.
            spawner = frame.file == "<string>" and frame.function == "<module>"
            if not boilerplate(frames[index + 1] if spawner else frame):
                kept.append(frame)
    return tuple(kept)


def boilerplate(frame: Frame) -> bool:
    """Whether a frame only leads to the one that matters."""
    where = _BOILERPLATE.get(frame.function)
    return where is not None and not frame.native and frame.file.endswith(where)


def _row(thread: Thread, native: bool) -> int:
    # There is no merged stack if the thread moved before its C frames were read.
    return (thread.native or thread.stack) if native else thread.stack


def _main_thread(samples: tuple[Sample, ...], sample: int) -> Thread | None:
    if not -len(samples) <= sample < len(samples):
        return None
    threads = samples[sample].threads
    return threads[0] if threads else None


def _label(name: str) -> str:
    return re.sub(r"\d+", "#", name) or "unnamed"


__all__ = ["StackNode", "ThreadTree", "boilerplate", "classes", "cut", "fold", "fold_threads", "frames_of"]
