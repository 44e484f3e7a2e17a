"""The console's terminal: a line with history and completion, and Ctrl-C that is meant for us."""

from __future__ import annotations

import os
import select
import sys
import termios
from collections.abc import Callable
from types import TracebackType
from typing import Any

_MOST_HISTORY = 5000


class Terminal:
    """``opened``: a rank has opened us in its own terminal, whose Ctrl-C would reach the launcher and end the job.

    There the terminal makes no signals while we are at it, and we read the key ourselves.
    """

    def __init__(self, *, opened: bool) -> None:
        self._opened = opened
        self._modes: Any = None
        self._history = ""
        self._ahead = ""  # typed while we waited

    def __enter__(self) -> Terminal:
        import readline

        self._history = _history_file()
        try:
            readline.read_history_file(self._history)
        except (OSError, ValueError):
            pass
        readline.set_history_length(_MOST_HISTORY)
        readline.parse_and_bind("tab: complete")
        readline.set_completer_delims(" \t\n,;()[]{}=+-*/%<>!&|^~")
        if self._opened:
            self._modes = termios.tcgetattr(0)
            self._silence()
            # Without signals Ctrl-C is a key like others: throw the line away.
            readline.parse_and_bind('"\\C-c": "\\C-a\\C-k\\C-m"')
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import readline

        if self._modes is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._modes)
        if self._history:
            try:
                readline.write_history_file(self._history)
            except OSError:
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

    def line(self, prompt: str) -> str | None:
        """What was typed; None at the end of input. Ctrl-C gives an empty line."""
        import readline

        if self._opened:
            self._silence()
        sys.stdout.flush()
        typed, enter, self._ahead = self._ahead.partition("\n")
        if enter:
            print(f"{prompt}{typed}", flush=True)
            return typed
        readline.set_startup_hook(lambda: readline.insert_text(typed))
        try:
            return input(prompt)
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print()
            return ""

    def pressed(self) -> bool:
        """Whether Ctrl-C was pressed while we wait; elsewhere than in an opened terminal it is a signal."""
        if not self._opened:
            return False
        modes: Any = termios.tcgetattr(0)
        modes[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG)
        termios.tcsetattr(0, termios.TCSANOW, modes)
        while select.select([0], [], [], 0)[0]:
            typed = os.read(0, 1024) or b"\x03"
            if b"\x03" in typed:
                self._ahead = ""
                return True
            self._ahead += typed.decode(errors="ignore").replace("\r", "\n")  # it is for the next prompt
        return False

    def _silence(self) -> None:
        modes: Any = list(self._modes)
        modes[3] &= ~termios.ISIG
        termios.tcsetattr(0, termios.TCSADRAIN, modes)


def _history_file() -> str:
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    folder = os.path.join(home, "breakranks")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        return ""
    return os.path.join(folder, "history")
