"""Programs of a few lines, run by a Python of one's choice."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from support.processes import Processes


@contextlib.contextmanager
def python(
    code: str, *arguments: str, executable: str = sys.executable, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[Any]]:
    """A Python process that runs ``code`` and has printed a line by the time it is given."""
    with Processes() as processes:
        process = processes.start(
            [executable, "-u", "-c", code, *arguments], env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline()
        try:
            yield process
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
    process.stdout.close()
