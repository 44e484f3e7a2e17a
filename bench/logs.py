"""Reading logs, and printing the output of ranks that print hard.

Two claims. The first: how many MB/s `breakranks logs` reads of a log of eight ranks, against `grep -c Traceback` on the
same file, with the file in the page cache. The second: eight ranks of a real torchrun job that each print many lines at
once, under `breakranks run` and under `torchrun --tee 3`: lines per second from the start of the printing to the last
line on standard output, how long the last line is behind its printing, and how many lines were lost or torn.

    .venv/bin/python bench/logs.py                    both tables
    .venv/bin/python bench/logs.py --megabytes 200    a smaller log
    .venv/bin/python bench/logs.py --only read        one of the two: read, run
    .venv/bin/python bench/logs.py --json F           and all figures in a file
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

RANKS = 8
BIN = Path(sys.executable).parent
COMMAND_DEADLINE = 600.0

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 120, in main
    step(batch)
  File "/home/me/model.py", line 88, in forward
    return self.head(x.shape)
           ^^^^^^^^^^^^^^^^^^
ValueError: bad shape (4, {rank})
"""

PRINTER = """\
import os, sys, time
rank, lines = int(os.environ["RANK"]), int(sys.argv[1])
text = "x" * 80
began = time.time()
for number in range(lines):
    print(f"rank={rank} line={number} {text} end", flush=number % 50 == 0)
sys.stdout.flush()
with open(f"{sys.argv[2]}/{rank}", "w") as file:
    file.write(f"{began} {time.time()}")
"""
LINE = re.compile(rb"rank=(\d+) line=(\d+) x{80} end$")


def make_log(path: Path, megabytes: int) -> int:
    """Write a log as `torchrun --tee 3` makes it: a step per line, one handled traceback per 16 MB, and a crash."""
    chance = random.Random(17)
    steady = "".join(
        f"[default{number % RANKS}]:2026-11-19 20:50:42,123 INFO train.py:88 step {number // RANKS} "
        f"loss {chance.random() * 3:.4f} lr 1.0e-4 tokens/s {chance.random() * 1e5:.1f} mem 61.2GiB\n"
        for number in range(120_000)
    )
    crash = "".join(f"[default{r}]:{line}\n" for r in range(RANKS) for line in TRACEBACK.format(rank=r).splitlines())
    handled = "".join(f"[default3]:{line}\n" for line in TRACEBACK.format(rank=3).splitlines())
    with path.open("w") as file:
        while file.tell() < megabytes * 1_000_000:
            file.write(steady)
            file.write(handled)
        file.write(crash)
    return path.stat().st_size


def read_rates(megabytes: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Return MB/s by tool, in turns."""
    path = folder / "train.log"
    size = make_log(path, megabytes)
    tools: dict[str, list[str]] = {
        "grep -c Traceback": ["grep", "-c", "Traceback", str(path)],
        "breakranks logs": [str(BIN / "breakranks"), "logs", str(path)],
    }
    rates: dict[str, list[float]] = {name: [] for name in tools}
    path.read_bytes()
    for _ in range(rounds):
        for name, words in tools.items():
            began = time.monotonic()
            # A pipe: with /dev/null as its output, grep ends at the first match.
            subprocess.run(words, stdout=subprocess.PIPE, timeout=COMMAND_DEADLINE, check=False)
            rates[name].append(size / 1e6 / (time.monotonic() - began))
    path.unlink()
    return rates


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def printed(words: Sequence[str], lines: int, folder: Path) -> dict[str, float]:
    """Run a job of ranks that print; return its lines per second, its lag, and how many lines were lost or torn."""
    marks = Path(tempfile.mkdtemp(dir=folder))
    program = marks / "printer.py"
    program.write_text(PRINTER)
    command = [*words, str(program), str(lines), str(marks)]
    seen = torn = 0
    last = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=marks) as process:
        assert process.stdout is not None
        rest = b""
        while data := os.read(process.stdout.fileno(), 1 << 20):
            now = time.time()
            whole, _, rest_after = (rest + data).rpartition(b"\n")
            rest = rest_after
            for line in whole.split(b"\n"):
                if LINE.search(line):
                    seen += 1
                    last = now
                elif b"line=" in line:
                    torn += 1
    times = [tuple(map(float, (marks / str(rank)).read_text().split())) for rank in range(RANKS)]
    began, ended = min(a for a, _ in times), max(b for _, b in times)
    return {
        "lines/s": seen / max(1e-9, last - began),
        "lag, ms": max(0.0, last - ended) * 1000,
        "lost": RANKS * lines - seen,
        "torn": torn,
    }


def run_rates(lines: int, rounds: int, folder: Path) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {"torchrun --tee 3": [], "breakranks run": []}
    for _ in range(rounds):
        torchrun = [str(BIN / "torchrun"), "--nproc-per-node", str(RANKS), "--master-port", str(free_port())]
        logs = tempfile.mkdtemp(dir=folder)
        found["torchrun --tee 3"].append(printed([*torchrun, "--tee", "3", "--log-dir", logs], lines, folder))
        wrapped = [str(BIN / "breakranks"), "run", "--log-dir", logs, "--", *torchrun]
        found["breakranks run"].append(printed(wrapped, lines, folder))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the log (default: 1000)")
    parser.add_argument("--lines", type=int, default=50_000, help="lines that each rank prints (default: 50000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("read", "run"))
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}")
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="breakranks-bench-") as name:
        folder = Path(name)
        if args.only != "run":
            rates = read_rates(args.megabytes, args.rounds, folder)
            figures["read"] = rates
            print(f"\nMB/s of a log of {args.megabytes} MB        median    least     most")
            for tool, values in rates.items():
                print(f"  {tool:<28} {statistics.median(values):8.0f} {min(values):8.0f} {max(values):8.0f}")
            medians = {tool: statistics.median(values) for tool, values in rates.items()}
            print(f"  ratio to grep: {medians['breakranks logs'] / medians['grep -c Traceback']:.2f}")
        if args.only != "read":
            found = run_rates(args.lines, args.rounds, folder)
            figures["run"] = found
            print(f"\n{RANKS} ranks x {args.lines:,} lines        lines/s   lag, ms     lost     torn   (medians)")
            for tool, rows in found.items():
                cells = [statistics.median(row[key] for row in rows) for key in ("lines/s", "lag, ms", "lost", "torn")]
                print(f"  {tool:<26} {cells[0]:10,.0f} {cells[1]:9,.0f} {cells[2]:8,.0f} {cells[3]:8,.0f}")
            speed = {tool: statistics.median(row["lines/s"] for row in rows) for tool, rows in found.items()}
            print(f"  ratio to torchrun: {speed['breakranks run'] / speed['torchrun --tee 3']:.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
