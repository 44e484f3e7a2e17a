"""C frames of many processes at once, by pystack.

pystack runs in worker processes, never in this one: a target in an uninterruptible wait blocks it forever, and a worker
can be killed. A worker writes one line per process.

Run a worker by hand: ``python -m breakranks.observe.native_frames PID…``
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from breakranks.log import Log, milliseconds
from breakranks.machine_suspension import stalled
from breakranks.observe import ptrace_permissions
from breakranks.snapshot.model import Frame, Problem

_log = Log("observe")
_DEADLINE_SECONDS = 8.0
_TURN_SECONDS = 0.05
_EVAL = "_PyEval_EvalFrameDefault"
_MAX_SYMBOL_CHARACTERS = 200


class NativeThread(NamedTuple):
    """``frames``: C and Python frames merged, outermost first."""

    tid: int
    name: str
    gil: bool
    frames: tuple[Frame, ...]


class NativeStacks(NamedTuple):
    threads: tuple[NativeThread, ...]
    problem: Problem | None = None


def sweep(pids: Iterable[int], deadline: float = _DEADLINE_SECONDS) -> tuple[dict[int, NativeStacks], bool]:
    """Return the native stacks of all these processes, and whether every worker ended by itself.

    The second value is for the watchdog: a worker that was killed may have left its target stopped.
    """
    todo = list(dict.fromkeys(pids))
    found: dict[int, NativeStacks] = {}
    clean = True
    count = min(len(todo), max(2, os.cpu_count() or 2))
    queues = [todo[i::count] for i in range(count)]
    workers: list[tuple[subprocess.Popen[bytes], list[int], bytearray, float]] = []
    began = time.monotonic()

    away = 0.0  # seconds in which this process was suspended

    def start(pids: list[int]) -> None:
        command = [sys.executable, "-m", "breakranks.observe.native_frames", *map(str, pids)]
        worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        assert worker.stdout is not None
        os.set_blocking(worker.stdout.fileno(), False)
        workers.append((worker, pids, bytearray(), time.monotonic() - away + deadline))

    try:
        for queue in queues:
            start(queue)
        while workers:
            handles = [worker.stdout for worker, *_ in workers if worker.stdout is not None]
            turn_began = time.monotonic()
            select.select(handles, [], [], _TURN_SECONDS)
            away += stalled(time.monotonic() - turn_began, _TURN_SECONDS)
            for entry in list(workers):
                worker, left, buffer, until = entry
                assert worker.stdout is not None
                chunk = worker.stdout.read()
                if chunk:
                    buffer += chunk
                    *lines, rest = bytes(buffer).split(b"\n")
                    buffer[:] = rest
                    for line in lines:
                        pid, stacks = _from_line(json.loads(line))
                        found[pid] = stacks
                        left.remove(pid)
                    workers[workers.index(entry)] = (worker, left, buffer, time.monotonic() - away + deadline)
                    continue
                ended = chunk == b"" and worker.poll() is not None  # None: nothing yet, but there may be more
                if not ended and time.monotonic() - away < until:
                    continue
                workers.remove(entry)
                if not ended:
                    worker.kill()
                worker.wait()
                worker.stdout.close()
                _log.debug("ran", argv=worker.args, status=worker.returncode, ms=milliseconds(began))
                if left:
                    # The worker died or is stuck at the first process without an answer. The others get a new worker.
                    clean = False
                    stuck = left.pop(0)
                    found[stuck] = NativeStacks((), ptrace_permissions.late(stuck, deadline))
                    if left:
                        start(left)
    finally:
        for worker, *_ in workers:
            worker.kill()
            worker.wait()
            clean = False
    for pid, stacks in found.items():
        if stacks.problem is not None:
            _log.info("C frames refused", pid=pid, why=stacks.problem.what)
        else:
            _log.debug("C frames read", pid=pid, threads=len(stacks.threads))
    return found, clean


def _from_line(line: dict[str, Any]) -> tuple[int, NativeStacks]:
    if line["problem"]:
        return line["pid"], NativeStacks((), ptrace_permissions.refused(line["pid"], line["problem"]))
    threads = tuple(
        NativeThread(
            tid=thread["tid"],
            name=thread["name"],
            gil=thread["gil"],
            frames=tuple(Frame(*frame) for frame in thread["frames"]),
        )
        for thread in line["threads"]
    )
    return line["pid"], NativeStacks(threads)


def borrow(
    stacks: NativeStacks, mine: tuple[tuple[int, str], ...], theirs: tuple[tuple[int, str], ...]
) -> NativeStacks:
    """Use the stacks of another process for this one: the same threads by name and order, with other thread ids."""
    if [name for _, name in mine] == [name for _, name in theirs]:
        tids = {other: tid for (tid, _), (other, _) in zip(mine, theirs, strict=True)}
    else:
        tids = {theirs[0][0]: mine[0][0]} if mine and theirs else {}
    threads = (t._replace(tid=tids[t.tid], gil=False) for t in stacks.threads if t.tid in tids)
    return NativeStacks(tuple(threads))


def merge(native: list[Frame], python: list[Frame], entries: list[bool]) -> list[Frame]:
    """Merge two stacks: replace each run of the interpreter loop by the Python frames that it evaluates.

    ``entries[i]``: Python frame *i* began a run of the loop. Since 3.11 one run evaluates many frames. Other frames of
    the interpreter are omitted.
    """
    merged: list[Frame] = []
    waiting = list(zip(python, entries, strict=True))[::-1]
    for frame in native:
        if _EVAL in frame.function:
            first = True
            while waiting and (first or not waiting[-1][1]):
                merged.append(waiting.pop()[0])
                first = False
        elif not _is_glue(frame):
            merged.append(frame)
    merged.extend(frame for frame, _ in reversed(waiting))
    return merged


def _is_glue(frame: Frame) -> bool:
    """Whether it is a frame by which the interpreter calls C, which tells nothing about the program."""
    name = frame.function
    return name.startswith(
        ("_PyObject_", "PyObject_", "_PyEval_", "PyEval_EvalCode", "cfunction_", "method_vectorcall", "do_call",
         "_PyFunction_", "object_vacall", "slot_tp_", "vectorcall_", "_Py_", "Py_RunMain", "Py_BytesMain", "pymain_",
         "__libc_start", "_start", "run_mod", "run_eval_code", "pyrun_", "_PyRun_", "PyRun_", "PyCFunction_",
         "type_call", "_PyVectorcall", "PyVectorcall", "wrap_", "wrapper_call", "method_call", "tuple_", "pybind11::")
    )  # fmt: skip


def short_symbol(symbol: str) -> str:
    """Return a C++ name without its arguments.

    >>> short_symbol("c10d::Work::wait(std::chrono::duration<long>)")
    'c10d::Work::wait'
    """
    name = symbol.replace(" (inlined)", "")
    depth = 0
    for index, letter in enumerate(name):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif letter == "(" and depth == 0 and index and not name.startswith("(", index - 1):
            if name.startswith("(anonymous namespace)", index):
                continue
            name = name[:index]
            break
    return name[:_MAX_SYMBOL_CHARACTERS]


def _main(pids: list[int]) -> None:
    """Run the worker: write one JSON line per process, as long as the reader lives."""
    # Only the workers import pystack: it is large, and a host may not have it.
    from pystack.engine import NativeReportingMode, get_process_threads

    for pid in pids:
        if not _has_reader(1):
            return
        answer: dict[str, Any] = {"pid": pid, "threads": [], "problem": ""}
        try:
            for thread in get_process_threads(pid, native_mode=NativeReportingMode.ALL, stop_process=True):
                answer["threads"].append(_thread(thread))
        except Exception as error:
            answer["problem"] = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


def _has_reader(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, 0)  # only the event that the other end was closed
    return not poll.poll(0)


def _thread(thread: Any) -> dict[str, Any]:
    native = [
        Frame(short_symbol(frame.symbol), frame.library or "", frame.linenumber or 0, True)
        for frame in thread.native_frames
    ]
    python, entries = [], []
    for frame in thread.all_frames:
        location = frame.code.location
        python.append(Frame(frame.code.scope.rsplit(".", 1)[-1], frame.code.filename, location.lineno or 0))
        entries.append(bool(frame.is_entry))

    return {
        "tid": thread.tid,
        "name": thread.name or "",
        "gil": bool(thread.holds_the_gil),
        "frames": [(f.function, f.file, f.line, f.native) for f in merge(native, python, entries)],
    }


if __name__ == "__main__":
    _main([int(argument) for argument in sys.argv[1:]])
