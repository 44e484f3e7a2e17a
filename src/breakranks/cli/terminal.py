"""The console's terminal: lines with history and completion, and Ctrl-C for the console alone."""

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
    """``opened``: the terminal is that of a rank that has opened the console. Its Ctrl-C would end the job.

    Such a terminal sends no signals while the console uses it; the console reads the key itself.
    """

    def __init__(self, *, opened: bool) -> None:
        self._opened = opened
        self._modes: Any = None
        self._history = ""
        self._ahead = ""  # typed while the console waited

    def __enter__(self) -> ConsoleTerminal:
        import readline

        self._history = _history_file()
        try:
            # append_history_file needs the file. No other user may read what is typed into a debugger.
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
            # Without signals, Ctrl-C is a key like others: it clears the line, and enters itself instead.
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
                except Exception:  # readline would swallow it, and show nothing
                    found = []
            return found[state] if state < len(found) else None

        readline.set_completer(complete)

    def line(self, prompt: str, idle: Callable[[], bool] = lambda: False) -> str | None:
        """Return what was typed, ``\\n`` for the Enter key alone, None at the end of input, "" for Ctrl-C.

        ``idle`` is called repeatedly until the first key is pressed. If it returns True, something should be shown
        first, and "" is returned.
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
        except (OSError, termios.error):  # the terminal has gone, or belongs to another process
            return None
        except KeyboardInterrupt:
            print()
            return ""

    def _first_key(self, prompt: str, idle: Callable[[], bool]) -> bool:
        """Show the prompt and wait for a key, which readline then reads; False if ``idle`` returned True."""
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
        """Append each line to the history at once: two consoles share the file, and either may be killed."""
        import readline

        if line.strip():
            readline.add_history(line)
            try:
                readline.append_history_file(1, self._history)
            except OSError:
                pass
        return line

    def pressed(self) -> bool:
        """Whether Ctrl-C was pressed in an opened terminal; in others it is a signal."""
        if not self._opened:
            return False
        self._raw()
        while select.select([0], [], [], 0)[0]:
            typed = os.read(0, 1024) or b"\x03"
            if b"\x03" in typed:
                self._ahead = ""
                return True
            self._ahead += typed.decode(errors="ignore").replace("\r", "\n")  # for the next prompt
        return False

    def _silence(self) -> None:
        """The original modes, without signals in an opened terminal."""
        self._set(0)

    def _raw(self) -> None:
        """Read single keys, and do not show them."""
        self._set(termios.ICANON | termios.ECHO)

    def _set(self, without: int) -> None:
        modes: Any = list(self._modes)
        modes[3] &= ~without
        if self._opened:
            # Disable the keys one by one: readline turns ISIG on again.
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
