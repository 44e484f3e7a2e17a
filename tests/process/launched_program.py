"""A rank under the hook of `breakranks run`: it prints, forks, raises or waits: launched_program.py MODE [WORDS]"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK = next((os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "RANK") if name in os.environ), "-1")
WAIT_SECONDS = 120.0


def voices() -> None:
    """Print through everything that a process may print with."""
    print("from print")
    print("from stderr", file=sys.stderr)
    os.write(1, b"from write\n")
    ctypes.CDLL(None).printf(b"from printf\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    child = os.fork()
    if child == 0:
        print("from a fork")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    spawned = multiprocessing.get_context("spawn").Process(target=print, args=("from a spawned child",))
    spawned.start()
    spawned.join()
    assert spawned.exitcode == 0


def flood(count: str, length: str) -> None:
    for number in range(int(count)):
        os.write(1, b"%s:%d %s\n" % (RANK.encode(), number, b"x" * int(length)))


def wait(folder: str) -> None:
    print("before")
    Path(folder, f"ready.{RANK}").write_text(str(os.getpid()))
    until = time.monotonic() + WAIT_SECONDS
    while not Path(folder, "go").exists() and time.monotonic() < until:
        time.sleep(0.02)
    print("after")


def killed() -> None:
    for number in range(1000):
        print(f"line {number}")
    ctypes.CDLL(None).printf(b"last of C\n")
    print("last")
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    ctypes.string_at(0)


def raises() -> None:
    child = os.fork()
    if child == 0:
        raise KeyError("of a child")
    os.waitpid(child, 0)
    raise ValueError("the last words")


def child_raises() -> None:
    child = os.fork()
    if child == 0:
        raise KeyError("of a child")
    os.waitpid(child, 0)


def raises_late(folder: str) -> None:
    print("before")
    Path(folder, f"pid.{RANK}").write_text(str(os.getpid()))
    raise ValueError("the last words")


def restarted() -> None:
    """Rank 1 raises at first, when rank 0 has printed its line."""
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print("attempt", attempt)
    if attempt == "0" and RANK == "1":
        other = Path(os.environ["PYTHONPATH"].split(":")[0]).parent / "rank-0.out"
        until = time.monotonic() + WAIT_SECONDS
        while not (other.exists() and other.read_text()) and time.monotonic() < until:
            time.sleep(0.02)
        raise ValueError("restart")
    while attempt == "0":
        time.sleep(0.02)


def imports() -> None:
    import breakranks

    print("module", breakranks.__file__, [path for path in sys.path if path.endswith("startup")])
    spawned = multiprocessing.get_context("spawn").Process(target=_imports)
    spawned.start()
    spawned.join()


def _imports() -> None:
    import breakranks

    print("child", breakranks.__file__)


def threads() -> None:
    print("threads", len(os.listdir("/proc/self/task")))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        print("forked threads", len(os.listdir("/proc/self/task")))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)


def replaces() -> None:
    print("first")
    os.execv(sys.executable, [sys.executable, __file__, "raises"])


def fills(folder: str) -> None:
    """Print until the file ``go`` is there; most of it does not fit on the disk."""
    Path(folder, f"ready.{RANK}").touch()
    until = time.monotonic() + WAIT_SECONDS
    while not Path(folder, "go").exists() and time.monotonic() < until:
        print("x" * 1000)
        time.sleep(0.001)
    Path(folder, f"done.{RANK}").touch()


def terminal() -> None:
    print("terminal", [os.isatty(fd) for fd in (0, 1, 2)], sys.stdin.isatty(), sys.stdin.fileno())
    print("got", repr(input("question> ")))
    try:
        input("again> ")
    except KeyboardInterrupt:
        print("interrupted")
    value = 40 + int(RANK)
    breakpoint()  # noqa: T100
    print("value", value)


def terminal_of_rank_1() -> None:
    if RANK == "1":
        terminal()
    else:
        print("not debugged")


PRINTING = (voices, flood, wait, terminal, terminal_of_rank_1, fills)
ENDING = (killed, segfault, raises, child_raises, raises_late, restarted, replaces)
MODES = {function.__name__: function for function in (*PRINTING, *ENDING, imports, threads)}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])
