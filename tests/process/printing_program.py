"""A launcher of plain ranks, and what these print: ``launch COUNT MODE [ARGUMENTS]`` starts COUNT ranks in a MODE."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

RANK = int(os.environ.get("RANK", "-1"))
WAIT_SECONDS = 120.0


def launch(count: str, *words: str) -> int:
    print("launcher: starting", flush=True)
    job = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    ranks = []
    for rank in range(int(count)):
        environ = {**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen([sys.executable, __file__, *words], env=environ))
    status = max(rank.wait() for rank in ranks)
    print("launcher: the ranks have ended", flush=True)
    return status


def lines(count: str) -> int:
    """Print lines of any bytes: each begins with its number, so that a lost or torn one is seen."""
    generator = random.Random(RANK)
    noise = bytes(byte for byte in range(256) if byte not in b"\r\n")
    for number in range(int(count)):
        text = bytes(generator.choices(noise, k=generator.randrange(100)))
        os.write(1, b"%d:%d %s\n" % (RANK, number, text))
    return 0


def voices() -> int:
    """Print through everything that a process may print with."""
    print("from print")
    print("from stderr", file=sys.stderr)
    os.write(1, b"from write\n")
    ctypes.CDLL(None).puts(b"from puts")
    ctypes.CDLL(None).fflush(None)
    sys.stdout.flush()
    subprocess.run(["sh", "-c", "echo from a child"], check=True)
    return 0


def long(size: str, folder: str) -> int:
    """Print so many bytes without a newline, and wait for the file ``go``."""
    for _ in range(int(size) // 1_000_000):
        os.write(1, b"x" * 1_000_000)
    return wait(folder)


def wait(folder: str) -> int:
    """Print a line before and after the file ``go`` is there."""
    print("before", flush=True)
    Path(folder, f"ready.{RANK}").touch()
    end = time.monotonic() + WAIT_SECONDS
    while not Path(folder, "go").exists() and time.monotonic() < end:
        time.sleep(0.02)
    print("after", flush=True)
    Path(folder, f"done.{RANK}").touch()
    return 0


def interrupted(folder: str) -> int:
    """Count signals in the file ``signals``; end with status 5 when the file ``go`` is there."""

    def note(number: int, frame: object) -> None:
        with open(Path(folder, "signals"), "a") as file:
            file.write(f"{signal.Signals(number).name}\n")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, note)
    print("ready", flush=True)
    while not Path(folder, "go").exists():
        time.sleep(0.02)
    return 5


def debugged(folder: str) -> int:
    """Rank 1 reads a line until it is interrupted, and another one, and then stops in pdb."""
    rank, secret = RANK, 40 + RANK
    print(f"rank {rank} prints", flush=True)
    if rank != 1:
        return wait(folder)
    print(f"terminal: {sys.stdin.isatty()} {sys.stdout.isatty()}")
    try:
        input("name> ")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print("again", input("again> "), flush=True)
    breakpoint()  # noqa: T100
    print(f"secret {secret}", flush=True)
    return 0


MODES: dict[str, Callable[..., int]] = {
    function.__name__: function for function in (launch, lines, voices, long, wait, interrupted, debugged)
}

if __name__ == "__main__":
    sys.exit(MODES[sys.argv[1]](*sys.argv[2:]))
