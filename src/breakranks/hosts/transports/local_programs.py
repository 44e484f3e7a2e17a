"""Programs of this machine that a way needs, and short questions to them."""

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
    """What a program said before it ended."""

    status: int
    out: str
    err: str


def need(tool: str, remedy: str) -> str:
    """The path of a program; raises UsageError with the remedy where it is not here."""
    found = shutil.which(tool)
    if found is None:
        raise UsageError(f"{tool} is not on this machine (PATH is {os.environ.get('PATH', 'not set')})", remedy)
    return found


def ask(argv: Sequence[str], deadline: float, remedy: str) -> ProgramOutput:
    """Run a program that answers at once; raises UsageError where it is not here or says nothing in time."""
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
        said = (text if isinstance(text, str) else text.decode("utf-8", "replace")).strip().splitlines()
        raise UsageError(
            f"{argv[0]} did not answer within {deadline:g} s" + (f": {said[-1][:200]}" if said else ""), remedy
        ) from error
    except OSError as error:
        raise UsageError(f"{argv[0]} does not run: {error.strerror}", remedy) from error
    _log.info("ran", argv=argv, status=done.returncode, ms=milliseconds(began))
    return ProgramOutput(done.returncode, done.stdout, done.stderr)


def without(prefixes: Sequence[str], keep: Sequence[str] = ()) -> tuple[str, ...]:
    """The start of a command that runs with no variables of a job around us: a launcher would take them for options.

    Both are of how names begin. ``env`` execs what follows, so the process stays the one that was started.
    """
    drop, spare = tuple(prefixes), tuple(keep)
    names = [name for name in sorted(os.environ) if name.startswith(drop) and not name.startswith(spare)]
    return ("env", *(part for name in names for part in ("-u", name))) if names else ()


def spaced(words: Sequence[str], tool: str) -> str:
    """Options of ssh for a program that cuts them at spaces and knows no quotes."""
    for word in words:
        if not word or any(letter.isspace() for letter in word):
            raise UsageError(
                f"{tool} cannot give ssh an option with a space in it: {word!r}",
                "Put it into a file without spaces in its path, and name that with --ssh-config.",
            )
    return " ".join(words)
