"""The time to see the stacks of eight and of 32 ranks, and how long a rank is paused for it.

It starts a real torchrun job of eight gloo ranks, seven in a barrier and one asleep, and times these commands in turns,
in one run:

    py-spy in turn       for p in PIDS; do py-spy dump --pid $p; done
    py-spy in parallel   for p in PIDS; do py-spy dump --pid $p & done; wait
    breakranks stacks
    breakranks why

Wall time is from start to end of the command, including start-up. The first three are also timed on a job of 32 ranks,
where start-up has less weight. For the pauses, the same job is started again with one more thread in every rank, which
records when it did not run, and for how long: tracing stops all threads of a process. A busy machine also delays
threads. So a similar process is pinned to each CPU, and its pauses are subtracted. The row "no tool" shows the noise
that is left.

    .venv/bin/python bench/stacks.py            the tables
    .venv/bin/python bench/stacks.py --json F   and all figures in a file
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

RANKS = 8
MANY = 32
ASLEEP = 5
TICK = 0.001
ROOM = 2001  # numbers that a ticker may record: their count, then pairs
START_DEADLINE = 600.0
COMMAND_DEADLINE = 120.0
BIN = Path(sys.executable).parent

TICKER = f"""
import mmap, os, sys, threading, time


def tick(path, slot):
    # Notes every gap as (begin, end) in the slot of a shared file, after their count.
    with open(path, "r+b") as file:
        notes = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
    base = slot * {ROOM}
    before = time.monotonic_ns()
    while True:
        time.sleep({TICK})
        now = time.monotonic_ns()
        count = notes[base]
        if now - before > {2 * TICK * 1e9} and count < {(ROOM - 1) // 2}:
            notes[base + 1 + 2 * count] = before
            notes[base + 2 + 2 * count] = now
            notes[base] = count + 1
        before = now
"""

RANK_PROGRAM = f"""
import torch.distributed as dist

folder, ticking = sys.argv[1], sys.argv[2] == "tick"
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
dist.barrier()
if ticking:
    ticker = threading.Thread(target=tick, args=(os.path.join(folder, "gaps"), rank), daemon=True)
    ticker.start()
with open(os.path.join(folder, f"ready.{{rank}}.part"), "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, file.name.removesuffix(".part"))
if rank == {ASLEEP}:
    time.sleep(3600)
dist.barrier()
"""

# Watches a CPU, not a rank. It ends with its parent.
CPU_PROGRAM = """
os.sched_setaffinity(0, {int(sys.argv[2])})
threading.Thread(target=tick, args=(sys.argv[1], int(sys.argv[3])), daemon=True).start()
sys.stdin.read()
"""

Gap = tuple[int, int]


class Job:
    """The running job: the pids of its ranks in order, its port, and the records of the tickers."""

    def __init__(self, pids: list[int], port: int, notes: memoryview[int]) -> None:
        self.pids = pids
        self.port = port
        self._notes = notes

    def forget(self) -> None:
        for base in range(0, len(self._notes), ROOM):
            self._notes[base] = 0

    def longest_pause(self) -> float:
        """The longest time, in seconds, in which a rank was paused while the CPUs were not."""
        slots = [self._gaps(base) for base in range(0, len(self._notes), ROOM)]
        ranks = len(self.pids)
        stalls = merged([gap for slot in slots[ranks:] for gap in slot])
        pauses = [end - begin - shared((begin, end), stalls) for slot in slots[:ranks] for begin, end in slot]
        return max(0.0, max(pauses, default=0) / 1e9 - TICK)

    def _gaps(self, base: int) -> list[Gap]:
        noted = self._notes[base + 1 : base + 1 + 2 * self._notes[base]].tolist()
        return list(zip(noted[::2], noted[1::2], strict=True))


def merged(gaps: list[Gap]) -> list[Gap]:
    found: list[Gap] = []
    for begin, end in sorted(gaps):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def shared(gap: Gap, others: list[Gap]) -> int:
    """The part of a gap that overlaps with the others, which do not overlap each other."""
    return sum(max(0, min(gap[1], end) - max(gap[0], begin)) for begin, end in others)


@contextmanager
def running_job(*, ranks: int = RANKS, ticking: bool) -> Iterator[Job]:
    """The job, from the moment when all ranks are blocked. At the end, every process is ended by pid."""
    with tempfile.TemporaryDirectory(prefix="breakranks-bench-") as name:
        folder = Path(name)
        program = folder / "ranks.py"
        program.write_text(TICKER + RANK_PROGRAM)
        cpus = sorted(os.sched_getaffinity(0)) if ticking else []
        notes = folder / "gaps"
        notes.write_bytes(bytes(8 * ROOM * (ranks + len(cpus))))
        port = free_port()
        command = [str(BIN / "torchrun"), f"--nproc-per-node={ranks}", f"--master-port={port}"]
        command += [str(program), name, "tick" if ticking else "still"]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": name}
        watchers: list[subprocess.Popen[bytes]] = []
        with (folder / "log").open("w+") as log:
            launcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)
            try:
                pids = wait_until_settled(launcher, folder, ranks)
                for slot, cpu in enumerate(cpus, ranks):
                    watch = [sys.executable, "-c", TICKER + CPU_PROGRAM, str(notes), str(cpu), str(slot)]
                    watchers.append(subprocess.Popen(watch, stdin=subprocess.PIPE))
                with (
                    notes.open("r+b") as file,
                    mmap.mmap(file.fileno(), 0) as area,
                    memoryview(area) as raw,
                    raw.cast("q") as view,
                ):
                    yield Job(pids, port, view)
            finally:
                end(launcher, folder, watchers)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_settled(launcher: subprocess.Popen[bytes], folder: Path, ranks: int) -> list[int]:
    """Wait until every rank reports that it is ready, and until the ranks use no more CPU."""
    until = time.monotonic() + START_DEADLINE
    while time.monotonic() < until:
        if launcher.poll() is not None:
            sys.exit("the job did not start:\n" + (folder / "log").read_text()[-2000:])
        ready = [folder / f"ready.{rank}" for rank in range(ranks)]
        if all(path.exists() for path in ready):
            pids = [int(path.read_text()) for path in ready]
            before = main_thread_cpu(pids)
            time.sleep(0.5)
            if main_thread_cpu(pids) == before:
                return pids
        time.sleep(0.05)
    sys.exit(f"the job was not ready in {START_DEADLINE:g} s:\n" + (folder / "log").read_text()[-2000:])


def main_thread_cpu(pids: list[int]) -> list[str]:
    return [Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0] for pid in pids]


def end(launcher: subprocess.Popen[bytes], folder: Path, watchers: list[subprocess.Popen[bytes]]) -> None:
    for path in folder.glob("ready.*[0-9]"):
        try:
            os.kill(int(path.read_text()), signal.SIGKILL)
        except (ProcessLookupError, ValueError):
            pass
    for process in (launcher, *watchers):
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def commands(job: Job) -> dict[str, list[str]]:
    spy = BIN / "py-spy"
    pids = " ".join(map(str, job.pids))
    ours = [str(BIN / "breakranks")]
    return {
        "py-spy in turn": ["sh", "-c", f"for p in {pids}; do {spy} dump --pid $p; done"],
        "py-spy in parallel": ["sh", "-c", f"for p in {pids}; do {spy} dump --pid $p & done; wait"],
        "breakranks stacks": [*ours, "stacks", "--job", f"torchrun-{job.port}"],
        "breakranks why": [*ours, "why", "--job", f"torchrun-{job.port}"],
        "breakranks why --no-inject": [*ours, "why", "--no-inject", "--job", f"torchrun-{job.port}"],
        "breakranks collectives": [*ours, "collectives", "--job", f"torchrun-{job.port}"],
    }


def timed(command: list[str]) -> float:
    """The seconds that a command takes. It must succeed: a failing command would seem fast."""
    begun = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_DEADLINE, check=False)
    took = time.perf_counter() - begun
    # 1 is "something found". The loops end with the status of their last py-spy, or of wait.
    if done.returncode not in (0, 1) or (done.returncode == 1 and not {"why", "collectives"} & set(command)):
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.decode()[-2000:]}")
    return took


def measure_times(rounds: int, ranks: int = RANKS) -> dict[str, list[float]]:
    """Each command once per round, in turns, so that other load on the machine affects all commands alike."""
    with running_job(ranks=ranks, ticking=False) as job:
        table = commands(job)
        if ranks != RANKS:
            table = {name: table[name] for name in ("py-spy in turn", "py-spy in parallel", "breakranks stacks")}
        times: dict[str, list[float]] = {name: [] for name in table}
        names = list(table)
        for turn in range(rounds + 1):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                took = timed(table[name])
                if turn:  # the first round only warms the caches
                    times[name].append(took)
    return times


def measure_pauses(rounds: int) -> dict[str, list[float]]:
    """The longest pause of any of the eight ranks while a command ran, for each round."""
    with running_job(ticking=True) as job:
        table = commands(job)
        gaps: dict[str, list[float]] = {name: [] for name in ("no tool", *table)}
        for turn in range(rounds + 1):
            for name in gaps:
                time.sleep(0.1)
                job.forget()
                if name in table:
                    timed(table[name])
                else:
                    time.sleep(1.0)
                time.sleep(0.02)  # a gap is recorded at its end
                if turn:
                    gaps[name].append(job.longest_pause())
    return gaps


def measure_help() -> list[float]:
    return [timed([str(BIN / "breakranks"), "--help"]) for _ in range(11)][1:]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}" if seconds < 0.1 else f"{seconds * 1000:,.0f}"


def table_text(title: str, rows: dict[str, list[float]], show: tuple[str, ...]) -> str:
    figures: dict[str, Callable[[list[float]], float]] = {
        "median": statistics.median,
        "least": min,
        "most": max,
    }
    lines = [f"{title:<34}" + "".join(f"{word:>10}" for word in show)]
    for name, values in rows.items():
        lines.append(f"  {name:<32}" + "".join(f"{milliseconds(figures[word](values)):>10}" for word in show))
    return "\n".join(lines)


def versions() -> str:
    from importlib.metadata import version

    packages = ", ".join(f"{name} {version(name)}" for name in ("breakranks", "py-spy", "pystack", "torch"))
    load = os.getloadavg()[0]
    return f"Python {sys.version.split()[0]}, {packages}; {os.cpu_count()} CPUs, load {load:.1f} before"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="how often each command is run (7)")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()

    about = versions()
    print(f"{RANKS} torch ranks (gloo), {RANKS - 1} in a barrier, 1 asleep; {args.rounds} rounds, in turns")
    print(about, end="\n\n", flush=True)
    times = measure_times(args.rounds)
    times["breakranks --help"] = measure_help()
    print(table_text("wall time, ms", times, ("median", "least", "most")), end="\n\n", flush=True)
    many = measure_times(args.rounds, MANY)
    print(table_text(f"wall time of {MANY} ranks, ms", many, ("median", "least", "most")), end="\n\n", flush=True)
    pauses = measure_pauses(args.rounds)
    print(table_text("longest pause of a rank, ms", pauses, ("median", "most")), end="\n\n")

    median = {name: statistics.median(values) for name, values in times.items()}
    for peer in ("py-spy in turn", "py-spy in parallel"):
        ratio = median["breakranks stacks"] / median[peer]
        of_many = statistics.median(many["breakranks stacks"]) / statistics.median(many[peer])
        print(f"breakranks stacks / {peer}: {ratio:.2f}; with {MANY} ranks {of_many:.2f}")
    added = median["breakranks why"] - median["breakranks why --no-inject"]
    print(f"reading {RANKS} flight recorders adds to why: {milliseconds(added)} ms")
    if args.json:
        figures = {"about": about, "ranks": RANKS, "rounds": args.rounds, "seconds": times, "pauses": pauses}
        figures[f"seconds of {MANY}"] = many
        Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
