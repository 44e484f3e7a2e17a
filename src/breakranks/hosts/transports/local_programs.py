"""Programs of this machine that a transport needs, and queries to them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import NamedTuple

from breakranks.errors import UsageError
from breakranks.log import Log, milliseconds

_log = Log("hosts")


class ProgramOutput(NamedTuple):
    """Exit status and output of a program."""

    status: int
    out: str
    err: str


def need(tool: str, remedy: str) -> str:
    """Return the path of a program; raise UsageError with the remedy if it is not installed."""
    path = shutil.which(tool)
    if path is None:
        raise UsageError(f"{tool} is not on this machine (PATH is {os.environ.get('PATH', 'not set')})", remedy)
    return path


def ask(argv: Sequence[str], deadline: float, remedy: str) -> ProgramOutput:
    """Run a program that answers at once; raise UsageError if it is not installed or does not end in time."""
    need(argv[0], remedy)
    began = time.monotonic()
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        _log.info("ran, killed at its deadline", argv=argv, ms=milliseconds(began))
        text = error.stderr or b""
        lines = (text if isinstance(text, str) else text.decode("utf-8", "replace")).strip().splitlines()
        raise UsageError(
            f"{argv[0]} did not answer within {deadline:g} s" + (f": {lines[-1][:200]}" if lines else ""), remedy
        ) from error
    except OSError as error:
        raise UsageError(f"{argv[0]} cannot be started: {error.strerror}", remedy) from error
    _log.info("ran", argv=argv, status=done.returncode, ms=milliseconds(began))
    return ProgramOutput(done.returncode, done.stdout, done.stderr)


def without(prefixes: Sequence[str], keep: Sequence[str] = ()) -> tuple[str, ...]:
    """Return words that start a command without the variables of a job that breakranks itself runs in.

    A launcher would take them for options. Both arguments are prefixes of names. ``env`` execs the command, so it stays
    the process that was started.
    """
    dropped, kept = tuple(prefixes), tuple(keep)
    names = [name for name in sorted(os.environ) if name.startswith(dropped) and not name.startswith(kept)]
    return ("env", *(part for name in names for part in ("-u", name))) if names else ()


def spaced(words: Sequence[str], tool: str) -> str:
    """Return options of ssh as one text, for a program that splits them at spaces and knows no quotes."""
    for word in words:
        if not word or any(letter.isspace() for letter in word):
            raise UsageError(
                f"{tool} cannot pass ssh an option with a space in it: {word!r}",
                "Put it into a file without spaces in its path, and use --ssh-config FILE.",
            )
    return " ".join(words)
