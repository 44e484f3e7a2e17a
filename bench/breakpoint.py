"""What a breakpoint costs: a call that does not stop, an idle agent, the time to the prompt, an answer of eight ranks.

    .venv/bin/python bench/breakpoint.py                    everything: about six minutes
    .venv/bin/python bench/breakpoint.py --only calls,step  parts: calls, step, prompt, fold
    .venv/bin/python bench/breakpoint.py --quick            fewer rounds

The compared variants take turns within one run: in one process where possible (calls, step, fold), otherwise in rounds
with a new job each (prompt). The peers are the usual alternatives: ``if x > 3: pdb.set_trace()`` and
``torch.distributed.breakpoint()``.

calls    a call that does not stop: ns of CPU, without the cost of the loop. dist.breakpoint has no condition; with
         ``skip`` it logs a line each time, here to /dev/null.
step     a training step of an MLP on one CPU thread: without breakranks, with an agent in the process, and with an
         agent and a breakpoint in the step that does not fire. Blocks are longer than a second, since an agent wakes
         once a second. CPU is that of the whole process, with its agent. "noise" is the first row against itself.
prompt   from the call of the last rank to the prompt on the terminal, and from a `c` there to the last rank that
         resumes.
fold     from a typed line to the text of its answer, in the code of the console.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import select
import statistics
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PARTS = ("calls", "step", "prompt", "fold")
DEADLINE = 90.0
OTHERS = ("3.12", "3.13")
Times = dict[str, list[float]]

CALLS = """
import json, os, pdb, statistics, sys, time
import breakranks
rounds, torch_too = int(sys.argv[1]), sys.argv[2] == "torch"
x = 1.0
def loop(n, x):
    began = time.thread_time_ns()
    for _ in range(n): pass
    return time.thread_time_ns() - began
def guarded(n, x):
    began = time.thread_time_ns()
    for _ in range(n):
        if x > 3: pdb.set_trace()
    return time.thread_time_ns() - began
def value(n, x):
    began = time.thread_time_ns()
    for _ in range(n): breakranks.breakpoint(when=x > 3)
    return time.thread_time_ns() - began
def function(n, x):
    began = time.thread_time_ns()
    for _ in range(n): breakranks.breakpoint(when=lambda: x > 3)
    return time.thread_time_ns() - began
def text(n, x):
    began = time.thread_time_ns()
    for _ in range(n): breakranks.breakpoint(when="x > 3")
    return time.thread_time_ns() - began
rows = {"if x > 3: pdb.set_trace()": (guarded, 20000), "breakpoint(when=x > 3)": (value, 5000),
        "breakpoint(when=lambda: x > 3)": (function, 5000), "breakpoint(when='x > 3')": (text, 1000)}
if torch_too:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    def skipped(n, x):
        began = time.thread_time_ns()
        for _ in range(n): dist.breakpoint(0, skip=10**9)
        return time.thread_time_ns() - began
    rows["dist.breakpoint(0, skip=10**9)"] = (skipped, 1000)
breakranks.breakpoint(when=False)  # from here on there is an agent
for function, n in rows.values(): function(n, x)
times = {name: [] for name in rows}
for _ in range(rounds):
    for name, (function, n) in rows.items():
        times[name].append((function(n, x) - loop(n, x)) / n)
