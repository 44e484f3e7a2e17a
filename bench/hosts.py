"""Real hosts over ssh: the time to see all ranks, the bytes that a host sends, and the cost of a dead host.

    .venv/bin/python bench/hosts.py                       as root: the hosts are namespaces, each with a sshd
    .venv/bin/python bench/hosts.py --only time --hosts 4 --rounds 3

time   `breakranks stacks ssh:n[1-16]` and `why`, against `clush -w n[1-16] true` over the same ssh, in turns, which is
       the minimum for a login to all of them. Each host has two plain Python ranks of one job.
bytes  The bytes that one host with eight ranks in the same place sends to the controller, including lines and greeting:
       plain Python, and torch (gloo), with one rank asleep and seven in a barrier. The goal is less than 20 kB.
dead   One host of sixteen is cut off, or accepts the login and then sends nothing. The time from the start of `stacks`
       to the first line of the tree, and to the end. The goal: the other hosts before the deadline of 10 s, and the end
       shortly after it.

All hosts share the CPUs of this machine with the peer, so only the ratio is meaningful.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests.cluster.nodes import Nodes, Odd  # noqa: E402

BIN = Path(sys.executable).parent
BREAKRANKS, CLUSH = str(BIN / "breakranks"), str(BIN / "clush")
PARTS = ("time", "bytes", "dead")
RANKS_HERE = 8  # ranks of the host whose bytes are counted
DEADLINE = 180.0
PORT = "29517"

PLAIN = """
import os, pathlib, sys, time

def wait_for_the_others():
    time.sleep(100000)

def step():
    wait_for_the_others()

pathlib.Path(sys.argv[1], "ready." + os.environ["RANK"]).touch()
step()
"""

TORCH = """
import pathlib, sys, time
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
pathlib.Path(sys.argv[1], f"ready.{rank}").touch()
if rank == 0:
    time.sleep(100000)
