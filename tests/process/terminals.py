"""A job of plain processes, and terminals with a console in them: typed at and read as by a person."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from breakranks.rankset import RankSet
from support.consoles import without_waits
from support.processes import Processes, alive, defaults_for_signals
from support.targets import SOURCE, THIS, Interpreter
from support.waiting import DEADLINE_SECONDS as DEADLINE
from support.waiting import wait_for

from .console_program import launcher_variables

HERE = Path(__file__).parent
PROGRAM = HERE / "console_program.py"
BREAKRANKS = str(Path(sys.executable).parent / "breakranks")
# Said where an answer takes long, which is right, and may be anywhere.
PROMPT = re.compile(r"(?:\A|\n|\^C)(\[[^\]\n]*\] > )\Z")
_WHOLE = 150  # a line of fewer characters fits into the terminal's, behind its prompt
CTRL_A, CTRL_C, CTRL_D, CTRL_K, UP, TAB = "\x01", "\x03", "\x04", "\x0b", "\x1b[A", "\t"
PLAIN = {"TERM": "dumb", "NO_COLOR": "1", "INPUTRC": "/dev/null", "PYTHONUNBUFFERED": "1"}


def line_of(mark: str, path: Path = PROGRAM) -> int:
    """The number of the line of the program that ends with the comment ``# mark``."""
    [found] = [at for at, line in enumerate(path.read_text().splitlines(), 1) if line.endswith(f"# {mark}")]
    return found


def source_of(mark: str, path: Path = PROGRAM) -> str:
    """That line, as it is shown."""
    return path.read_text().splitlines()[line_of(mark, path) - 1].strip()


def said_to_have_ended(shown: str) -> RankSet:
    """The ranks that a console has said to have ended, in one line or in several."""
    found = RankSet()
    for ranks in re.findall(r"ranks? (\S+) ha(?:s|ve) ended\n", shown):
        found |= RankSet.parse(ranks)
    return found


_SHOWN = 3000  # characters of a terminal's beginning, and of its end


def _ends(text: str) -> str:
    return text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]}\n… cut …\n{text[-_SHOWN:]}"


