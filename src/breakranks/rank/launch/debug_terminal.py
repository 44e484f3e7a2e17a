"""Gives the rank that is debugged the terminal of `breakranks run` for its input and output."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import NamedTuple


class TakenTerminal(NamedTuple):
    """``in_foreground``: the kernel sends this process a signal when Ctrl-C is pressed there."""

    in_foreground: bool


def take_terminal(path: str) -> TakenTerminal | None:
    """Let the standard streams of this process be the terminal ``path``. None: it cannot be opened."""
    try:
        terminal = os.open(path, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    try:
        in_foreground = _is_in_foreground(terminal)
        if not in_foreground:
            _leave_background(terminal)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for fd in (0, 1, 2):
            os.dup2(terminal, fd)
    finally:
        if terminal > 2:
            os.close(terminal)
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = _text_stream(fd, mode, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    _restore_interrupt()
    return TakenTerminal(in_foreground)


def _is_in_foreground(terminal: int) -> bool:
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # not the terminal of this session
        return False


def _leave_background(terminal: int) -> None:
    """Leave a session in which the kernel stops a background process that reads from its terminal.

    Open MPI makes each rank the leader of a process group, and a leader cannot begin a session. So the rank joins the
    group of its parent first; in its new session it is the leader of a group of its own again.
    """
    try:
        os.tcgetpgrp(terminal)
    except OSError:
        return  # not the terminal of this session: the kernel lets it read
    try:
        if os.getpgrp() == os.getpid():
            os.setpgid(0, os.getpgid(os.getppid()))
        os.setsid()
    except OSError:
        pass


def _text_stream(fd: int, mode: str, before: object) -> io.TextIOWrapper:
    """A standard stream as Python makes it at its start. One that was made for another file may not fit."""
    raw = open(fd, f"{mode}b", -1, closefd=False)  # noqa: SIM115  # the stream closes it
    known = before if isinstance(before, io.TextIOWrapper) else None
    errors = (known.errors if known else None) or ("backslashreplace" if fd == 2 else "strict")
    encoding = known.encoding if known else "utf-8"
    stream = io.TextIOWrapper(raw, encoding=encoding, errors=errors, line_buffering=True)
    stream.mode = mode  # type: ignore[misc]
    return stream


def _restore_interrupt() -> None:
    """A process that was started in the background ignores SIGINT, and so does Python."""
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
