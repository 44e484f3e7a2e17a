"""Python stacks of many processes at once, by py-spy."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from breakranks.log import Log, milliseconds
from breakranks.observe import ptrace_permissions, safe_locals
from breakranks.observe.pyspy_run import DEADLINE_SECONDS, PySpyOutput, PySpyRun, py_spy
from breakranks.observe.sigcont_guard import Watchdog
from breakranks.snapshot.code_owner import is_own
from breakranks.snapshot.model import PROGRESS, Frame, Problem

__all__ = [
    "PythonStacks",
    "PythonThread",
    "outer_tids",
    "parse",
    "plain_name",
    "py_spy",
    "renumbered",
    "sweep",
    "thread_of",
    "threads_of",
]
_ONE_PROCESS_SECONDS = 5.0
_log = Log("observe")


class PythonThread(NamedTuple):
    """``running``: it was on a CPU, or ready for one, when its stack was read."""

    tid: int
    name: str
    gil: bool
    frames: tuple[Frame, ...]
    hints: dict[str, str]
    running: bool = False


class PythonStacks(NamedTuple):
    """``denied``: there is no permission to trace the process."""

    threads: tuple[PythonThread, ...]
    problem: Problem | None = None
    denied: bool = False


def sweep(
    pids: Iterable[int],
    *,
    gently: Callable[[int], bool] = lambda pid: False,
    locals: bool = True,
    deadline: float = DEADLINE_SECONDS,
) -> dict[int, PythonStacks]:
    """Return the Python stacks of all these processes, each with the problem that prevented reading it, if any.

    A process for which ``gently`` holds (stopped, uninterruptible) is read without being paused, since it cannot be
    paused.
    """
    run = PySpyRun(pids, gently=gently, locals=locals, deadline=deadline)
    found = {answer.pid: _stacks(answer) for answer in run.answers()}  # each is parsed while the next py-spy runs
    for pid, stacks in found.items():
        if stacks.problem is not None:
            _log.info("Python stack refused", pid=pid, why=stacks.problem.what)
        else:
            _log.debug("Python stack read", pid=pid, threads=len(stacks.threads))
    return found


def _stacks(answer: PySpyOutput) -> PythonStacks:
    if answer.late:
        return PythonStacks((), ptrace_permissions.late(answer.pid, answer.late))
    if not answer.text.strip():
        denied = ptrace_permissions.is_denial(answer.errors)
        return PythonStacks((), ptrace_permissions.refused(answer.pid, answer.errors), denied=denied)
    try:
        return PythonStacks(renumbered(answer.pid, parse(answer.text)))
    except (ValueError, KeyError, TypeError) as error:
        return PythonStacks(
            (), Problem(f"the output of py-spy for process {answer.pid} is invalid: {error}", "Update py-spy.")
        )


def renumbered(pid: int, threads: tuple[PythonThread, ...]) -> tuple[PythonThread, ...]:
    """Translate thread ids into this PID namespace: those of the target may be in another."""
    if not threads or any(thread.tid == pid for thread in threads):
        return threads
    outer = outer_tids(pid)
    return tuple(thread._replace(tid=outer.get(thread.tid, thread.tid)) for thread in threads)


def outer_tids(pid: int) -> dict[int, int]:
    """Return the ids of the threads of a process in this PID namespace, by those that it has in its own."""
    found = {}
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/status") as file:
                numbers = next((line.split()[1:] for line in file if line.startswith("NSpid:")), [tid])
            found[int(numbers[-1])] = int(tid)
    except OSError:  # a thread or the process has just ended
        pass
    return found


def parse(text: bytes) -> tuple[PythonThread, ...]:
    """Convert the JSON of py-spy to threads: frames outermost first, functions by their plain name."""
    return tuple(map(thread_of, json.loads(text)))


def thread_of(thread: Mapping[str, Any]) -> PythonThread:
    """Convert one thread as py-spy reports it."""
    frames = []
    kept: dict[str, str] = {}
    for frame in reversed(thread["frames"]):
        function = plain_name(frame["name"])
        file = frame["filename"]
        frames.append(Frame(function, file, frame["line"]))
        variables = frame.get("locals") or ()
        for local in variables:
            value = safe_locals.keep(function, file, local["name"], local.get("repr") or "")
            if value is not None:
                kept[f"{function}.{local['name']}"] = value
        if frame.get("locals") is not None and is_own(file):
            kept[f"{function}.{PROGRESS}"] = safe_locals.progress([local.get("repr") or "" for local in variables])
    return PythonThread(
        tid=thread.get("os_thread_id") or 0,
        name=thread.get("thread_name") or "",
        gil=bool(thread["owns_gil"]),
        frames=tuple(frames),
        hints=kept,
        running=bool(thread.get("active")),
    )


def plain_name(name: str) -> str:
    """``step`` for ``Trainer.fit.<locals>.step``: Python before 3.11 has only this name, and the file is shown too."""
    return name.rsplit(".", 1)[-1]


def threads_of(pid: int) -> Sequence[Mapping[str, Any]] | None:
    """Return the threads of one process as py-spy reports them, or None.

    Only the locals of a frame contain the number that ``torch.multiprocessing.spawn`` gives to a rank.
    """
    with Watchdog() as dog:
        dog.guard(pid)
        began = time.monotonic()
        command = [py_spy(), "dump", "--json", "--locals", "--pid", str(pid)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_ONE_PROCESS_SECONDS,
                check=False,
            )
            _log.debug("ran", argv=command, status=done.returncode, bytes=len(done.stdout), ms=milliseconds(began))
            threads: list[dict[str, Any]] = json.loads(done.stdout or b"[]")
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            _log.info("Python stack refused", pid=pid, why=error, ms=milliseconds(began))
            return None
    return threads
