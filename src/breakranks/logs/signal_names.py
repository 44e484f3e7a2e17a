"""Numbers and words of signals as logs spell them, independent of the machine that reads the log (Linux numbers)."""

from __future__ import annotations

import re

SIGNAL_NUMBERS = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGQUIT": 3,
    "SIGILL": 4,
    "SIGTRAP": 5,
    "SIGABRT": 6,
    "SIGIOT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGUSR1": 10,
    "SIGSEGV": 11,
    "SIGUSR2": 12,
    "SIGPIPE": 13,
    "SIGALRM": 14,
    "SIGTERM": 15,
    "SIGXCPU": 24,
    "SIGXFSZ": 25,
    "SIGSYS": 31,
}
# As strsignal(3), shells, Slurm and Open MPI print them.
SIGNAL_WORDS = {
    "hangup": 1,
    "interrupt": 2,
    "quit": 3,
    "illegal instruction": 4,
    "trace/breakpoint trap": 5,
    "abort": 6,
    "bus error": 7,
    "floating point exception": 8,
    "killed": 9,
    "segmentation fault": 11,
    "broken pipe": 13,
    "alarm clock": 14,
    "terminated": 15,
    "cpu time limit exceeded": 24,
    "file size limit exceeded": 25,
    "bad system call": 31,
}
_NAME = re.compile(r"SIG[A-Z0-9]+")


def signal_number(text: str) -> int:
    """The number of the signal that a text names (``SIGKILL``, ``Segmentation fault``, ``9``); 0 if it names none."""
    name = _NAME.search(text)
    if name:
        return SIGNAL_NUMBERS.get(name.group(), 0)
    words = text.strip().lower()
    if words.isdigit():
        return int(words)
    return next((number for known, number in SIGNAL_WORDS.items() if words.startswith(known)), 0)
