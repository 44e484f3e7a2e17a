"""Python stacks of many processes at once, as py-spy tells them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from breakranks.log import Log, milliseconds
from breakranks.observe import permissions
from breakranks.observe.pyspy_run import DEADLINE_SECONDS, PySpyOutput, PySpyRun, py_spy
from breakranks.snapshot.code_owner import is_own
from breakranks.snapshot.model import PROGRESS, Frame, Problem

__all__ = ["PythonStacks", "PythonThread", "parse", "plain_name", "py_spy", "sweep", "threads_of"]
_ONE_PROCESS_SECONDS = 5.0  # seconds for one process
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
    threads: tuple[PythonThread, ...]
    problem: Problem | None = None


def sweep(
    pids: Iterable[int],
    *,
    gently: Callable[[int], bool] = lambda pid: False,
    locals: bool = True,
    deadline: float = DEADLINE_SECONDS,
) -> dict[int, PythonStacks]:
    """The Python stacks of all these processes.

    A process for which ``gently`` holds (stopped, uninterruptible) is read without being paused, since it
    could not answer. Every process has an entry in the answer; what could not be read says why.
    """
    run = PySpyRun(pids, gently=gently, locals=locals, deadline=deadline)
    found = {answer.pid: _stacks(answer) for answer in run.answers()}  # each is read while the next is on its way
    for pid, one in found.items():
        if one.problem is not None:
            _log.info("Python stack refused", pid=pid, why=one.problem.what)
        else:
            _log.debug("Python stack read", pid=pid, threads=len(one.threads))
    return found


def _stacks(answer: PySpyOutput) -> PythonStacks:
    if answer.late:
        return PythonStacks((), permissions.late(answer.pid, answer.late))
    if not answer.text.strip():
        return PythonStacks((), permissions.refused(answer.pid, answer.errors))
    try:
        return PythonStacks(_renumbered(answer.pid, parse(answer.text)))
    except (ValueError, KeyError, TypeError) as error:
        return PythonStacks(
            (), Problem(f"py-spy's answer for process {answer.pid} cannot be read: {error}", "Update py-spy.")
        )


def _renumbered(pid: int, threads: tuple[PythonThread, ...]) -> tuple[PythonThread, ...]:
    """Threads by our numbers: a process in a container of its own knows them by others, and py-spy takes its word."""
    if not threads or any(thread.tid == pid for thread in threads):
        return threads
    ours = {}
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/status") as file:
                numbers = next((line.split()[1:] for line in file if line.startswith("NSpid:")), [tid])
            ours[int(numbers[-1])] = int(tid)
    except OSError:  # a thread, or all of it, has just ended
        pass
    return tuple(thread._replace(tid=ours.get(thread.tid, thread.tid)) for thread in threads)


def parse(text: bytes) -> tuple[PythonThread, ...]:
    """py-spy's JSON to threads; frames outermost first, functions by their plain name."""
    threads = []
    for thread in msgspec.json.decode(text):
        frames = []
        kept: dict[str, str] = {}
        for frame in reversed(thread["frames"]):
            function = plain_name(frame["name"])
            file = frame["filename"]
            frames.append(Frame(function, file, frame["line"]))
            variables = frame.get("locals") or ()
            if frame.get("locals") is not None:
                from breakranks.observe import safe_locals
            for local in variables:
                value = safe_locals.keep(function, file, local["name"], local.get("repr") or "")
                if value is not None:
                    kept[f"{function}.{local['name']}"] = value
            if frame.get("locals") is not None and is_own(file):
                kept[f"{function}.{PROGRESS}"] = safe_locals.progress([local.get("repr") or "" for local in variables])
        threads.append(
            PythonThread(
                tid=thread.get("os_thread_id") or 0,
                name=thread.get("thread_name") or "",
                gil=bool(thread["owns_gil"]),
                frames=tuple(frames),
                hints=kept,
                running=bool(thread.get("active")),
            )
        )
    return tuple(threads)


def plain_name(name: str) -> str:
    """``Trainer.fit.<locals>.step`` is ``step``: Python before 3.11 knows no more, and the file follows."""
    return name.rsplit(".", 1)[-1]


def threads_of(pid: int) -> Sequence[Mapping[str, Any]] | None:
    """One process's threads as py-spy gives them: how ``torch.multiprocessing.spawn`` numbers its ranks
    is written nowhere else."""
    import subprocess

    import msgspec

    from breakranks.observe.watchdog import Watchdog

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
            threads: list[dict[str, Any]] = msgspec.json.decode(done.stdout or b"[]")
        except (subprocess.TimeoutExpired, OSError, ValueError, msgspec.MsgspecError) as error:
            _log.info("Python stack refused", pid=pid, why=error, ms=milliseconds(began))
            return None
    return threads
