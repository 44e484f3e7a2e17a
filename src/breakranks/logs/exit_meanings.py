"""What an exit code or a signal of a process means, in words."""

from __future__ import annotations

from typing import NamedTuple

from breakranks.logs.known_row import EITHER, EXCEPTION, EXIT, INFRASTRUCTURE, LAUNCHER, SIGNAL, WORKLOAD
from breakranks.logs.signal_names import SIGNAL_NUMBERS

SHELL_SIGNAL_BASE = 128  # a shell reports the signal N as exit code 128 + N
LAST_SIGNAL = 64


class ExitMeaning(NamedTuple):
    """``words`` is a phrase without a full stop. ``kind`` and ``area`` are those of the rows of known lines."""

    words: str
    kind: str
    area: str


_SIGNALS = {
    1: ExitMeaning("hangup: the terminal or the ssh session that started it was closed", SIGNAL, INFRASTRUCTURE),
    2: ExitMeaning("interrupted (Ctrl-C)", SIGNAL, EITHER),
    3: ExitMeaning("quit from the keyboard", SIGNAL, EITHER),
    4: ExitMeaning("illegal instruction: a library was built for another CPU", SIGNAL, INFRASTRUCTURE),
    5: ExitMeaning("trap: an assertion in native code", SIGNAL, WORKLOAD),
    6: ExitMeaning("aborted: native code called abort(), see its last lines", SIGNAL, WORKLOAD),
    7: ExitMeaning("bus error: likely /dev/shm or another memory-mapped file is full", SIGNAL, INFRASTRUCTURE),
    8: ExitMeaning("division by zero in native code", SIGNAL, WORKLOAD),
    # No out-of-memory kind: without the kernel's line any process may have sent it.
    9: ExitMeaning("killed, likely out of memory (the kernel's log tells)", SIGNAL, EITHER),
    11: ExitMeaning("segmentation fault in native code", SIGNAL, WORKLOAD),
    13: ExitMeaning("broken pipe: the reader of its output is gone", SIGNAL, EITHER),
    14: ExitMeaning("alarm: a timer that the program set", SIGNAL, WORKLOAD),
    15: ExitMeaning("terminated by the launcher or the scheduler", LAUNCHER, EITHER),
    24: ExitMeaning("limit of CPU time exceeded (ulimit -t)", SIGNAL, INFRASTRUCTURE),
    25: ExitMeaning("limit of file size exceeded (ulimit -f)", SIGNAL, INFRASTRUCTURE),
    31: ExitMeaning("system call refused by seccomp", SIGNAL, INFRASTRUCTURE),
}
_CODES = {
    0: ExitMeaning("ended without an error", EXIT, WORKLOAD),
    1: ExitMeaning("ended with an error, as after an uncaught exception", EXCEPTION, WORKLOAD),
    2: ExitMeaning("usage error: wrong arguments, or the script does not exist", EXIT, WORKLOAD),
    120: ExitMeaning("Python could not flush its output at exit", EXIT, EITHER),
    124: ExitMeaning("ended by timeout(1)", EXIT, EITHER),
    126: ExitMeaning("the command is not executable", EXIT, WORKLOAD),
    127: ExitMeaning("the command was not found, or a shared library of it", EXIT, WORKLOAD),
    255: ExitMeaning("exit code -1; from ssh or srun: the connection or the host failed", EXIT, EITHER),
}
_NAMES = {number: name for name, number in reversed(SIGNAL_NUMBERS.items())}


def signal_of(code: int, signal: int = 0) -> int:
    """The signal that ended a process, from its code (``-9`` of Python, ``137`` of a shell) or ``signal``; else 0."""
    if signal:
        return abs(signal)
    if -LAST_SIGNAL <= code < -1:  # -1 stands for a code that is not known
        return -code
    shell = code - SHELL_SIGNAL_BASE
    return shell if 0 < shell <= LAST_SIGNAL and (shell in _SIGNALS or shell in _NAMES) else 0


def meaning(code: int, signal: int, core: bool = False) -> ExitMeaning:
    """What the end of a process means. ``code`` -1: not known; ``signal`` 0: none; ``core``: it left a core dump."""
    number = signal_of(code, signal)
    if number:
        found = _SIGNALS.get(number) or ExitMeaning(
            f"ended by {_NAMES.get(number, f'signal {number}')}", SIGNAL, EITHER
        )
        return found._replace(words=f"{found.words} (core dumped)") if core else found
    if code == -1:
        return ExitMeaning("ended, how is not told", EXIT, EITHER)
    return _CODES.get(code) or ExitMeaning("a code that the program chose", EXIT, WORKLOAD)
