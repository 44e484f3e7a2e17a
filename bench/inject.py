"""Stress: ask real jobs hundreds of times while they work or hang, and see that they do not notice.

    .venv/bin/python bench/inject.py --count 200

Each row is a job of real processes. Busy jobs must print, bit for bit, the output of a run without injections.
``killed`` is the same, with the injector killed by SIGKILL at random moments.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from breakranks.inject import run_in_process

HERE = Path(__file__).resolve().parent

TORCH = """
import hashlib, importlib, os, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
torch.set_num_threads(2)
class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.full((32,), float(i)).sin()
class Churn(threading.Thread):
    def run(self):
        while not done.is_set():
            keep = [bytearray(1000 * (i % 50)) for i in range(100)]
            threading.Thread(target=time.sleep, args=(0.001,)).start()
            time.sleep(0.002)
done = threading.Event()
Churn(daemon=True).start()
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
digest = hashlib.sha256()
print('up', flush=True)
for epoch in range(int(sys.argv[1])):
    if epoch % 20 == 0:
        loader = DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context='fork')
        batches = list(loader)
        for name in ('decimal', 'email.message', 'xml.dom.minidom', 'sqlite3', 'unittest.mock'):
            sys.modules.pop(name, None)
            importlib.import_module(name)
    for batch in batches:
        loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    digest.update(loss.detach().numpy().tobytes())
    digest.update(str(sum(float(x) ** 0.5 for x in batches[0][:, 0].abs())).encode())
done.set()
print(digest.hexdigest(), flush=True)
"""
GLOO = """
import time, torch.distributed as dist
dist.init_process_group('gloo')
print('up', flush=True)
if dist.get_rank() == 0: time.sleep(100000)
dist.barrier()
"""
PLAIN = """
import hashlib, math, sys, re, json, threading
print('up', flush=True)
digest, x = hashlib.sha256(), 0.1
for turn in range(int(sys.argv[1])):
    x = math.fmod(x * 3.9 * (1.0 - x) + math.sin(turn) * 1e-3, 1.0)
    items = {str(i): [x + i, 'text' * (i % 9)] for i in range(60)}
    digest.update(json.dumps(items).encode())
    digest.update(re.sub('t+', str(x), 'tatter' * 5).encode())
    if turn % 500 == 0:
        t = threading.Thread(target=digest.update, args=(b'x',)); t.start(); t.join()
print(digest.hexdigest(), flush=True)
"""
ASKER = "import sys\nfrom breakranks.inject import run_in_process\nwhile True: run_in_process.ask_many([{}], 'echo')"


class Tally:
    """The counts of one row."""

    def __init__(self) -> None:
        self.ok = self.refused = self.late = self.failed = self.gone = 0
        self.times: list[float] = []
        self.said: set[str] = set()

    def add(self, answer: bytes | run_in_process.InjectError) -> None:
        if isinstance(answer, bytes):
            self.ok += 1
            return
        self.said.add(answer.message[:150])
        self.refused += isinstance(answer, run_in_process.InjectRefused)
        self.late += isinstance(answer, run_in_process.InjectTimeout)
        self.failed += isinstance(answer, run_in_process.InjectedCodeFailed)
        self.gone += isinstance(answer, run_in_process.ProcessGone)

    def row(self, name: str, crashes: int, note: str = "") -> str:
        times = sorted(self.times) or [0.0]
        counts = (
            self.ok + self.refused + self.late + self.failed,
            self.ok,
            self.refused,
            self.late,
            self.failed,
            crashes,
        )
        numbers = "".join(f"{count:9}" for count in counts)
        return f"{name:34}{numbers}{statistics.median(times):9.1f}{times[-1]:9.1f}  {note}"


@contextlib.contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "TORCH_FR_BUFFER_SIZE": "2000", "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def asked(pids: list[int], tally: Tally) -> None:
    began = time.monotonic()
    answers = run_in_process.ask_many(pids, "echo", deadline=5)
    if not any(isinstance(answer, run_in_process.ProcessGone) for answer in answers.values()):
        tally.times.append((time.monotonic() - began) * 1000)
        for answer in answers.values():
            tally.add(answer)


def killed(pids: list[int], tally: Tally, moments: random.Random) -> None:
    words = [sys.executable, "-c", ASKER.format(",".join(map(str, pids)))]
    asker = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    time.sleep(moments.uniform(0.08, 0.35))
    asker.kill()
    asker.wait()
    tally.ok += 1


def busy(name: str, python: str, code: str, turns: int, count: int, kill: bool) -> str:
    """A job that computes. Its output must be that of a run without injections, and its exit status 0."""
    tally, moments = Tally(), random.Random(5)
    crashes = wrong = runs = 0
    with started(python, "-c", code, str(turns)) as process:
        expected, errors = process.communicate()
        assert process.returncode == 0, errors
    while tally.ok + tally.refused + tally.late < count and runs < 400:
        runs += 1
        with started(python, "-c", code, str(turns)) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            while process.poll() is None and tally.ok + tally.refused + tally.late < count:
                if kill:
                    killed([process.pid], tally, moments)
                else:
                    asked([process.pid], tally)
            rest, errors = process.communicate(timeout=300)
            if process.returncode != 0:
                crashes += 1
                tally.said.add(f"exit {process.returncode}: {errors[-300:]}")
            else:
                wrong += first + rest != expected
    return tally.row(name, crashes, f"{runs} runs, {wrong} wrong") + "".join(f"\n      {one}" for one in tally.said)


def barrier(count: int, kill: bool) -> str:
    """Four ranks that hang in a barrier of gloo."""
    tally, moments = Tally(), random.Random(6)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.py"
        script.write_text(GLOO)
        torchrun = str(Path(sys.executable).parent / "torchrun")
        with started(torchrun, "--nproc-per-node", "4", "--master-port", "29791", str(script)) as process:
            assert process.stdout is not None
            for _ in range(4):
                process.stdout.readline()
            pids = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
            rounds = 0
            while rounds * (1 if kill else len(pids)) < count:
                rounds += 1
                killed(pids, tally, moments) if kill else asked(pids, tally)
            crashes = sum(not Path(f"/proc/{pid}").exists() for pid in pids)
            note = "times are of all four"
    return tally.row("gloo barrier" + " killed" * kill, crashes, note) + "".join(f"\n      {one}" for one in tally.said)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=200, help="questions a row")
    options.add_argument("--only", default="", help="rows whose name contains this")
    chosen = options.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    others = {
        version: found[-1]
        for version in ("3.10", "3.12", "3.13")
        if (found := sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))))
    }
    heads = ("asked", "ok", "refused", "late", "failed", "crashes", "median", "most ms")
    print(" " * 34 + "".join(f"{head:>9}" for head in heads))
    rows = []
    for kill in (False, True):
        word = " killed" if kill else ""
        rows.append(
            (
                "torch 3.11" + word,
                lambda kill=kill, word=word: busy(
                    "busy torch job, 3.11" + word, sys.executable, TORCH, 400, chosen.count, kill
                ),
            )
        )
        rows.append(("gloo" + word, lambda kill=kill: barrier(chosen.count, kill)))
        for version, python in others.items():
            rows.append(
                (
                    f"plain {version}{word}",
                    lambda version=version, python=python, kill=kill, word=word: busy(
                        f"busy plain job, {version}{word}", python, PLAIN, 12000, chosen.count, kill
                    ),
                )
            )
    for name, row in rows:
        if chosen.only in name:
            print(row(), flush=True)


if __name__ == "__main__":
    main()
