"""Ranks without torch that come to a breakpoint, started by every launcher there is: breakpoint_program.py MODE."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import breakranks
from breakranks.mindspeed import breakpoint_, clear_


def rank() -> int:
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return next(int(os.environ[name]) for name in names if name in os.environ)


def passed(what: str) -> None:
    """Say that this rank has come so far, in a file that the test looks at."""
    with open(f"{what}.{rank()}", "w"):
        pass


# ---- at a breakpoint


def step(number: int) -> float:
    loss = number * 0.5 + rank()
    breakranks.breakpoint()
    twice = loss * 2
    return round(twice, 6)


def steps() -> None:
    """With a helper, which has the environment of its rank and is none."""
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    total = 0.0
    for number in range(3):
        total += step(number)
        passed(f"step{number}")
    print(f"TOTAL {rank()} {total}", flush=True)
    helper.kill()
    helper.wait()


def mpi() -> None:
    """The same, with a communicator that every rank must take part in."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    mine = 10 ** comm.Get_rank()
    breakranks.breakpoint()
    total = comm.allreduce(mine)
    print(f"TOTAL {comm.Get_rank()} {total}", flush=True)


def builtin() -> None:
    found = 7 + rank()
    breakpoint()  # noqa: T100
    passed("builtin")
    print(f"TOTAL {rank()} {found}", flush=True)


def wait_for_word(word: str) -> None:
    """Until the test has made a file of this name."""
    while not os.path.exists(word):
        time.sleep(0.02)


def late() -> None:
    """The rank that stops comes last, so those that hold do not know yet where its words go: a while after ``come``."""
    if rank() == int(sys.argv[2]):
        wait_for_word("come")
        time.sleep(1.5)
    else:
        passed("there")
    mine = rank()
    breakranks.breakpoint(int(sys.argv[2]))
    passed("late")
    print(f"TOTAL {rank()} {mine}", flush=True)


def many() -> None:
    for number in range(int(sys.argv[2])):
        breakranks.breakpoint()
        passed(f"many{number}")


def conditions() -> None:
    seen = []
    for number in range(5):
        breakranks.breakpoint("all", when="number == 3 and rank() == 1", others="run")
        breakranks.breakpoint(1, when=lambda now=number: now >= 1, skip=1, times=1)
        breakranks.breakpoint(0, when="1 / 0")
        breakranks.breakpoint(9)
        breakranks.breakpoint("one")
        seen.append(number)
    print(f"TOTAL {rank()} {sum(seen)}", flush=True)


# ---- MindSpeed's names


def runs_on() -> None:
    mine = 100 + rank()
    breakpoint_()
    passed("runs_on")
    print(f"TOTAL {rank()} {mine}", flush=True)


def blocks() -> None:
    """All but the debugged rank wait until it says clear_."""
    mine = 200 + rank()
    breakpoint_(False)
    passed("blocks")
    if rank() == int(os.environ.get("RANK_TO_DEBUG", "0")):
        wait_for_word("clear")
        passed("clears")
        clear_()
    print(f"TOTAL {rank()} {mine}", flush=True)


def dies() -> None:
    passed("pid" + str(os.getpid()))
    breakpoint_(False) if len(sys.argv) > 2 else breakranks.breakpoint()
    passed("lives")


# ---- elsewhere than in the main thread of a rank


def work(tag: str) -> None:
    tagged = f"{tag} of {rank()}"
    breakranks.breakpoint()
    passed(f"worked-{tag}")
    sys.exit(0 if tagged == f"{tag} of {rank()}" else 3)


def child(method: str) -> None:
    process = multiprocessing.get_context(method).Process(target=work, args=(method,))
    process.start()
    process.join()
    print(f"TOTAL {rank()} {process.exitcode}", flush=True)


def thread() -> None:
    loader = threading.Thread(target=work, args=("thread",), name="loader")
    loader.start()
    loader.join()
    print(f"TOTAL {rank()} 0", flush=True)


def crash(given: int) -> None:
    inner = given + 1
    raise ValueError(f"bad {inner}")


def dead() -> None:
    """A rank crashes, and nobody catches it; the others work on, a line at a time."""
    breakranks.post_mortem()
    others = 0
    if rank() == 1:
        crash(41)
    while not os.path.exists("end"):
        time.sleep(0.02)
        others += 1
    passed("survived")


def slowly_dead() -> None:
    """The same where a rank takes its time from the crash to the prompt."""
    from breakranks.rank.pdb_registry import PdbRegistry

    mine = PdbRegistry.mine

    def slowly(registry: PdbRegistry) -> Any:
        time.sleep(5)
        return mine(registry)

    if rank() == 1:
        PdbRegistry.mine = slowly  # type: ignore[method-assign]
    dead()


def caught() -> None:
    """A rank looks at what it caught, and goes on."""
    breakranks.post_mortem()
    total = rank()
    try:
        if rank() == 1:
            crash(10)
    except ValueError:
        breakranks.post_mortem()
        total += 50
    wait_for_word("end")
    passed("survived")
    print(f"TOTAL {rank()} {total}", flush=True)


MODES: dict[str, Callable[[], None]] = {
    "steps": steps,
    "mpi": mpi,
    "builtin": builtin,
    "late": late,
    "many": many,
    "conditions": conditions,
    "runs_on": runs_on,
    "blocks": blocks,
    "dies": dies,
    "fork": lambda: child("fork"),
    "spawn": lambda: child("spawn"),
    "thread": thread,
    "dead": dead,
    "slowly_dead": slowly_dead,
    "caught": caught,
}

if __name__ == "__main__":
    MODES[sys.argv[1]]()
