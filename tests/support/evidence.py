"""The report of a failing test: output of its processes, stacks of those that live, and the files of its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

PYSPY = Path(sys.executable).parent / "py-spy"
STACK_SECONDS = 20.0
MOST_PROCESSES, MOST_FILES = 24, 60
TAIL_CHARACTERS = 3000

_kept: list[str] = []
_watched: list[Callable[[], str]] = []


def keep(text: str) -> None:
    """Keep a report of processes that are about to be ended, in case their test fails."""
    _kept.append(text)


def take() -> str:
    """The reports that were kept since the last call."""
    text = "\n".join(_kept)
    _kept.clear()
    return text


def watch(told: Callable[[], str]) -> None:
    """Call ``told`` for its report whenever a test fails, until ``unwatch``."""
    _watched.append(told)


def unwatch(told: Callable[[], str]) -> None:
    if told in _watched:
        _watched.remove(told)


def of_watched() -> str:
    """The reports of all that are watched."""
    return "\n".join(text for told in _watched if (text := told()))


def of_processes(pids: Iterable[int]) -> str:
    """State, command and stacks of each process that lives."""
    return "\n".join(_of_process(pid) for pid in list(pids)[:MOST_PROCESSES])


def of_folder(folder: Path) -> str:
    """The files of a folder, with the end of each text file."""
    lines = []
    paths = sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    for path in paths[:MOST_FILES]:
        lines.append(f"-- {path.relative_to(folder)} {_words_of_file(path)}")
    if len(paths) > MOST_FILES:
        lines.append(f"-- and {len(paths) - MOST_FILES} more")
    return "\n".join(lines)


def living() -> list[int]:
    """Every process that this one may have started: all of its own PID namespace, otherwise its descendants."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                parents[int(name)] = int(fields[1])
    mine = {os.getpid()}
    while below := {pid for pid, parent in parents.items() if parent in mine and pid not in mine}:
        mine |= below
    if os.environ.get("BREAKRANKS_TEST_LANE"):
        mine = set(parents) - {1}
    return sorted(mine - {os.getpid()})


def _of_process(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        executable = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return f"-- pid {pid} is gone"
    words = f"-- pid {pid}, parent {fields[1]}, state {fields[0]}: {command[:300]}"
    if "python" not in os.path.basename(executable):
        return words
    try:
        done = subprocess.run(
            [str(PYSPY), "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=STACK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{words}\n   py-spy did not answer in {STACK_SECONDS:.0f} s"
    return f"{words}\n{done.stdout[-TAIL_CHARACTERS:]}{done.stderr[-500:]}"


def _words_of_file(path: Path) -> str:
    try:
        if path.is_dir() and not path.is_symlink():
            return "(folder)"
        if not path.is_file():
            return "(no plain file)"
        size = path.stat().st_size
        with open(path, "rb") as file:
            file.seek(max(0, size - TAIL_CHARACTERS))
            data = file.read()
    except OSError as error:
        return f"({error.strerror})"
    if not data or b"\0" in data or path.suffix in (".py", ".so"):
        return f"({size} bytes)"
    return f"({size} bytes)\n{data.decode(errors='replace')}"
