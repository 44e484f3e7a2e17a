"""One variable of a torch rank that hangs in a barrier: the time until each tool prints it, and which tools can.

    .venv/bin/python bench/attach.py                         both parts: about five minutes
    .venv/bin/python bench/attach.py --only answer --rounds 3
    .venv/bin/python bench/attach.py --peers FOLDER          a venv with madbg and debugpy, created if it is missing

answer   The time from the start of the command to the value of a local variable of rank 0, which waits in a barrier of
         gloo for a missing rank. Each round has a job of its own. All tools read the same process in turn, those that
         change most last. gdb calls PyRun_SimpleString, as pyrasite does; madbg gets a terminal; debugpy is driven by
         the Debug Adapter Protocol: attach, threads, pause, stackTrace, evaluate. A tool without an answer after
         ``--patience`` seconds has none. The exit of the job is reported as well.
pause    The longest pause of a Python loop that reads the clock, while a tool attaches and detaches, and without any
         tool, since the machine causes pauses of its own. For an attach that stops the loop, reads and resumes it, the
         time at the prompt is intended, and not a pause.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import re
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
BREAKRANKS = str(BIN / "breakranks")
PARTS = ("answer", "pause")
SECRET = 424242

HANGS = f"""
import os, sys, torch.distributed as dist, time
dist.init_process_group('gloo')
def hang():
    secret = {SECRET}
    os.write(1, b'up\\n')
    if dist.get_rank() == 1:
        while not os.path.exists(sys.argv[1]): time.sleep(0.1)
    dist.barrier()
    return secret
assert hang() == {SECRET}
os.write(1, b'done\\n')
dist.destroy_process_group()
"""

CLOCK = """
import os, sys, time
def loop(until):
    longest, last = 0, time.perf_counter_ns()
    turns = 0
    while True:
        now = time.perf_counter_ns()
        if now - last > longest: longest = now - last
        last = now
        turns += 1
        if not turns % 2000 and os.access(until, os.F_OK): return longest
number = 0
os.write(1, b'up\\n')
for line in sys.stdin:
    number += 1
    os.write(1, b'%d\\n' % loop(line.strip()))
