"""Python stacks of many processes at once: a sweep of py-spy, in parallel, with a deadline.

py-spy is started with ``posix_spawn`` and writes to an anonymous memory file: no pipe to drain, no
module of ours to import before the first stack is on its way.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from breakranks.errors import BreakranksError
from breakranks.observe import hints, permissions
from breakranks.snapshot.model import Frame, Problem

_DEADLINE = 5.0


class PythonThread(NamedTuple):
    tid: int
    name: str
    gil: bool
    frames: tuple[Frame, ...]
    hints: dict[str, str]


class PythonStacks(NamedTuple):
    threads: tuple[PythonThread, ...]
    problem: Problem | None = None


class _Running(NamedTuple):
    target: int
    child: int
    output: int
    errors: int


def py_spy() -> str:
    """Where py-spy is: beside our interpreter, where pip put it, or in the PATH."""
    for folder in (os.path.dirname(sys.executable), *os.environ.get("PATH", "").split(os.pathsep)):
        path = os.path.join(folder, "py-spy")
        if os.access(path, os.X_OK):
            return path
    raise BreakranksError("py-spy is not installed", "pip install py-spy, in the environment of breakranks.")


def sweep(
    pids: Iterable[int],
    *,
    gently: Callable[[int], bool] = lambda pid: False,
    locals: bool = True,
    deadline: float = _DEADLINE,
) -> dict[int, PythonStacks]:
    """The Python stacks of all these processes.

    As many at a time as there are CPUs: more would only make each pause longer. A process for which
    ``gently`` holds (stopped, uninterruptible) is read without being paused, since it could not answer.
    Every process has an entry in the answer; what could not be read says why.
    """
    tool = py_spy()
    waiting = list(dict.fromkeys(pids))[::-1]
    running: list[_Running] = []
    found: dict[int, PythonStacks] = {}
    at_once = max(2, os.cpu_count() or 2)
    until = time.monotonic() + deadline * (1 + len(waiting) // at_once)
    ends: dict[int, float] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                pid = waiting.pop()
                started = _start(tool, pid, gently(pid), locals)
                running.append(started)
                ends[started.child] = min(until, time.monotonic() + deadline)
            still = []
            for one in running:
                done, _ = os.waitpid(one.child, os.WNOHANG)
                if not done and time.monotonic() > ends[one.child]:
                    os.kill(one.child, signal.SIGKILL)
                    os.waitpid(one.child, 0)
                    _close(one)
                    found[one.target] = PythonStacks((), permissions.late(one.target, deadline))
                elif done:
                    found[one.target] = _collect(one)
                else:
                    still.append(one)
            if len(still) == len(running):
                time.sleep(0.001)
            running = still
    finally:
        for one in running:
            os.kill(one.child, signal.SIGKILL)
            os.waitpid(one.child, 0)
            _close(one)
    return found


def _start(tool: str, pid: int, gently: bool, with_locals: bool) -> _Running:
    output = os.memfd_create("stacks")
    errors = os.memfd_create("errors")
    command = [tool, "dump", "--json", "--pid", str(pid)]
    if with_locals:
        # Twice: paths of more than 128 characters are wanted whole.
        command.append("-ll")
    if gently:
        command.append("--nonblocking")
    child = os.posix_spawn(
        tool,
        command,
        {**os.environ, "RUST_BACKTRACE": "0"},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, errors, 2),
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        ],
        # A group of its own: Ctrl-Z at the terminal must not stop it while it holds a rank.
        setpgroup=0,
    )
    return _Running(pid, child, output, errors)


def _close(one: _Running) -> None:
    os.close(one.output)
    os.close(one.errors)


def _collect(one: _Running) -> PythonStacks:
    text, errors = _contents(one.output), _contents(one.errors)
    _close(one)
    if not text.strip():
        return PythonStacks((), permissions.refused(one.target, errors.decode(errors="replace")))
    try:
        return PythonStacks(parse(text))
    except (ValueError, KeyError, TypeError) as error:
        return PythonStacks(
            (), Problem(f"py-spy's answer for process {one.target} cannot be read: {error}", "Update py-spy.")
        )


def _contents(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)


def parse(text: bytes) -> tuple[PythonThread, ...]:
    """py-spy's JSON to threads; frames outermost first, functions by their plain name."""
    import msgspec

    threads = []
    for thread in msgspec.json.decode(text):
        frames = []
        kept: dict[str, str] = {}
        for frame in reversed(thread["frames"]):
            function = plain_name(frame["name"])
            file = frame["filename"]
            frames.append(Frame(function, file, frame["line"]))
            for local in frame.get("locals") or ():
                value = hints.keep(function, file, local["name"], local.get("repr") or "")
                if value is not None:
                    kept[f"{function}.{local['name']}"] = value
        threads.append(
            PythonThread(
                thread.get("os_thread_id") or 0,
                thread.get("thread_name") or "",
                bool(thread["owns_gil"]),
                tuple(frames),
                kept,
            )
        )
    return tuple(threads)


def plain_name(name: str) -> str:
    """``Trainer.fit.<locals>.step`` is ``step``: Python before 3.11 knows no more, and the file follows."""
    return name.rsplit(".", 1)[-1]
