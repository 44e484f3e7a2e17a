"""Programs that know nothing of breakranks, and the commands that go into them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.consoles import without_waits
from support.waiting import DEADLINE_SECONDS as DEADLINE
from support.waiting import wait_for

from .terminals import BREAKRANKS, HERE, Place

PROGRAM = HERE / "attach_program.py"
_untouched: dict[tuple[str, str], str] = {}  # what programs print that nobody has looked at, by mode and interpreter
BLOCKED = ("sleep", "lock", "pipe", "c_free", "c_held")  # what it can be blocked in


class Target:
    """One unprepared program that has come to its place."""

    def __init__(
        self,
        place: Place,
        mode: str,
        *,
        executable: str | None = None,
        env: Mapping[str, str] | None = None,
        program: Path = PROGRAM,
    ) -> None:
        self.place, self.mode, self._env = place, mode, env
        self.folder = place.folder / f"{mode}-{len(list(place.folder.iterdir()))}"
        self.folder.mkdir()
        self._out, self._err = self.folder / "out", self.folder / "err"
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            command = [executable or place.interpreter.path, str(program), mode, str(self.folder)]
            self.process = place.start(command, env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        self.pid = self.process.pid
        self._woken = False
        wait_for(f"{mode} to be ready", lambda: self.made("ready") or self._ended())
        if mode in BLOCKED:
            wait_for(f"{mode} to be blocked", lambda: self._blocked() or self._ended())

    def made(self, name: str) -> bool:
        return (self.folder / name).exists()

    def _blocked(self) -> bool:
        return self.state == "S" and "running" not in Path(f"/proc/{self.pid}/syscall").read_text()

    def _ended(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"it ended with {self.process.returncode}: {self._err.read_text()}")
        return False

    @property
    def name(self) -> str:
        return f"pid:{self.pid}"

    @property
    def state(self) -> str:
        return state_of(self.pid)

    def wake(self) -> None:
        """Let it go on from where it waits, to its end."""
        self._woken = True
        path = self.folder / "end"
        if path.exists():  # a pipe that it reads
            path.write_text("x")
        elif self.made("sleeps"):
            self.process.send_signal(signal.SIGUSR1)
        else:
            path.touch()

    def ours(self) -> list[str]:
        """The threads in it that are ours."""
        return threads_of(self.pid, "breakranks")

    def left(self) -> None:
        """Wait until nothing of ours is in it."""
        wait_for("our threads to have gone", lambda: not self.ours())

    def ends(self) -> str:
        """Let it end, well and in silence; gives what it printed."""
        if self.process.poll() is None and not self._woken:
            self.wake()
        try:
            status = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended in {DEADLINE:.0f} s, state {self.state}") from None
        assert (status, self._err.read_text()) == (0, "")
        return self._out.read_text()

    def untouched(self) -> str:
        """What a program like it prints that nobody has looked at; it is run once for each interpreter."""
        kind = (self.mode, self.place.interpreter.path)
        if kind not in _untouched:
            _untouched[kind] = Target(self.place, self.mode, env=self._env).ends()
        return _untouched[kind]

    def shape(self) -> dict[str, Any]:
        """What it says of itself (mode ``tells``)."""
        number = len(list(self.folder.glob("shape.[0-9]*"))) + 1
        (self.folder / "tell").touch()
        wait_for("its shape", lambda: self.made(f"shape.{number}") or self._ended())
        return dict(json.loads((self.folder / f"shape.{number}").read_text()))


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def link_of(path: str) -> str:
    """What a link of /proc points to; nothing where it was closed meanwhile."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def threads_of(pid: int, name: str) -> list[str]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/comm"):
        try:
            said = path.read_text().strip()
        except OSError:
            continue
        if said.startswith(name):
            found.append(said)
    return found


def words_of(target: Target | str, commands: Sequence[str], options: Sequence[str]) -> list[str]:
    name = target if isinstance(target, str) else target.name
    return [BREAKRANKS, "attach", name, *options, *(word for command in commands for word in ("-c", command))]


def run(
    place: Place, words: Sequence[str], status: int = 0, *, env: Mapping[str, str] | None = None, **how: Any
) -> subprocess.CompletedProcess[str]:
    """A command as scripts use it; with the exit status that it must have, and no traceback."""
    done = place.call(list(words), env, deadline=2 * DEADLINE, **how)
    assert "Traceback" not in done.stdout + done.stderr and "unexpected" not in done.stderr, done.stderr
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


def attach(place: Place, target: Target | str, *commands: str, options: Sequence[str] = (), status: int = 0) -> str:
    """What an attach with these commands shows."""
    return run(place, words_of(target, commands, options), status).stdout


def refused(place: Place, target: Target | str, *commands: str, options: Sequence[str] = (), **how: Any) -> str:
    """What it says when it cannot: on standard error, with a remedy in a line of its own."""
    said = run(place, words_of(target, commands or ("w",), options), 2, **how).stderr
    assert re.match(r"breakranks: .+\n  \S.+", said), said
    return said


def attaching(place: Place, target: Target, *commands: str, options: Sequence[str] = ()) -> subprocess.Popen[Any]:
    """The same, under way: its output can be read as it comes."""
    return place.start(
        words_of(target, commands, options),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
    )


def answers(shown: str) -> dict[str, str]:
    """What was shown after each command."""
    found: dict[str, str] = {}
    command = ""
    for line in without_waits(shown).splitlines():
        prompt = re.match(r"\[[^\]]*\] > (.*)", line)
        if prompt:
            command = prompt[1]
            found[command] = ""
        else:
            found[command] = found.get(command, "") + line + "\n"
    return {command: text.rstrip("\n") for command, text in found.items()}


def files_of(place: Place) -> list[str]:
    """What is left in the folder where agents meet."""
    return sorted(str(path.relative_to(place.run)) for path in place.run.rglob("*"))


def rss_of(pid: int) -> int:
    """Resident memory, in KiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])


def fds_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
