"""Ranks for the console's tests: MODE says what they do; each writes its result to result.RANK when it is through."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable

import breakranks

RANK = int(os.environ.get("RANK", "-1"))


def twice(x: float, scale: int = 2) -> float:  # def
    y = x
    y *= scale
    return y  # twice-returns


def step(i: int) -> float:  # def step
    loss = i * 0.5 + RANK
    breakranks.breakpoint()  # stop
    doubled = twice(loss)  # after
    doubled += 1  # later
    return doubled  # returns


def steps(count: str) -> float:
    """Rank 0 stops at each step, the others are held."""
    total = 0.0
    for i in range(int(count)):
        total += step(i)  # call
    return total


def steps_total(rank: int, count: int) -> float:
    return sum(2 * (i * 0.5 + rank) + 1 for i in range(count))


def everyone(count: str) -> int:
    """All ranks stop at each turn."""
    total = 0
    for i in range(int(count)):
        breakranks.breakpoint("all")  # everyone
        total += i + RANK  # counted
    return total


def apart() -> int:
    """All ranks stop at the same place, a moment apart."""
    breakranks.breakpoint("all")
    time.sleep(0.05 * RANK)
    breakranks.breakpoint("all")  # apart
    return RANK


def everyone_total(rank: int, count: int) -> int:
    return sum(i + rank for i in range(count))


def spin() -> str:
    """After a stop: rank 1 waits in C until the pipe `wake` is written to, the others in Python for the file `end`."""
    turns = 0
    breakranks.breakpoint("all")  # before
    open(f"spinning.{RANK}", "w").close()
    if RANK == 1 and os.path.exists("wake"):
        blocked()
    while not os.access("end", os.F_OK):  # spin; in C: wherever it is stopped, it is in a line of this function
        turns += 1
        time.sleep(0.001)
    breakranks.breakpoint("all")  # behind
    return "spun"


def blocked() -> None:
    handle = os.open("wake", os.O_RDWR)
    os.read(handle, 1)  # blocked
    os.close(handle)  # awake


def counted() -> str:
    """What the conditions of a breakpoint let through: a line a stop, by who calls and in which turn."""
    for i in range(6):
        breakranks.breakpoint(when=i >= 3, times=1)  # value
        breakranks.breakpoint(when=lambda i=i: i % 2 == 1, skip=1, times=1)  # function
        breakranks.breakpoint(when="i == 4")  # text
        breakranks.breakpoint(times=0)
        breakranks.breakpoint(when="unknown > 1")  # raises
        breakranks.breakpoint(ranks=99)  # nobody
        breakranks.breakpoint(ranks="junk")  # junk
        # One line, two sites: each counts for itself.
        breakranks.breakpoint(times=1, when=i == 5), breakranks.breakpoint(times=1, when=i == 5)  # both
    return "counted"


def passing() -> str:
    """Comes by a breakpoint again and again, until the file `end` is there."""
    turns = 0
    while not os.access("end", os.F_OK):
        turns += 1
        breakranks.breakpoint()  # passed
        if turns % 10 == 0:
            with open(f"turns.{RANK}.new", "w") as file:
                file.write(str(turns))
            os.replace(f"turns.{RANK}.new", f"turns.{RANK}")
        time.sleep(0.001)
    return "passed"


def chosen() -> str:
    breakranks.breakpoint()  # chosen
    return "chosen"


def printer(seed: str, lines: str) -> str:
    """Lines of random lengths, each of which says how long it is and what it is made of."""
    chance = random.Random(int(seed) * 1000 + RANK)
    for at in range(int(lines)):
        length = chance.choice([0, 1, 100, 4096, chance.randrange(20_000)])
        breakranks.print(f"{at} {length} " + chr(97 + RANK) * length)
    return "printed"


MODES: dict[str, Callable[..., object]] = {
    one.__name__: one for one in (steps, everyone, apart, spin, counted, passing, chosen, printer)
}


def launcher_variables(rank: int, size: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29511",
    }


def launch(size: str, *arguments: str) -> None:
    """Start the ranks as a shell or a launcher does in its terminal: in the same group, with the same streams."""
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments], env={**os.environ, **launcher_variables(rank, int(size))}
        )
        for rank in range(int(size))
    ]
    sys.exit(max(abs(rank.wait()) for rank in ranks))


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        launch(*sys.argv[2:])
    result = MODES[sys.argv[1]](*sys.argv[2:])  # main
    with open(f"result.{RANK}", "w") as file:
        file.write(str(result))
