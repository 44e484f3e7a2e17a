"""Fold and explain synthetic snapshots of many ranks: time and peak memory.

The claim: 100,000 ranks in a few hundred classes are folded and explained in under 5 s and 1 GiB, because the cost
grows with the number of different stacks. Each size runs in a process of its own, to measure its own peak of memory.
The peak includes the snapshot itself and the interpreter.

    python bench/fold.py --ranks 1000 10000 100000
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from breakranks.cli.main import COLLECTOR_THRESHOLDS
from breakranks.explain.verdict import explain
from breakranks.show.stack_tree import stacks_lines
from breakranks.show.terminal_text import TerminalStyle, render
from breakranks.snapshot.model import (
    FORMAT_VERSION,
    Call,
    Frame,
    Host,
    Job,
    Process,
    Rank,
    Sample,
    Snapshot,
    StackTable,
    Thread,
)
from breakranks.snapshot.prefix_tree import fold, fold_threads
from breakranks.snapshot.snapshot_file import pack, unpack

LIMIT_SECONDS, LIMIT_BYTES = 5.0, 1 << 30
SITE = "/opt/venv/lib/python3.11/site-packages"
RANKS_PER_HOST = 8
T = TypeVar("T")


class Result(msgspec.Struct):
    ranks: int
    classes: int
    build: float
    fold: float
    threads: float
    explain: float
    show: float
    file: int
    save: float
    load: float
    peak: int
    verdict: str


def synthetic(ranks: int, classes: int, seed: int = 1) -> Snapshot:
    """A hung job: one rank loads data, the others wait in one of many places for all_reduce."""
    chance = random.Random(seed)
    table = StackTable()
    base = tuple(Frame(f"call_{i}", f"{SITE}/trainer/loop_{i % 5}.py", 100 + i) for i in range(20))
    reduce = Frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 3000)
    waiting = [
        table.add((*base[: 12 + i % 9], Frame("step", "/home/me/train.py", 100 + i), reduce))
        for i in range(classes - 1)
    ]
    loading = table.add((*base, Frame("load_batch", "/home/me/data.py", 88)))
    helpers = [
        table.add((Frame("run", "/usr/lib/python3.11/threading.py", 982), Frame(name, "/home/me/x.py", 5)))
        for name in ("prefetch", "heartbeat", "write_log")
    ]
    culprit = chance.randrange(ranks)
    made = []
    for rank in range(ranks):
        stack = loading if rank == culprit else waiting[chance.randrange(len(waiting))]
        call = Call("read", 7) if rank == culprit else Call("futex")
        samples = tuple(_sample(rank, at, stack, call, helpers) for at in (1000.0, 1001.0))
        process = Process(
            pid=1000 + rank,
            parent=999,
            command=("/opt/venv/bin/python", "-u", "train.py"),
            name="python",
            user="me",
            state="S",
            started=100.0,
            rss=4 << 30,
            cpu_percent=1.0,
            samples=samples,
        )
        made.append(
            Rank(rank=rank, host=f"n{rank // RANKS_PER_HOST}", process=process, local_rank=rank % RANKS_PER_HOST)
        )
    return Snapshot(
        version=FORMAT_VERSION,
        made_by="bench/fold.py",
        time=1001.0,
        job=Job(key="bench-1", launcher="torchrun", world_size=ranks, started=100.0, command=("torchrun", "train.py")),
        ranks=tuple(made),
        frames=tuple(table.frames),
        stacks=tuple(table.stacks),
        hosts=tuple(Host(name=f"n{i}", cpus=64) for i in range(-(-ranks // RANKS_PER_HOST))),
        interval=1.0,
    )


def _sample(rank: int, at: float, stack: int, call: Call, helpers: list[int]) -> Sample:
    main = Thread(
        tid=1000 + rank, name="MainThread", stack=stack, state="S", call=call, ran=rank, switches=1, idle=90.0
    )
    others = tuple(
        Thread(
            tid=200_000 + rank * 4 + i,
            name=f"Thread-{i}",
            stack=row,
            state="S",
            call=Call("futex"),
            ran=rank,
            idle=90.0,
        )
        for i, row in enumerate(helpers)
    )
    return Sample(time=at, state="S", threads=(main, *others), quiet=0.9, quiet_ran=())


def measure(ranks: int, classes: int) -> Result:
    """Build one snapshot, and time each step of its processing."""
    gc.set_threshold(*COLLECTOR_THRESHOLDS)  # as the commands do
    build, snapshot = timed(lambda: synthetic(ranks, classes))
    fold_time, root = timed(lambda: fold(snapshot))
    assert len(root.ranks) == ranks
    explain_time, diagnosis = timed(lambda: explain(snapshot))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # The rest is printed as well, but is not part of the claim.
    threads, _ = timed(lambda: fold_threads(snapshot))
    show, _ = timed(lambda: render(stacks_lines(snapshot, TerminalStyle()), TerminalStyle()))
    save, data = timed(lambda: pack(snapshot))
    load, _ = timed(lambda: unpack(data))
    verdict = "none" if diagnosis.verdict is None else f"{diagnosis.verdict.kind} {diagnosis.verdict.culprits}"
    return Result(ranks, classes, build, fold_time, threads, explain_time, show, len(data), save, load, peak, verdict)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    made = work()
    return time.perf_counter() - began, made


def apart(ranks: int, classes: int) -> Result:
    """Measure in a child process, since the peak of memory of a process never decreases."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            with open(write, "wb") as pipe:
                pipe.write(msgspec.msgpack.encode(measure(ranks, classes)))
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(write)
    with open(read, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"measuring {ranks:,} ranks failed (status {os.waitstatus_to_exitcode(status)})")
    return msgspec.msgpack.decode(data, type=Result)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1000, 10_000, 100_000], metavar="N")
    parser.add_argument("--classes", type=int, default=300, metavar="N")
    args = parser.parse_args()
    print(
        "   ranks  classes   fold s  explain s   both s  peak MiB"
        " | threads s  show s  save s  load s  file KiB  verdict"
    )
    good = True
    for ranks in args.ranks:
        one = apart(ranks, min(args.classes, ranks))
        both = one.fold + one.explain
        print(
            f"{one.ranks:8,}  {one.classes:7}  {one.fold:7.3f}  {one.explain:9.3f}  {both:7.3f}"
            f"  {one.peak >> 20:8,} | {one.threads:9.3f} {one.show:7.3f} {one.save:7.3f} {one.load:7.3f}"
            f"  {one.file >> 10:8,}  {one.verdict}"
        )
        if ranks <= 100_000:
            good = good and both < LIMIT_SECONDS and one.peak < LIMIT_BYTES
    word = "yes" if good else "NO"
    print(f"claim: up to 100,000 ranks, both under {LIMIT_SECONDS:g} s and under 1,024 MiB: {word}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
