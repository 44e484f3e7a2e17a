"""Programs of two ranks in which an agent was started at the beginning, as ``breakranks run`` does.

preloaded_program.py MODE FOLDER [bare]: each has FOLDER/ready.RANK when it is where it is to be looked at, and ends
when FOLDER/end is there. ``bare``: without an agent.
"""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
import time

import breakranks
from breakranks.rank import api

MODE, FOLDER = sys.argv[1:3]
RANK = int(os.environ["RANK"])
MANY, DEEP = 1000, 1000


def exists(name):
    return os.access(f"{FOLDER}/{name}", os.F_OK)  # in C: wherever it is seen, it is in a line of this file


def tell(name, what=""):
    with open(f"{FOLDER}/{name}.{RANK}.part", "w") as file:
        file.write(str(what))
    os.rename(f"{FOLDER}/{name}.{RANK}.part", f"{FOLDER}/{name}.{RANK}")


def wait():
    """A lock that is never released, so that the same is seen at any time."""
    step, secret, unset = 7, "s3cret", None
    threading.Thread(target=time.sleep, args=(3600.0,), name="sleeper", daemon=True).start()
    tell("ready")
    threading.Thread(target=free, args=(held := threading.Lock(),), name="freer").start()
    held.acquire()
    held.acquire()  # wait
    return step, secret, unset


def free(held):
    while not exists("end"):
        time.sleep(0.01)
    held.release()


def deadlock():
    """Rank 1 has two threads that wait for each other's lock. Rank 0 waits for the file `end`."""
    if RANK == 0:
        wait()
        return
    first, second = threading.Lock(), threading.Lock()
    both = threading.Barrier(2)

    def other():
        with second:
            both.wait()
            first.acquire()  # other

    threading.Thread(target=other, name="other", daemon=True).start()
    with first:
        both.wait()
        tell("ready")
        second.acquire()  # deadlock


def turns():
    step, secret = 0, "s3cret"
    tell("ready")
    while not exists("end"):
        step += 1  # turns
        time.sleep(0.001)
    return step, secret


def stops():
    tell("ready")
    while not exists("go"):
        time.sleep(0.01)
    value = 40 + RANK
    breakranks.breakpoint()  # stops
    tell("value", value)
    wait()


def gil():
    """The main thread sleeps with the GIL held."""
    import ctypes

    sleep = ctypes.PyDLL(None).usleep
    tell("ready")
    while not exists("end"):
        sleep(300_000_000)


class Odd:
    """Tells of each use of its code."""

    def __repr__(self):
        tell("ran", "repr")
        return "odd"

    def __eq__(self, other):
        tell("ran", "eq")
        return True

    def __hash__(self):
        tell("ran", "hash")
        return 7

    def __getattribute__(self, name):
        tell("ran", f"attribute {name}")
        return 7


class OddText(str):
    def __repr__(self):
        tell("ran", "repr of a text")
        return "odd"

    def __getitem__(self, at):
        tell("ran", "item of a text")
        return "odd"


class OddThread(threading.Thread):
    odd = False

    @property
    def name(self):
        if self.odd:
            tell("ran", "name")
        return "odd"

    @name.setter
    def name(self, name):
        pass

    @property
    def native_id(self):
        tell("ran", "native_id")
        return 7


def odd():
    """Values and threads whose code would tell that it was called."""
    one, many, named, text, step = Odd(), [1, Odd()], {"a": Odd()}, OddText("x"), 3
    thread = OddThread(target=wait)
    thread.start()
    thread.odd = True
    thread.join()
    return one, many, named, text, step


class Freed:
    def __del__(self):
        tell("freed")


def frees():
    """A value that a running function drops is freed at once, and ``locals()`` of before is as it was."""
    gc.disable()
    value, step = Freed(), 1
    before = dict(seen := locals())
    step = 2
    tell("ready")
    while not exists("drop"):
        time.sleep(0.001)
    before.clear()
    unchanged = "before" not in seen and seen["step"] == 1
    if sys.version_info < (3, 13):  # a dictionary of its own since
        seen.clear()
    seen = None
    value = None
    tell("dropped", unchanged)
    wait()
    return step, value


def many():
    """A thousand threads, and a thousand calls of a function in each other."""
    end = threading.Event()
    _thread.start_new_thread(end.wait, ())  # as C++ starts one: unknown to threading
    for _ in range(MANY):
        threading.Thread(target=end.wait, daemon=True).start()
    sys.setrecursionlimit(5 * DEEP)
    recurse(DEEP)
    end.set()


def recurse(depth):
    return recurse(depth - 1) if depth else wait()


def torch():
    """Rank 1 never comes to the second barrier."""
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()
    if RANK == 0:
        tell("ready")
        torch.distributed.barrier()  # barrier
    else:
        wait()


if __name__ == "__main__":
    if "bare" not in sys.argv:
        assert api.preload()
    globals()[MODE]()  # main