"""

# What gdb does for pyrasite. It runs in the waiting thread, on top of its frames.
GDB_CODE = "; ".join(
    (
        "import sys",
        "up = lambda f: f if f.f_code.co_name == 'hang' else up(f.f_back)",
        "open('{out}', 'w').write(repr(up(sys._getframe()).f_locals['secret']))",
    )
)


class Job:
    """Two ranks; the first hangs in a barrier until ``end``."""

    def __init__(self, folder: str, path: str) -> None:
        self.folder = folder
        self.came: dict[str, str] = {}  # by tool without an answer: the step that it reached
        self.ranks: list[subprocess.Popen[bytes]] = []
        port = free_port()
        for rank in (0, 1):
            environ = {
                **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONPATH": path,
            }  # fmt: skip
            self.ranks.append(
                subprocess.Popen(
                    [sys.executable, "-c", HANGS, f"{folder}/end"],
                    stdout=subprocess.PIPE, stderr=open(f"{folder}/err.{rank}", "wb"), env=environ,  # noqa: SIM115
                )
            )  # fmt: skip
        for rank in self.ranks:
            assert rank.stdout is not None and rank.stdout.readline() == b"up\n"
        time.sleep(1.0)  # it prints this just before

    @property
    def pid(self) -> int:
        return self.ranks[0].pid

    def end(self) -> str:
        """Let the job end, and return how it ended."""
        Path(self.folder, "end").touch()
        try:
            return "ends well" if all(rank.wait(15) == 0 for rank in self.ranks) else "ended with an error"
        except subprocess.TimeoutExpired:
            return "does not end any more"
        finally:
            self.kill()

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ---- the tools: each returns whether it printed the value within ``limit`` seconds


def said(words: list[str], patience: float) -> bool:
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return False
    return str(SECRET).encode() in done.stdout


def by_eval(job: Job, peers: Path, patience: float) -> bool:
    return said([BREAKRANKS, "eval", f"pid:{job.pid}", "--frame", "hang", "secret"], patience)


def by_attach(job: Job, peers: Path, patience: float) -> bool:
    """As a user does without preparation: go up to the frame, print the variable."""
    return said([BREAKRANKS, "attach", f"pid:{job.pid}", "-c", "up", "-c", "up", "-c", "p secret"], patience)


def by_gdb(job: Job, peers: Path, patience: float) -> bool:
    return _gdb(job, patience, [])


def by_gdb_tuned(job: Job, peers: Path, patience: float) -> bool:
    """Without the symbols of torch, which take most of the time."""
    return _gdb(
        job, patience, ["-iex", "set auto-solib-add off", "-ex", "sharedlibrary libc", "-ex", "sharedlibrary libpython"]
    )


def _gdb(job: Job, patience: float, before: list[str]) -> bool:
    out = f"{job.folder}/gdb"
    code = GDB_CODE.format(out=out)
    calls = [
        "call (int)PyGILState_Ensure()",
        f'call (int)PyRun_SimpleString("{code}")',
        "call (void)PyGILState_Release($1)",
    ]
    words = ["gdb", "--batch", "-nx", *before[:2], "-p", str(job.pid), *before[2:]]
    for call in calls:
        words += ["-ex", call]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience)
    found = os.path.exists(out) and Path(out).read_text() == str(SECRET)
    with contextlib.suppress(OSError):
        os.remove(out)
    return found


def by_madbg(job: Job, peers: Path, patience: float) -> bool:
    words = [str(peers / "bin" / "madbg"), "attach", str(job.pid), "--port", str(free_port())]
    pid, master = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    text, typed, end = "", False, time.monotonic() + patience
    try:
        while time.monotonic() < end:
            if not select.select([master], [], [], 0.1)[0]:
                continue
            try:
                text += os.read(master, 65536).decode(errors="replace")
            except OSError:
                return False
            if not typed and re.search(r"ipdb>|\(Pdb\)", text):
                typed = True
                os.write(master, b"up\nup\np secret\n")
            if typed and str(SECRET) in text:
                return True
        return False
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(master)


class Dap:
    """A minimal client."""

    def __init__(self, port: int, end: float) -> None:
        self.end = end
        self.number = 0
        self.seen: list[dict[str, Any]] = []
        self.heard = b""
        while True:
            try:
                self.link = socket.create_connection(("127.0.0.1", port), 1)
                return
            except OSError:
                if time.monotonic() > end:
                    raise TimeoutError from None
                time.sleep(0.02)

    def send(self, command: str, **arguments: Any) -> int:
        self.number += 1
        text = json.dumps({"seq": self.number, "type": "request", "command": command, "arguments": arguments}).encode()
        self.link.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        return self.number

    def until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            for one in self.seen:
                if fits(one):
                    return one
            self.link.settimeout(max(0.01, self.end - time.monotonic()))
            self.heard += self.link.recv(65536) or self._closed()
            while (found := re.match(rb"Content-Length: (\d+)\r\n\r\n", self.heard)) is not None:
                if len(self.heard) < found.end() + int(found[1]):
                    break
                self.seen.append(json.loads(self.heard[found.end() : found.end() + int(found[1])]))
                self.heard = self.heard[found.end() + int(found[1]) :]

    def _closed(self) -> bytes:
        raise TimeoutError

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        number = self.send(command, **arguments)
        return self.until(lambda one: one.get("type") == "response" and one["request_seq"] == number)


def by_debugpy(job: Job, peers: Path, patience: float) -> bool:
    began, port = time.monotonic(), free_port()
    end = began + patience
    words = [str(peers / "bin" / "python"), "-m", "debugpy", "--listen", f"127.0.0.1:{port}", "--pid", str(job.pid)]
    starter = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        dap = Dap(port, end)
        job.came["debugpy --pid"] = "listens, no stack"
        dap.ask("initialize", adapterID="bench", pathFormat="path", linesStartAt1=True, columnsStartAt1=True)
        dap.send("attach", justMyCode=False)
        dap.until(lambda one: one.get("event") == "initialized")
        dap.ask("configurationDone")
        thread = dap.ask("threads")["body"]["threads"][0]["id"]
        job.came["debugpy --pid"] = f"threads are told after {1000 * (time.monotonic() - began):.0f} ms, no stack"
        dap.ask("pause", threadId=thread)
        dap.until(lambda one: one.get("event") == "stopped")
        for frame in dap.ask("stackTrace", threadId=thread)["body"]["stackFrames"]:
            if frame["name"] == "hang":
                found = dap.ask("evaluate", expression="secret", frameId=frame["id"])
                return str(SECRET) in str(found.get("body", {}).get("result"))
        return False
    except (TimeoutError, OSError, KeyError, IndexError):
        return False
    finally:
        starter.kill()
        starter.wait()


ASKERS: dict[str, Callable[[Job, Path, float], bool]] = {
    "breakranks eval": by_eval,
    "breakranks attach -c": by_attach,
    "gdb, torch's symbols not read": by_gdb_tuned,
    "gdb": by_gdb,
    "madbg attach": by_madbg,
    "debugpy --pid": by_debugpy,
}


def answer(rounds: int, peers: Path, patience: float) -> None:
    times: dict[str, list[float | None]] = {name: [] for name in ASKERS}
    after: dict[str, list[str]] = {name: [] for name in ASKERS}
    path = str(next(peers.glob("lib/python3*/site-packages")))
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="breakranks-bench-") as folder:
            job = Job(folder, path)
            try:
                for name, ask in ASKERS.items():
                    if not _usable(name, peers):
                        continue
                    began = time.monotonic()
                    found = ask(job, peers, patience)
                    times[name].append(time.monotonic() - began if found else None)
                    alive = job.ranks[0].poll() is None
                    after[name].append(("" if found else job.came.get(name, "")) if alive else "the rank has died")
                    if not alive:
                        break
                print(f"the job, after all of them: {job.end()}", flush=True)
            finally:
                job.kill()
    head("one variable of a hung rank, ms", "median", "least", "most", "answers")
    medians = {}
    for name, found in times.items():
        good = [1000 * one for one in found if one is not None]
        if good:
            medians[name] = statistics.median(good)
        cells = [statistics.median(good), min(good), max(good)] if good else [None] * 3
        note = next((text for text in after[name] if text), "")
        print(f"  {name:<34}" + "".join(cell(one) for one in cells) + f"{len(good):>7} of {len(found)}  {note}")
    for name in medians:
        if not name.startswith("breakranks"):
            print(f"breakranks eval / {name}: {medians['breakranks eval'] / medians[name]:.3g}")


def _usable(name: str, peers: Path) -> bool:
    return shutil.which("gdb") is not None if name.startswith("gdb") else True


# ---- the longest pause


def pause(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="breakranks-bench-") as folder, clock() as process:
        target = f"pid:{process.pid}"
        ways = {
            "no tool": [],
            "breakranks eval": [BREAKRANKS, "eval", target, "number"],
            "breakranks attach --no-stop": [BREAKRANKS, "attach", target, "--no-stop", "-c", "p number"],
            "breakranks attach: stop, p, go": [BREAKRANKS, "attach", target, "-c", "p turns", "-c", "go"],
            "py-spy dump": [str(BIN / "py-spy"), "dump", "--pid", str(process.pid)],
            "gdb -batch -ex bt": ["gdb", "--batch", "-nx", "-p", str(process.pid), "-ex", "bt"],
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds):
            for name, words in ways.items():
                end = Path(folder, f"{turn}-{len(found[name])}-{name.replace(' ', '')}")
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(f"{end}\n".encode())
                process.stdin.flush()
                time.sleep(0.3)
                if words:
                    subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
                time.sleep(1.0)  # until the tool has detached
                end.touch()
                found[name].append(int(process.stdout.readline()) / 1e6)
    head("longest pause of a busy loop, ms", "median", "least", "most")
    for name, times in found.items():
        print(f"  {name:<34}" + "".join(cell(one) for one in (statistics.median(times), min(times), max(times))))


@contextlib.contextmanager
def clock() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", CLOCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        yield process
    finally:
        process.kill()
        process.wait()


# ---- figures


def head(what: str, *names: str) -> None:
    print(f"\n{what:<36}" + "".join(f"{name:>10}" for name in names))


def cell(value: float | None) -> str:
    if value is None:
        return f"{'–':>10}"
    return f"{value:>10,.0f}" if value >= 100 else f"{value:>10.1f}"


def made(peers: Path) -> Path:
    """Make a venv with the peers."""
    if not (peers / "bin" / "madbg").exists():
        subprocess.run([sys.executable, "-m", "venv", str(peers)], check=True)
        subprocess.run([str(peers / "bin" / "pip"), "install", "-q", "madbg", "debugpy"], check=True)
    return peers


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default=",".join(PARTS), help=f"parts, with commas: {', '.join(PARTS)}")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--patience", type=float, default=30.0, help="seconds that everybody has for an answer (30)")
    options.add_argument(
        "--peers", type=Path, default=None, help="a venv that has madbg and debugpy, or is to have them"
    )
    chosen = options.parse_args()
    parts = chosen.only.split(",")
    if unknown := set(parts) - set(PARTS):
        options.error(f"no such part: {', '.join(unknown)}")
    print(f"load before: {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory(prefix="breakranks-peers-") as folder:
        if "answer" in parts:
            answer(chosen.rounds, made(chosen.peers or Path(folder)), chosen.patience)
        if "pause" in parts:
            pause(chosen.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
