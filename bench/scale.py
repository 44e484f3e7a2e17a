"""The cost of hundreds of hosts for the controller, measured, and that of thousands, extrapolated or from recordings.

Live: the real controller (sessions, merge, explain, show) with real agents, each in a process of its own on this
machine, that serve made-up evidence of eight ranks (``scale_agent.py``). For each step of `stacks` and `why`, the CPU
time of the controller and the wall time are measured. The agents share the same CPUs, so the wall time is an upper
bound. The cost of 1,000 and 10,000 hosts is extrapolated from the cost per host at the largest measured number.
"growth" shows whether that is valid: 1 is proportional to the hosts, 2 to their square.

Recorded: the messages of 1,000 and 10,000 such hosts, replayed by one process to the same controller, as srun carries
all hosts. There are no agents, so the wall time is meaningful, and nothing is extrapolated.

Every number of hosts is measured in a process of its own, to measure its own peak of memory.

    .venv/bin/python bench/scale.py
    .venv/bin/python bench/scale.py --hosts 20 40 --recorded 1000
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import scale_agent

from breakranks.cli import job_selection, stacks
from breakranks.cli.main import COLLECTOR_THRESHOLDS, parser_of
from breakranks.explain.verdict import explain
from breakranks.hosts import hosts_sampler
from breakranks.hosts.controller import HostController
from breakranks.hosts.framing import MESSAGE, FrameWriter
from breakranks.hosts.host_messages import PROTOCOL, Hello, JobsFound, Report, SampleTaken, encode, pack_snapshot
from breakranks.hosts.hosts_backend import HostsBackend
from breakranks.hosts.transports import HostPlan, Transport
from breakranks.hosts.transports.transport_plan import SHORT_PIECE_BYTES
from breakranks.jobs.found_jobs import LocalJobs
from breakranks.jobs.merge_jobs import ClusterJob
from breakranks.jobs.targets import parse_target, select_of
from breakranks.show.stack_tree import stacks_lines
from breakranks.show.terminal_text import TerminalStyle, render
from breakranks.show.verdict_lines import why_lines
from breakranks.snapshot.model import Snapshot
from breakranks.snapshot.prefix_tree import fold

AGENT = Path(scale_agent.__file__).resolve()
RANKS = scale_agent.RANKS
DEADLINE = 120.0  # all hosts share two CPUs here, and start one after another
NONCE = "0123456789abcdef"
FAR = (1000, 10_000)


class Step(msgspec.Struct):
    """``cpu`` is the CPU time of the controller, in seconds."""

    name: str
    wall: float
    cpu: float


class Result(msgspec.Struct):
    """``bytes``: the bytes that a host has sent, including lines, after `stacks` and after `why`."""

    hosts: int
    steps: list[Step]
    bytes: dict[str, int]
    peak: int
    classes: int
    ranks: int
    culprits: str


class Timer:
    """Times one step after another."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.steps.append(Step(name, time.perf_counter() - wall, time.process_time() - cpu))


# ---- live