dist.barrier()
"""


class Rig:
    """Hosts with a job."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.target = f"ssh:n[1-{nodes.count}]" if nodes.count > 1 else "ssh:n1"
        self.config = str(nodes.ssh_config)

    def start(self, text: str, per_host: int) -> None:
        """Run a program as ``ranks`` ranks per host, from the moment when all are blocked."""
        folder = self.nodes.folder
        program = folder / "program.py"
        program.write_text(text)
        world = self.nodes.count * per_host
        for host, node in enumerate(self.nodes):
            for local in range(per_host):
                env = {"RANK": str(host * per_host + local), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local)}
                env |= {"LOCAL_WORLD_SIZE": str(per_host), "MASTER_ADDR": "n1", "MASTER_PORT": PORT}
                node.popen([sys.executable, program, folder], env=env)
        self.await_ready(world)

    def start_torch(self, ranks: int) -> None:
        folder = self.nodes.folder
        program = folder / "program.py"
        program.write_text(TORCH)
        command: list[str | Path] = [
            BIN / "torchrun",
            f"--nproc-per-node={ranks}",
            f"--master-port={PORT}",
            program,
            folder,
        ]
        log = (folder / "log").open("wb")
        next(iter(self.nodes)).popen(command, env={"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)
        self.await_ready(ranks)

    def await_ready(self, ranks: int) -> None:
        until = time.monotonic() + DEADLINE
        while len(list(self.nodes.folder.glob("ready.*"))) < ranks:
            if time.monotonic() > until:
                sys.exit("the job did not start")
            time.sleep(0.1)
        time.sleep(1.0)  # from there into the wait itself


@contextlib.contextmanager
def rig(count: int, odd: dict[str, Odd] | None = None) -> Iterator[Rig]:
    folder = Path(tempfile.mkdtemp(prefix="breakranks-bench-"))
    try:
        with Nodes(folder, count, ssh=True, odd=odd) as nodes:
            yield Rig(nodes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- time


def measure_time(hosts: int, rounds: int) -> dict[str, list[float]]:
    with rig(hosts) as rigged:
        rigged.start(PLAIN, 2)
        ours = [rigged.target, "--ssh-config", rigged.config]
        nodes = rigged.target.removeprefix("ssh:")
        commands = {
            "clush true": [CLUSH, "-w", nodes, "-o", f"-F {rigged.config}", "true"],
            "breakranks stacks": [BREAKRANKS, "stacks", *ours],
            "breakranks why": [BREAKRANKS, "why", *ours],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        names = list(commands)
        for turn in range(rounds + 1):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                took = timed(commands[name], f"[0-{2 * hosts - 1}] ({2 * hosts})" if name.endswith("stacks") else "")
                if turn:  # the first round only warms the caches
                    times[name].append(took)
    return times


def timed(command: list[str], expected: str) -> float:
    """The seconds that a command takes. It must succeed: a failing command would seem fast."""
    begun = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE)
    took = time.perf_counter() - begun
    if done.returncode not in (0, 1) or expected not in done.stdout:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return took


# ---- bytes


def measure_bytes() -> dict[str, dict[str, int]]:
    """The bytes that a host sends, by job and by command."""
    found: dict[str, dict[str, int]] = {}
    jobs: dict[str, Callable[[Rig], None]] = {
        "plain Python": lambda one: one.start(PLAIN, RANKS_HERE),
        "torch, seven in a barrier": lambda one: one.start_torch(RANKS_HERE),
    }
    for name, start in jobs.items():
        with rig(1) as rigged:
            start(rigged)
            found[name] = {command: received(command, rigged) for command in ("stacks", "why")}
    return found


def received(command: str, rigged: Rig) -> int:
    """The bytes that came from the one host for a command, which is run here, in this process."""
    from breakranks.cli.main import main
    from breakranks.hosts.hosts_backend import HostsBackend

    seen: list[Any] = []
    close = HostsBackend.close

    def noted(backend: HostsBackend) -> None:
        seen.extend(backend.controller.host_states.values())
        close(backend)

    HostsBackend.close = noted  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            status = main([command, rigged.target, "--ssh-config", rigged.config])
    finally:
        HostsBackend.close = close  # type: ignore[method-assign]
    if status not in (0, 1):
        sys.exit(f"{command} ended with {status}:\n{said.getvalue()[-2000:]}")
    (host,) = seen
    return int(host.running.received)


# ---- dead


def measure_dead(hosts: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds to the first line of the tree, and to the end."""
    last = f"n{hosts}"
    found: dict[str, list[tuple[float, float]]] = {}
    with rig(hosts) as rigged:
        rigged.start(PLAIN, 2)
        found["all alive"] = [watched(rigged) for _ in range(rounds)]
        rigged.nodes.cut(last)
        found["one is cut off"] = [watched(rigged) for _ in range(rounds)]
    with rig(hosts, {last: Odd(bashrc="sleep 1000")}) as rigged:
        rigged.start(PLAIN, 2)
        found["one lets in, says nothing"] = [watched(rigged) for _ in range(rounds)]
    return found


def watched(rigged: Rig) -> tuple[float, float]:
    command = [BREAKRANKS, "stacks", rigged.target, "--ssh-config", rigged.config]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        first, text = 0.0, b""
        while data := os.read(running.stdout.fileno(), 1 << 16):
            text += data
            if not first and b"wait_for_the_others" in text:
                first = time.perf_counter() - begun
    took = time.perf_counter() - begun
    if not first:
        sys.exit(f"no tree: {text.decode()}")
    return first, took


# ---- the whole


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}"


def show_time(times: dict[str, list[float]], hosts: int) -> None:
    print(f"{f'{hosts} hosts, wall time, ms':<34}{'median':>10}{'least':>10}{'most':>10}")
    for name, values in times.items():
        cells = (statistics.median(values), min(values), max(values))
        print(f"  {name:<32}" + "".join(f"{milliseconds(cell):>10}" for cell in cells))
    for name in list(times)[1:]:
        pairs = [ours / theirs for ours, theirs in zip(times[name], times["clush true"], strict=True)]
        print(f"{name} / clush true: {statistics.median(pairs):.2f} (in a round: {min(pairs):.2f} to {max(pairs):.2f})")
    print(flush=True)


def show_bytes(sent: dict[str, dict[str, int]]) -> None:
    print(f"{f'a host of {RANKS_HERE} ranks sends, bytes':<34}{'stacks':>10}{'why':>10}")
    for name, row in sent.items():
        print(f"  {name:<32}" + "".join(f"{count:>10,}" for count in row.values()))
    print(flush=True)


def show_dead(times: dict[str, list[tuple[float, float]]], hosts: int) -> None:
    print(f"{f'stacks, {hosts} hosts, s':<34}{'first line':>12}{'end':>10}{'most':>10}")
    for name, values in times.items():
        first, end = (statistics.median(one[place] for one in values) for place in (0, 1))
        print(f"  {name:<32}{first:>12.1f}{end:>10.1f}{max(one[1] for one in values):>10.1f}")
    print(flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7, help="how often each command is run (7)")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, with commas: {', '.join(PARTS)}")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    parts = args.only.split(",")
    load = os.getloadavg()[0]
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs, load {load:.1f} before\n", flush=True)
    figures: dict[str, Any] = {"load": load, "hosts": args.hosts}
    if "time" in parts:
        figures["time"] = measure_time(args.hosts, args.rounds)
        show_time(figures["time"], args.hosts)
    if "bytes" in parts:
        figures["bytes"] = measure_bytes()
        show_bytes(figures["bytes"])
    if "dead" in parts:
        figures["dead"] = measure_dead(args.hosts, max(1, args.rounds // 3))
        show_dead(figures["dead"], args.hosts)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