class Place(Processes):
    """A test's own folders and variables. Its programs run on one of the target interpreters."""

    folder: Path

    def __init__(self, folder: Path, interpreter: Interpreter = THIS) -> None:
        super().__init__(folder)
        self.interpreter = interpreter
        self.run = folder / "run"
        self.run.mkdir(mode=0o700)
        self._terminals: list[Terminal] = []

    def told(self) -> str:
        shown = [f"-- terminal of {one.process.args}\n{_ends(one.shown())}" for one in self._terminals]
        return "\n".join([super().told(), *shown])

    def end(self) -> None:
        super().end()
        for terminal in self._terminals:
            terminal.close()

    def environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        home = str(self.folder)
        mine = {"HOME": home, "XDG_STATE_HOME": f"{home}/state", "BREAKRANKS_RUN": str(self.run)}
        return super().environ({**PLAIN, **mine, **(more or {})})

    def agents(self) -> dict[int, int]:
        """The pids of the ranks that have come to a breakpoint."""
        found = {}
        for path in self.run.glob("*/rank-*.json"):
            try:
                entry = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            if alive(entry["pid"]) and not entry["ended"]:
                found[int(entry["rank"])] = int(entry["pid"])
        return found

    def sockets(self) -> dict[int, Path]:
        """The sockets of the ranks."""
        return {rank: next(self.run.glob(f"*/{pid}.sock")) for rank, pid in self.agents().items()}

    def job(self, size: int, mode: str, *arguments: str, env: Mapping[str, str] | None = None, **how: Any) -> Job:
        return Job(self, size, mode, arguments, env or {}, how)

    def terminal(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> Terminal:
        return Terminal(self, command, env)

    def console(self, *words: str) -> Terminal:
        """A console in a terminal of its own, at its first prompt."""
        found = self.terminal([BREAKRANKS, "console", *words])
        found.opening = found.prompt()
        return found

    def batch(self, *commands: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """A console as scripts use it."""
        words = [word for command in commands for word in ("-c", command)]
        done = self.call([BREAKRANKS, "console", *options, *words])
        done.stdout = without_waits(done.stdout)
        return done


class Job:
    """Plain processes with the variables of a launcher, each with files of its own for what it writes."""

    def __init__(
        self,
        place: Place,
        size: int,
        mode: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        how: Mapping[str, Any],
    ) -> None:
        self.place = place
        self.ranks: list[subprocess.Popen[Any]] = []
        for rank in range(size):
            with (
                open(place.folder / f"rank{rank}.out", "wb") as output,
                open(place.folder / f"rank{rank}.err", "wb") as errors,
            ):
                streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": errors, **how}
                self.ranks.append(
                    place.start(
                        [place.interpreter.path, str(PROGRAM), mode, *arguments],
                        {**launcher_variables(rank, size), "PYTHONPATH": str(SOURCE), **env},
                        **streams,
                    )
                )

    def said(self, rank: int) -> str:
        return (self.place.folder / f"rank{rank}.err").read_text(errors="replace")

    def stopped(self, count: int | None = None) -> None:
        """Wait until so many ranks are at a stop; all of them, if nothing is said."""
        wanted = len(self.ranks) if count is None else count
        wait_for(f"{wanted} stopped ranks", lambda: len(self.stops()) >= wanted)

    def stops(self) -> dict[int, Any]:
        """What is on the board of each rank that is in the debugger."""
        found = {}
        for path in self.place.run.glob("*/rank-*.json"):
            try:
                entry = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            if entry["debugging"] and alive(entry["pid"]):
                found[int(entry["rank"])] = entry
        return found

    def result(self, rank: int) -> str | None:
        path = self.place.folder / f"result.{rank}"
        return path.read_text() if path.exists() else None

    def ends(self, *, but: Sequence[int] = ()) -> None:
        """Wait until all ranks have ended, well."""
        end = time.monotonic() + DEADLINE
        for rank, process in enumerate(self.ranks):
            if rank not in but:
                try:
                    status = process.wait(max(end - time.monotonic(), 0.01))
                except subprocess.TimeoutExpired:
                    raise AssertionError(f"rank {rank} has not ended in {DEADLINE:.0f} s") from None
                assert status == 0, (rank, status, self.said(rank))


class Screen:
    """What a terminal shows of the characters that it is sent: one long page, of which only the last line changes."""

    _CONTROL = re.compile(r"\x1b\[([0-9;?]*)([a-zA-Z])|[\r\n\b\a]|[^\x1b\r\n\b\a]+|\x1b")

    def __init__(self) -> None:
        self._above = ""
        self._line = ""
        self._column = 0
        self._read = 0  # up to here it has been read
        self._rest = ""

    @property
    def text(self) -> str:
        return self._above + self._line

    @property
    def unread(self) -> str:
        return self.text[self._read :]

    def take(self, count: int) -> str:
        text = self.unread[:count]
        self._read += len(text)
        return text

    def write(self, text: str) -> None:
        text = self._rest + text
        cut = re.search(r"\x1b(\[[0-9;?]*)?\Z", text)  # half a sequence waits for its other half
        self._rest = cut[0] if cut else ""
        for found in self._CONTROL.finditer(text[: len(text) - len(self._rest)]):
            self._do(found[0], found[1], found[2])

    def _do(self, text: str, number: str | None, letter: str | None) -> None:
        if text == "\n":
            self._above += self._line + "\n"
            self._line, self._column = "", 0
        elif text == "\r":
            self._column = 0
        elif text == "\b":
            self._column = max(self._column - 1, 0)
        elif letter == "K":
            self._line = self._line[: self._column]
        elif letter == "C":
            self._column += int(number or 1)
        elif letter == "P":
            self._line = self._line[: self._column] + self._line[self._column + int(number or 1) :]
        elif letter is None and text not in "\a\x1b":
            before = self._line[: self._column].ljust(self._column)
            self._line = before + text + self._line[self._column + len(text) :]
            self._column += len(text)
        self._read = min(self._read, len(self._above) + len(self._line))


class Terminal:
    """A process with a terminal that is its own. ``seen`` is all that was ever shown there."""

    def __init__(self, place: Place, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("4H", 50, 200, 0, 0))
        self.before = termios.tcgetattr(self._slave)
        self.opening = ""
        self.at = ""
        self._screen = Screen()
        self._closed = False
        slave = self._slave

        def take_terminal() -> None:
            defaults_for_signals()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = place.start(
            command, env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=take_terminal
        )
        place._terminals.append(self)

    @property
    def seen(self) -> str:
        return self._screen.text

    def shown(self) -> str:
        """All that was ever shown there, what was not read so far too."""
        while self.read():
            pass
        return self.seen

    @property
    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    # ---- keys

    def keys(self, text: str) -> None:
        os.write(self.master, text.encode())

    def ask(self, line: str, deadline: float = DEADLINE) -> str:
        """Type a line at the prompt; gives what is shown between it and the next prompt."""
        # Before that the terminal itself would show the line, and the console again.
        wait_for("the console to read keys", lambda: not self.modes[3] & termios.ICANON)
        self.keys(line + "\r")
        if len(line) < _WHOLE:  # something may be said just then, with a prompt behind it: the line comes after that
            self.expect(re.compile(r"(?:\A|\] > )" + re.escape(line) + r"\n"), deadline)
            return without_waits(self.prompt(deadline)).strip("\n")
        return without_waits(self.prompt(deadline).removeprefix(line)).strip("\n")

    # ---- eyes

    def read(self, wait: float = 0.0) -> bool:
        """Take in what is shown; False where nothing came in time, or nobody is there any more."""
        if self._closed or not select.select([self.master], [], [], wait)[0]:
            return False
        try:
            self._screen.write(os.read(self.master, 65536).decode(errors="replace"))
        except OSError:
            return False
        return True

    def expect(self, pattern: str | re.Pattern[str], deadline: float = DEADLINE) -> str:
        """Read until ``pattern`` (plain text, or a regular expression) is there; gives all up to its end."""
        compiled = re.compile(re.escape(pattern)) if isinstance(pattern, str) else pattern
        end = time.monotonic() + deadline
        while True:
            found = compiled.search(self._screen.unread)
            if found is not None:
                return self._screen.take(found.end())
            if not self.read(0.05) and time.monotonic() > end:
                shown = self._screen.unread
                raise AssertionError(f"after {deadline:.0f} s not shown: {compiled.pattern!r} in {shown!r}")

    def prompt(self, deadline: float = DEADLINE) -> str:
        """Wait for a prompt with nothing typed at it; gives what was shown before it. ``at`` is the prompt itself."""
        end = time.monotonic() + deadline
        while True:
            unread = self._screen.unread
            found = PROMPT.search(unread)
            if found is not None and not self.read(0.02):
                self._screen.take(len(unread))
                self.at = found[1]
                return unread[: found.start(1)]
            if not self.read(0.05) and time.monotonic() > end:
                raise AssertionError(f"after {deadline:.0f} s no prompt: {unread!r}")

    def rest(self) -> str:
        """What was shown and not yet read."""
        while self.read(0.05):
            pass
        return self._screen.take(len(self._screen.unread))

    def ends(self, deadline: float = DEADLINE) -> int:
        """Wait until the process has ended; its exit status."""
        end = time.monotonic() + deadline
        while self.process.poll() is None:
            self.read(0.02)  # a full terminal would keep it
            if time.monotonic() > end:
                raise AssertionError(f"in {deadline:.0f} s not ended; shown: {self.seen[-2000:]!r}")
        while self.read(0.02):
            pass
        return int(self.process.returncode)

    def close(self) -> None:
        """Close the terminal's window: whoever is in it gets SIGHUP."""
        if not self._closed:
            self._closed = True
            os.close(self._slave)
            os.close(self.master)


def wait_until_read(pid: int) -> None:
    """Wait until a process reads its terminal.

    Python forgets a Ctrl-C that comes between the prompt of ``input`` and its read until the next key is pressed.
    """
    sleeps = Path(f"/proc/{pid}/wchan")
    reading = ("wait_woken", "n_tty", "do_se", "do_sys_p", "poll")
    wait_for(f"process {pid} to read", lambda: sleeps.read_text().startswith(reading))