@contextlib.contextmanager
def nursery() -> Iterator[str]:
    """A process that forks agents, until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="breakranks-bench-") as folder:
        path = f"{folder}/nursery"
        nurse = subprocess.Popen([sys.executable, str(AGENT), "--nursery", path], stdin=subprocess.PIPE)
        try:
            until = time.monotonic() + DEADLINE
            while not os.path.exists(path) and nurse.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            yield path
        finally:
            assert nurse.stdin is not None
            nurse.stdin.close()
            nurse.wait(DEADLINE)


def live(hosts: int, agents: str | None) -> Result:
    """Run `stacks` and then `why` on that many hosts. ``agents`` is the nursery to use, if any."""
    gc.set_threshold(*COLLECTOR_THRESHOLDS)  # as the commands do
    command = [str(AGENT)] if agents is None else ["-ISc", scale_agent.MESSENGER, agents]
    target = f"exec:{shlex.join([sys.executable, *command])} {{host}} {hosts}@h[1-{hosts}]"
    args = parser_of("stacks", stacks).parse_args([target, f"--deadline={DEADLINE:g}"])
    step = Timer()
    with step("start"):
        backend = job_selection.backend_of(parse_target(target), args)
        assert isinstance(backend, HostsBackend)
        controller = backend.controller
        controller.wait(lambda: not controller.waiting, DEADLINE)
    try:
        with step("find"):
            backend.agents  # noqa: B018  # waits for all hosts, and requests their jobs
        with step("join"):
            job = backend.job(None)
        return _look(step, controller, job.found)
    finally:
        with step("leave"):
            backend.close()


def _look(step: Timer, controller: HostController, job: ClusterJob) -> Result:
    """The two commands, from the first request to the last line, without writing the lines."""
    transports = {id(one.running): one.running for one in controller.host_states.values() if one.running is not None}

    def received() -> int:
        return sum(one.received for one in transports.values())

    before = received()
    classes = _stacks(step, controller, job)
    first = received() - before
    session = hosts_sampler.HostsSampler(controller, job)
    with step("why: sample"):
        session.sample()
    with step("why: sample deep"):
        session.sample(native=True, recorders=True)
    second = received() - before - first
    with step("why: merge"):
        snapshot = session.snapshot()
    with step("why: explain"):
        diagnosis = explain(snapshot)
    with step("why: show"):
        render(why_lines(snapshot, diagnosis, TerminalStyle()), TerminalStyle())
    if controller.lost:
        sys.exit(f"{len(controller.lost)} hosts were lost: {next(iter(controller.lost.values()))}")
    hosts = len(controller.host_states)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sent = {"before": before // hosts, "stacks": first // hosts, "why": second // hosts}
    culprits = diagnosis.verdict.culprits if diagnosis.verdict is not None else ""
    return Result(hosts, step.steps, sent, peak, classes, len(snapshot.ranks), culprits)


def _stacks(step: Timer, controller: HostController, job: ClusterJob) -> int:
    session = hosts_sampler.HostsSampler(controller, job, details=False)
    with step("stacks: sample"):
        session.sample(visit="some")
    with step("stacks: merge"):
        snapshot = session.snapshot()
    with step("stacks: show"):
        render(stacks_lines(snapshot, TerminalStyle()), TerminalStyle())
    return len(leaves(snapshot))


def leaves(snapshot: Snapshot) -> list[Any]:
    """The leaves of the tree: the different stacks of the ranks."""
    found, left = [], [fold(snapshot)]
    while left:
        node = left.pop()
        left += node.children
        found += [] if node.children else [node]
    return found


# ---- recorded


class Recording:
    """The messages of that many hosts, in files of lines: one for the greeting, and one for each request."""

    def __init__(self, hosts: int, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        writers = {host: FrameWriter(NONCE, SHORT_PIECE_BYTES) for host in range(1, hosts + 1)}
        for number, make in enumerate((self._hello, self._jobs, self._stacks, self._first, self._deep)):
            with (folder / str(number)).open("wb") as file:
                for host, writer in writers.items():
                    # A controller numbers its requests from 1.
                    file.write(writer.lines(f"h{host}", MESSAGE, encode(make(host, number))))

    def _hello(self, host: int, number: int) -> Report:
        name = f"h{host}"
        address = f"10.{host >> 8}.{host & 255}.1"
        return Hello(
            protocol=PROTOCOL,
            version="",
            python="3.11",
            host=name,
            user="me",
            pid=1,
            time=time.time(),
            same=name,
            addresses=(address,),
        )

    def _jobs(self, host: int, number: int) -> Report:
        return JobsFound(number, scale_agent.found_of(host, self.hosts))

    def _stacks(self, host: int, number: int) -> Report:
        return SampleTaken(
            number, pack_snapshot(scale_agent.snapshot_of(host, self.hosts, 1, details=False, deep=False))
        )

    def _first(self, host: int, number: int) -> Report:
        return SampleTaken(number, pack_snapshot(scale_agent.snapshot_of(host, self.hosts, 1, deep=False)))

    def _deep(self, host: int, number: int) -> Report:
        return SampleTaken(number, pack_snapshot(scale_agent.snapshot_of(host, self.hosts)))


def recorded(recording: Recording) -> Result:
    """The same as :func:`live`, but with one transport for all hosts, as srun is, which replays a recording."""
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    hosts = tuple(f"h{host}" for host in range(1, recording.hosts + 1))
    argv = (sys.executable, str(AGENT), "--play", str(recording.folder), NONCE, str(recording.hosts))
    transport = Transport(hosts=hosts, argv=argv, piece=SHORT_PIECE_BYTES)
    plan = HostPlan(name=f"slurm:{recording.hosts}", scheme="slurm", hosts=hosts, transports=(transport,))
    step = Timer()
    with step("start"):
        controller = HostController(plan, nonce=NONCE, deadline=DEADLINE, supply=lambda _: iter(())).__enter__()
        controller.wait(lambda: not controller.waiting, DEADLINE)
    try:
        found: dict[str, LocalJobs] = {}
        with step("find"):
            hosts_sampler.find(controller, controller.up, found)
        with step("join"):
            job = select_of(hosts_sampler.jobs_of(controller, found), None, "")
        return _look(step, controller, job)
    finally:
        with step("leave"):
            controller.close()


# ---- the whole


def apart(work: Callable[[], Result]) -> Result:
    """Measure in a child process, since the peak of memory of a process never decreases."""
    read, write = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            with open(write, "wb") as pipe:
                pipe.write(msgspec.msgpack.encode(work()))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(write)
    with open(read, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"measuring failed (status {os.waitstatus_to_exitcode(status)})")
    return msgspec.msgpack.decode(data, type=Result)


def check(result: Result) -> None:
    """Check that the results are right."""
    right = (result.hosts * RANKS, scale_agent.WAYS + 1, str(scale_agent.culprit(result.hosts)))
    if (result.ranks, result.classes, result.culprits) != right:
        sys.exit(f"wrong: {result.ranks} ranks, {result.classes} classes, culprits {result.culprits}, and not {right}")


def median(results: list[Result]) -> Result:
    """The median of each step over several runs."""
    steps = [
        Step(rows[0].name, statistics.median(row.wall for row in rows), statistics.median(row.cpu for row in rows))
        for rows in zip(*(result.steps for result in results), strict=True)
    ]
    return msgspec.structs.replace(results[-1], steps=steps, peak=max(result.peak for result in results))


def growth(results: list[Result], place: int) -> float:
    """How the cost of a step grows: 1 with the hosts, 2 with their square. By least squares of the logarithms."""
    points = [(math.log(one.hosts), math.log(max(one.steps[place].cpu, 1e-6))) for one in results]
    middle, level = (statistics.fmean(column) for column in zip(*points, strict=True))
    return sum((x - middle) * (y - level) for x, y in points) / sum((x - middle) ** 2 for x, _ in points)


def table(results: list[Result], unit: str, value: Callable[[Step, Result], str]) -> str:
    lines = [f"  {unit:<24}" + "".join(f"{result.hosts:>12,}" for result in results)]
    for place, step in enumerate(results[0].steps):
        cells = [value(result.steps[place], result) for result in results]
        lines.append(f"  {step.name:<24}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def report_live(results: list[Result]) -> str:
    parts = [
        table(results, "CPU ms a host, at hosts:", lambda step, result: f"{step.cpu / result.hosts * 1000:.3f}"),
        _totals(results),
        table(results, "wall s, at hosts:", lambda step, _: f"{step.wall:.2f}"),
    ]
    if len(results) > 1:
        most = results[-1]
        lines = [f"  {f'CPU s, as at {most.hosts:,} hosts:':<24}{'growth':>12}" + "".join(f"{n:>12,}" for n in FAR)]
        for place, step in enumerate(most.steps):
            far = (step.cpu / most.hosts * n for n in FAR)
            lines.append(f"  {step.name:<24}{growth(results, place):12.2f}" + "".join(f"{one:12.2f}" for one in far))
        whole = sum(step.cpu for step in most.steps) / most.hosts
        lines.append(f"  {'all of it':<36}" + "".join(f"{whole * n:12.2f}" for n in FAR))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _totals(results: list[Result]) -> str:
    rows: dict[str, list[str]] = {
        "CPU s, all of it": [f"{sum(step.cpu for step in result.steps):.2f}" for result in results],
        "kB a host: before": [f"{result.bytes['before'] / 1000:.1f}" for result in results],
        "kB a host: stacks": [f"{result.bytes['stacks'] / 1000:.1f}" for result in results],
        "kB a host: why": [f"{result.bytes['why'] / 1000:.1f}" for result in results],
        "peak MiB": [f"{result.peak >> 20:,}" for result in results],
    }
    return "\n".join(f"  {name:<24}" + "".join(f"{cell:>12}" for cell in cells) for name, cells in rows.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="*", default=[50, 100, 200, 400], metavar="N", help="live agents")
    parser.add_argument("--recorded", type=int, nargs="*", default=list(FAR), metavar="N", help="from a file")
    parser.add_argument("--rounds", type=int, default=3, help="how often the live ones are run; the medians count (3)")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{RANKS} ranks a host; Python {sys.version.split()[0]}, {os.cpu_count()} CPUs, load {load:.1f} before\n")
    reached, read = [], []
    with nursery() as agents:
        for hosts in args.hosts:
            rounds = [apart(partial(live, hosts, agents)) for _ in range(args.rounds)]
            for one in rounds:
                check(one)
            reached.append(median(rounds))
    if reached:
        print(f"live agents\n{report_live(reached)}\n", flush=True)
    for hosts in args.recorded:
        with tempfile.TemporaryDirectory(prefix="breakranks-bench-") as folder:
            recording = Recording(hosts, Path(folder))
            read.append(apart(partial(recorded, recording)))
        check(read[-1])
    if read:
        cpu = table(read, "CPU s, at hosts:", lambda step, _: f"{step.cpu:.2f}")
        wall = table(read, "wall s, at hosts:", lambda step, _: f"{step.wall:.2f}")
        print(f"recorded, one carrier and no agents\n{cpu}\n\n{_totals(read)}\n\n{wall}")
    if args.json:
        figures = {"load": load, "live": reached, "recorded": read}
        Path(args.json).write_text(json.dumps(msgspec.to_builtins(figures), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
