"""Injecting code into processes with torch: ranks that hang in a barrier, and one that trains undisturbed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from breakranks.inject import run_in_process

from .running import BIN, PYTHON, Launch, wait_for

pytest.importorskip("torch")

LONG = 90.0

HANGS = """
import os, time, torch.distributed as dist
dist.init_process_group('gloo')
open(f'rank.{os.getpid()}', 'w').close()
if dist.get_rank() == 0: time.sleep(1000)
dist.barrier()
"""
TRAINS = """
import hashlib, os, torch
from torch.utils.data import DataLoader
torch.manual_seed(0)
torch.set_num_threads(2)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
digest = hashlib.sha256()
print('up', flush=True)
for epoch in range(120):
    if epoch % 30 == 0:
        batches = list(DataLoader(torch.arange(64.0).reshape(8, 8).sin(), batch_size=2, num_workers=1))
    while epoch == 60 and not os.path.exists('enough'):
        model(batches[0]).detach()
    for batch in batches:
        loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    digest.update(loss.detach().numpy().tobytes())
print(digest.hexdigest())
"""


def threads(pids: list[int]) -> dict[int, list[str]]:
    return {pid: sorted(os.listdir(f"/proc/{pid}/task")) for pid in pids}


def settled(pids: list[int]) -> dict[int, list[str]]:
    """The threads of the ranks, once all but the sleeping one are in the barrier, where torch starts threads."""

    def there(pid: int) -> bool:
        shown = subprocess.run(
            [str(BIN / "py-spy"), "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, timeout=LONG
        )
        return b" barrier (" in shown.stdout

    wait_for("the ranks to be in the barrier", lambda: sum(map(there, pids)) == len(pids) - 1)
    seen = [threads(pids)]
    while len(seen) < 10 or any(one != seen[-1] for one in seen[-10:]):
        time.sleep(0.05)
        seen.append(threads(pids))
    return seen[-1]


def test_ranks_in_a_barrier_answer_again_and_again(tmp_path: Path) -> None:
    with Launch(tmp_path) as launch:
        ranks = launch.by_hand(3, "-c", HANGS, env={"TORCH_FR_BUFFER_SIZE": "2000"})
        pids = launch.ready("rank", 3)
        before = settled(pids)
        for _ in range(10):
            found = run_in_process.ask_many(pids, "echo", {"word": 1}, deadline=LONG)
            for pid, answer in found.items():
                assert isinstance(answer, bytes), answer
                assert json.loads(answer)["pid"] == pid
        assert [rank.poll() for rank in ranks] == [None] * 3
        wait_for("no thread of ours to be left", lambda: threads(pids) == before)


def test_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    untouched, touched = tmp_path / "untouched", tmp_path / "touched"
    for folder in (untouched, touched):
        folder.mkdir()
    (untouched / "enough").touch()
    with Launch(untouched) as quiet, Launch(touched) as asked:
        first = quiet.start(PYTHON, "-c", TRAINS, env={"OMP_NUM_THREADS": "2"})
        process = asked.start(PYTHON, "-c", TRAINS, env={"OMP_NUM_THREADS": "2"})
        wait_for("it trains", lambda: "up" in asked.output)
        answered, end = 0, time.monotonic() + LONG
        while process.poll() is None:
            try:
                answered += bool(run_in_process.ask(process.pid, "echo", deadline=LONG))
            except run_in_process.ProcessGone:
                break
            except run_in_process.InjectRefused:
                pass
            if answered > 5 or time.monotonic() > end:
                (touched / "enough").touch()
        assert (process.wait(120), first.wait(120)) == (0, 0), asked.output
        assert asked.output == quiet.output
        assert answered > 5
