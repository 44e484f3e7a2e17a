"""The console's terminal: a line with history and completion, and Ctrl-C that is meant for us."""

from __future__ import annotations

import os
import select
import sys
import termios
from collections.abc import Callable
from types import TracebackType
from typing import Any

_MAX_HISTORY_LINES = 5000


class ConsoleTerminal:
    """``opened``: a rank has opened us in its own terminal, whose Ctrl-C would reach the launcher and end the job.

    There the terminal makes no signals while we are at it, and we read the key ourselves.
    """

    def __init__(self, *, opened: bool) -> None:
        self._opened = opened
        self._modes: Any = None
        self._history = ""
        self._ahead = ""  # typed while we waited

    def __enter__(self) -> ConsoleTerminal:
        import readline

        self._history = _history_file()
        try:
            # append_history_file wants it to be there; what is typed into a debugger is nobody else's to read.
            os.close(os.open(self._history, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.chmod(self._history, 0o600)
            readline.read_history_file(self._history)
        except (OSError, ValueError):
            pass
        readline.set_history_length(_MAX_HISTORY_LINES)
        readline.set_auto_history(False)
        readline.parse_and_bind("tab: complete")
        readline.set_completer_delims(" \t\n,;()[]{}=+-*/%<>!&|^~")
        self._modes = termios.tcgetattr(0)
        if self._opened:
            self._silence()
            # Without signals Ctrl-C is a key like others: it throws the line away, and enters itself instead.
            readline.parse_and_bind('"\\C-c": "\\C-a\\C-k\\C-v\\C-c\\C-m"')
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import readline

        readline.set_startup_hook(None)
        try:
            termios.tcsetattr(0, termios.TCSADRAIN, self._modes)
        except termios.error:
            pass

    def completing(self, words: Callable[[str], list[str]]) -> None:
        import readline

        found: list[str] = []

        def complete(text: str, state: int) -> str | None:
            nonlocal found
            if state == 0:
                try:
                    found = words(text)
                except Exception:  # readline would swallow it, and show nothing either way
                    found = []
            return found[state] if state < len(found) else None

        readline.set_completer(complete)

    def line(self, prompt: str, idle: Callable[[], bool] = lambda: False) -> str | None:
        """What was typed, ``\\n`` for the Enter key alone; None at the end of input. Ctrl-C gives an empty line.

        Until the first key is pressed ``idle`` is asked again and again; if it is true, something has happened that
        should be seen first: an empty line comes back.
        """
        import readline

        typed, enter, self._ahead = self._ahead.partition("\n")
        if enter:
            print(f"{prompt}{typed}", flush=True)
            return self._remember(typed)
        try:
            if not typed and not self._first_key(prompt, idle):
                return ""
            self._silence()
            readline.set_startup_hook(lambda: readline.insert_text(typed))
            line = input(prompt)
            return "" if line.endswith("\x03") else self._remember(line) or "\n"
        except EOFError:
            print()
            return None
        except (OSError, termios.error):  # the terminal has gone, or is another's by now
            return None
        except KeyboardInterrupt:
            print()
            return ""

    def _first_key(self, prompt: str, idle: Callable[[], bool]) -> bool:
        """Show the prompt and wait for a key, which readline then reads; False if it is idle's turn."""
        sys.stdout.write(prompt)
        sys.stdout.flush()
        self._raw()
        while not select.select([0], [], [], 0.05)[0]:
            if idle():
                sys.stdout.write("\r\x1b[K")
                return False
        sys.stdout.write("\r")
        sys.stdout.flush()
        return True

    def _remember(self, line: str) -> str:
        """Each line at once: two consoles write to one file, and either may be killed."""
        import readline

        if line.strip():
            readline.add_history(line)
            try:
                readline.append_history_file(1, self._history)
            except OSError:
                pass
        return line

    def pressed(self) -> bool:
        """Whether Ctrl-C was pressed while we wait; elsewhere than in an opened terminal it is a signal."""
        if not self._opened:
            return False
        self._raw()
        while select.select([0], [], [], 0)[0]:
            typed = os.read(0, 1024) or b"\x03"
            if b"\x03" in typed:
                self._ahead = ""
                return True
            self._ahead += typed.decode(errors="ignore").replace("\r", "\n")  # it is for the next prompt
        return False

    def _silence(self) -> None:
        """As it was, but without signals where they would not be ours."""
        self._set(0)

    def _raw(self) -> None:
        """A key at a time, and not shown."""
        self._set(termios.ICANON | termios.ECHO)

    def _set(self, without: int) -> None:
        modes: Any = list(self._modes)
        modes[3] &= ~without
        if self._opened:
            # The keys that make signals, one by one: readline turns ISIG itself on again.
            keys = (termios.VINTR, termios.VQUIT, termios.VSUSP)
            modes[6] = [b"\0" if at in keys else key for at, key in enumerate(modes[6])]
        termios.tcsetattr(0, termios.TCSADRAIN, modes)


def _history_file() -> str:
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    folder = os.path.join(home, "breakranks")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        return ""
    return os.path.join(folder, "history")