print(json.dumps(times))
"""

STEP = """
import json, os, sys, time
import torch
from breakranks.rank import api
import breakranks
blocks, seconds = int(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
width = 192
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width),
                            torch.nn.ReLU(), torch.nn.Linear(width, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
batch, wanted = torch.randn(256, width), torch.randn(256, 1)
def step():
    loss = (model(batch) - wanted).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss
def step_with_breakpoint():
    loss = (model(batch) - wanted).pow(2).mean()
    breakranks.breakpoint(when=loss > 1e9)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss
def step_with_check():  # the usual alternative
    loss = (model(batch) - wanted).pow(2).mean()
    if loss > 1e9: raise SystemExit
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss
def block(one):
    times, until, cpu = [], time.perf_counter() + seconds, time.process_time_ns()
    while time.perf_counter() < until:
        began = time.perf_counter_ns()
        one()
        times.append(time.perf_counter_ns() - began)
    cpu = time.process_time_ns() - cpu
    times.sort()
    return times[len(times) // 2] / 1e6, cpu / len(times) / 1e6
def end():
    if api._agent is not None:
        api._agent.end()
        api._agent = None
rows = {"nothing": (step, False), "an agent": (step, True), "nothing, again": (step, False),
        "an agent and a breakpoint": (step_with_breakpoint, True), "if loss > 1e9: …": (step_with_check, False)}
found = {name: [] for name in rows}
idle = []  # seconds of CPU of the agent's thread, per second
for _ in range(100): step()
order = list(rows)
for turn in range(blocks):
    for name in order:
        one, wanted_agent = rows[name]
        end()
        if wanted_agent:
            api._start()
            clock, cpu = time.perf_counter(), time.clock_gettime(time.pthread_getcpuclockid(api._agent._thread.ident))
        one()
        found[name].append(block(one))
        if wanted_agent and one is step:
            spent = time.clock_gettime(time.pthread_getcpuclockid(api._agent._thread.ident)) - cpu
            idle.append(spent / (time.perf_counter() - clock))
    order.append(order.pop(0))
end()
print(json.dumps({"blocks": found, "idle": idle}))
"""

# A rank: it reports that it is ready. For each time that it receives, it calls its breakpoint at that time, and reports
# when it called it and when it resumed.
RANK = """
import os, sys, time
kind, stop = sys.argv[1:3]
rank, control, report = int(os.environ["RANK"]), int(os.environ["BENCH_CONTROL"]), int(os.environ["BENCH_REPORT"])
if kind != "plain":
    import torch
    torch.set_num_threads(1)
    tensor = torch.arange(1e6) * (rank + 1)
if kind == "torch":
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
number = 0.1 * (rank + 1)
if stop == "ours":
    import breakranks
    breakranks.breakpoint(when=False)
elif stop == "dist":
    import torch.distributed as dist
os.write(report, b"ready\\n")
with os.fdopen(control) as told:
    for line in told:
        time.sleep(max(0.0, float(line) - time.time()))
        os.write(report, f"{time.time()}\\n".encode())
        if stop == "ours":
            breakranks.breakpoint()
        else:
            dist.breakpoint(0)
        os.write(report, f"{time.time()}\\n".encode())
"""


# ---- running things


class Terminal:
    """A pseudo-terminal with a command: its output, and when each part came."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        modes = termios.tcgetattr(self.slave)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        self.text = ""

    def until(self, pattern: str, seconds: float = DEADLINE) -> float:
        """Read until the unread text contains a pattern, and return the time."""
        end = time.monotonic() + seconds
        while True:
            seen = time.time()
            found = re.search(pattern, self.text)
            if found is not None:
                self.text = self.text[found.end() :]
                return seen
            if not select.select([self.master], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"no {pattern!r} in {seconds:g} s, only {self.text[-800:]!r}")
            self.text += os.read(self.master, 65536).decode(errors="replace")

    def forget(self) -> None:
        while select.select([self.master], [], [], 0)[0]:
            os.read(self.master, 65536)
        self.text = ""

    def type(self, line: str) -> None:
        os.write(self.master, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


class Job:
    """Ranks that are ready. ``stop`` makes all of them call their breakpoint at one moment."""

    def __init__(self, folder: str, kind: str, stop: str, ranks: int, terminal: Terminal | None) -> None:
        self.ranks = ranks
        self.processes: list[subprocess.Popen[bytes]] = []
        self._tell: list[int] = []
        self._report, report = os.pipe()
        self._heard = b""
        self._log = open(f"{folder}/log", "ab")  # noqa: SIM115
        port = free_port()
        for rank in range(ranks):
            control, tell = os.pipe()
            self._tell.append(tell)
            environ = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "BENCH_CONTROL": str(control),
                "BENCH_REPORT": str(report),
            }
            theirs: Any = terminal.slave if terminal is not None and rank == 0 else None
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, kind, stop],
                    stdin=subprocess.DEVNULL if theirs is None else theirs,
                    stdout=self._log if theirs is None else theirs,
                    stderr=self._log if theirs is None else theirs,
                    pass_fds=(control, report),
                    env=environ,
                )
            )
            os.close(control)
        os.close(report)
        self._lines(ranks)

    def _lines(self, count: int) -> list[str]:
        until = time.monotonic() + DEADLINE
        while self._heard.count(b"\n") < count:
            if not select.select([self._report], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"the ranks said only {self._heard!r}")
            chunk = os.read(self._report, 65536)
            if not chunk:
                self._log.flush()
                raise RuntimeError("the ranks have ended: " + Path(self._log.name).read_text()[-2000:])
            self._heard += chunk
        lines = self._heard.split(b"\n", count)
        self._heard = lines.pop()
        return [line.decode() for line in lines]

    def stop(self) -> None:
        moment = time.time() + 0.15
        for tell in self._tell:
            os.write(tell, f"{moment}\n".encode())

    def last(self) -> float:
        """When the last rank called its breakpoint or resumed, by its own report."""
        return max(map(float, self._lines(self.ranks)))

    def close(self) -> None:
        for tell in self._tell:
            with contextlib.suppress(OSError):
                os.close(tell)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        os.close(self._report)
        self._log.close()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def childless(pid: int, seconds: float) -> bool:
    """Whether the last running child of a process ends within a time limit."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            names = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
            states = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[0] for one in names]
            if set(states) <= {"Z"}:
                return True
        except OSError:  # one of them has just ended
            pass
        time.sleep(0.02)
    return False


def child(python: str, code: str, *words: str) -> Any:
    """Run a part in a process of its own, and return its results, which are JSON on its last line."""
    # The environments of other Pythons do not have the project.
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    environ["LOCAL_WORLD_SIZE"] = "1"
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ, timeout=600
    )
    if done.returncode:
        sys.exit(f"{python} ended with {done.returncode}:\n{done.stdout.decode()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# ---- parts


def calls(quick: bool) -> None:
    pythons = {f"{sys.version_info[0]}.{sys.version_info[1]}": (sys.executable, "torch")}
    for version in OTHERS:
        python = ROOT / f".venv-{version}" / "bin" / "python"
        if python.exists() and version not in pythons:
            pythons[version] = (str(python), "plain")
    found = {
        version: child(python, CALLS, "15" if quick else "60", kind) for version, (python, kind) in pythons.items()
    }
    head("a call that does not stop, ns", *(f"{version} {what}" for version in found for what in ("median", "least")))
    for name in next(iter(found.values())):
        cells = []
        for version in found:
            times = found[version].get(name)
            cells += [statistics.median(times), min(times)] if times else [None, None]
        row(name, cells)
    ours = found[next(iter(found))]
    for name in ("breakpoint(when=x > 3)", "breakpoint(when='x > 3')"):
        for peer in ("if x > 3: pdb.set_trace()", "dist.breakpoint(0, skip=10**9)"):
            print(f"{name} / {peer}: {statistics.median(ours[name]) / statistics.median(ours[peer]):.3g}")


def step(quick: bool) -> None:
    found = child(sys.executable, STEP, "5" if quick else "20", "1.2")
    blocks = found["blocks"]
    head("a training step, ms", "median", "best block", "CPU", "best block")
    for name, pairs in blocks.items():
        wall, cpu = ([pair[which] for pair in pairs] for which in (0, 1))
        row(name, [statistics.median(wall), min(wall), statistics.median(cpu), min(cpu)])
    for over, under in (
        ("an agent", "nothing"),
        ("an agent and a breakpoint", "if loss > 1e9: …"),
        ("nothing, again", "nothing"),
    ):
        for which, what in ((0, "wall"), (1, "CPU")):
            pairs = list(zip(blocks[over], blocks[under], strict=True))
            ratios = [a[which] / b[which] for a, b in pairs]
            low, _, high = statistics.quantiles(ratios, n=4)
            best = min(a[which] for a, _ in pairs) / min(b[which] for _, b in pairs)
            label = "noise" if over == "nothing, again" else f"{over} / {under}"
            print(
                f"{label}, {what}: {statistics.median(ratios):.4f}, half of the {len(ratios)} pairs of blocks "
                f"{low:.4f} to {high:.4f}, best blocks {best:.4f}"
            )
    print(f"CPU of an idle agent's thread: {statistics.median(found['idle']) * 1e6:.0f} µs a second")


def waiting(folder: str, kind: str, ranks: int, stops: int) -> Times:
    """A console that is open before the ranks stop: the first stop, and those after a `c`."""
    terminal = Terminal()
    job = Job(folder, kind, "ours", ranks, None)
    console = subprocess.Popen(
        [str(BIN / "breakranks"), "console"], stdin=terminal.slave, stdout=terminal.slave, stderr=terminal.slave
    )
    found: Times = {}
    try:
        terminal.until("no rank has stopped yet")
        for turn in range(stops):
            job.stop()
            seen = terminal.until(r"\[0\] > ")
            found.setdefault("to prompt, after a c" if turn else "to prompt", []).append((seen - job.last()) * 1000)
            typed = time.time()
            terminal.type("c")
            found.setdefault("from c", []).append((job.last() - typed) * 1000)
            time.sleep(0.4)
            terminal.forget()
    finally:
        console.kill()
        console.wait()
        job.close()
        terminal.close()
    return found


def opened(folder: str, kind: str, stop: str, ranks: int, stops: int) -> Times:
    """A prompt in the terminal of rank 0: the console that breakranks opens there, or pdb."""
    terminal = Terminal()
    job = Job(folder, kind, stop, ranks, terminal)
    found: Times = {"to prompt": [], "from c": []}
    try:
        for _ in range(stops):
            job.stop()
            seen = terminal.until(r"\[0\] > " if stop == "ours" else r"\(Pdb\) ")
            found["to prompt"].append((seen - job.last()) * 1000)
            typed = time.time()
            terminal.type("c")
            found["from c"].append((job.last() - typed) * 1000)
            time.sleep(0.3)
            if not childless(job.processes[0].pid, 2.0):  # the console exits, and the next stop opens another one
                found.setdefault("stayed", []).append(1.0)
                terminal.type("go")
                terminal.type("q")
                break
            terminal.forget()
    finally:
        job.close()
        terminal.close()
    return found


def prompt(quick: bool) -> None:
    rounds, stops = (2, 3) if quick else (5, 5)
    tables: dict[str, dict[str, list[float]]] = {}

    def add(name: str, times: Times) -> None:
        for what, values in times.items():
            tables.setdefault(what, {}).setdefault(name, []).extend(values)

    with tempfile.TemporaryDirectory(prefix="breakranks-bench-") as folder:
        private(folder)
        for _ in range(rounds):
            for kind, ranks in (("plain", 8), ("torch", 4)):
                add(f"{ranks} {kind} ranks, console waits", waiting(folder, kind, ranks, stops))
                add(f"{ranks} {kind} ranks, console opened by rank 0", opened(folder, kind, "ours", ranks, stops))
            add("4 torch ranks, dist.breakpoint", opened(folder, "torch", "dist", 4, stops))
    stayed = tables.pop("stayed", {})
    heads = {
        "to prompt": "last arrival to the prompt, ms",
        "to prompt, after a c": "the same, later stops of one console, ms",
        "from c": "c at rank 0 to the last rank going on, ms",
    }
    for what, words in heads.items():
        head(words, "median", "least", "most", "of")
        for name, times in tables[what].items():
            row(name, [statistics.median(times), min(times), max(times), len(times)])
    for what, words in (("to prompt", "to the prompt"), ("from c", "c to going on")):
        peer = statistics.median(tables[what]["4 torch ranks, dist.breakpoint"])
        for name, times in tables[what].items():
            if "console" in name and "torch" in name:
                ratio = statistics.median(times) / peer
                print(f"{words}, {name.split(', ', 1)[1]} / dist.breakpoint: {ratio:.1f}")
    for name, times in stayed.items():
        print(f"{name}: in {len(times)} jobs it stayed at its prompt after everyone had gone on")


def fold(quick: bool) -> None:
    from breakranks.cli.console_view import TextView
    from breakranks.console.commands import Console
    from breakranks.console.console_options import ConsoleOptions
    from breakranks.console.debug_session import DebugSession
    from breakranks.show.terminal_text import TerminalStyle

    questions = {
        "all p number, 8 ranks": "all p number",
        "rank 0 p number": "rank 0 p number",
        "all p tensor of 1e6, 8 ranks": "all p tensor",
        "rank 0 p tensor of 1e6": "rank 0 p tensor",
    }
    times: dict[str, list[float]] = {name: [] for name in questions}
    with tempfile.TemporaryDirectory(prefix="breakranks-bench-") as folder:
        private(folder)
        job = Job(folder, "tensors", "ours", 8, None)
        session = DebugSession()
        try:
            job.stop()
            job.last()
            session.scan()
            assert session.wait(lambda: len(session.stopped) == 8, 10), session.stopped
            console = Console(session, ConsoleOptions(interactive=True))
            view = TextView(session, TerminalStyle())
            shown: dict[str, str] = {}
            for _ in range(2 if quick else 50):
                for name, line in questions.items():
                    text = io.StringIO()
                    began = time.perf_counter()
                    with contextlib.redirect_stdout(text):
                        for outcome in console.execute(line):
                            view.show(outcome, line, console.focus)
                    times[name].append((time.perf_counter() - began) * 1000)
                    shown[name] = text.getvalue()
            assert all(shown.values()), shown
        finally:
            session.close(armed=False)
            job.close()
    head("line to answer, ms", "median", "least", "most")
    for name, found in times.items():
        row(name, [statistics.median(found), min(found), max(found)])
    for what, many, one in (("number", *list(times)[:2]), ("tensor", *list(times)[2:])):
        print(f"eight ranks / one, {what}: {statistics.median(times[many]) / statistics.median(times[one]):.1f}")


# ---- the page


def head(name: str, *columns: str) -> None:
    print(f"\n{name:50}" + "".join(f"{column:>13}" for column in columns), flush=True)


def row(name: str, cells: list[float | None]) -> None:
    texts = ("–" if cell is None else f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}" for cell in cells)
    print(f"  {name:48}" + "".join(f"{text:>13}" for text in texts), flush=True)


def private(folder: str) -> None:
    """Use private folders for agents and history, not those of the user."""
    run = f"{folder}/run"
    os.makedirs(run, mode=0o700)
    os.environ |= {"BREAKRANKS_RUN": run, "XDG_STATE_HOME": f"{folder}/state", "TERM": "dumb"}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default=",".join(PARTS), help="parts, with commas between: " + ", ".join(PARTS))
    options.add_argument("--quick", action="store_true", help="fewer rounds")
    chosen = options.parse_args()
    names = chosen.only.split(",")
    if unknown := set(names) - set(PARTS):
        options.error(f"there is no part {', '.join(sorted(unknown))}")
    for name in ("RANK", "WORLD_SIZE", "BREAKRANKS_RANKS", "BREAKRANKS_WAIT", "BREAKRANKS_CONSOLE"):
        os.environ.pop(name, None)
    parts: dict[str, Callable[[bool], None]] = {"calls": calls, "step": step, "prompt": prompt, "fold": fold}
    with tempfile.TemporaryDirectory(prefix="breakranks-bench-") as folder:
        private(folder)
        for name in PARTS:
            if name in names:
                before = os.getloadavg()[0]
                parts[name](chosen.quick)
                print(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
