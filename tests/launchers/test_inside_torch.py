"""Asking torch's processes: ranks that hang in a barrier, and one that trains, which must not notice."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakranks.inside import door

from .running import free_port, wait_for

pytest.importorskip("torch")

LONG = 90.0

HANGS = """
import os, time, torch.distributed as dist
dist.init_process_group('gloo')
os.write(1, b'up\\n')
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
os.write(1, b'up\\n')
for epoch in range(120):
    if epoch % 30 == 0:
        batches = list(DataLoader(torch.arange(64.0).reshape(8, 8).sin(), batch_size=2, num_workers=1))
    for batch in batches:
        loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    digest.update(loss.detach().numpy().tobytes())
print(digest.hexdigest())
"""


@contextlib.contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "TORCH_FR_BUFFER_SIZE": "2000"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def threads(pids: list[int]) -> dict[int, list[str]]:
    return {pid: sorted(os.listdir(f"/proc/{pid}/task")) for pid in pids}


def settled(pids: list[int]) -> dict[int, list[str]]:
    """The threads of ranks, once all are in the barrier but the one that sleeps: torch starts some of its own there."""
    py_spy = str(Path(sys.executable).parent / "py-spy")

    def there(pid: int) -> bool:
        shown = subprocess.run([py_spy, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, timeout=LONG)
        return b" barrier (" in shown.stdout

    wait_for("the ranks to be in the barrier", lambda: sum(map(there, pids)) == len(pids) - 1)
    seen = [threads(pids)]
    while len(seen) < 10 or any(one != seen[-1] for one in seen[-10:]):
        time.sleep(0.05)
        seen.append(threads(pids))
    return seen[-1]


def test_ranks_in_a_barrier_answer_again_and_again(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    torchrun = str(Path(sys.executable).parent / "torchrun")
    with started(torchrun, "--nproc-per-node", "3", "--master-port", str(free_port()), str(script)) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline() == "up\n"
        pids = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        before = settled(pids)
        for _ in range(10):
            found = door.ask_many(pids, "echo", {"word": 1}, deadline=LONG)
            for pid, answer in found.items():
                assert isinstance(answer, bytes), answer
                assert json.loads(answer)["pid"] == pid
        assert process.poll() is None
        wait_for("no thread of ours to be left", lambda: threads(pids) == before)


def test_training_goes_on_bit_for_bit() -> None:
    with started(sys.executable, "-c", TRAINS) as untouched:
        expected, _ = untouched.communicate(timeout=120)
        assert untouched.returncode == 0
    with started(sys.executable, "-c", TRAINS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        answered = 0
        while process.poll() is None:
            try:
                answered += bool(door.ask(process.pid, "echo", deadline=LONG))
            except door.Gone:
                break
            except door.Refused:
                pass
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert "up\n" + rest == expected
        assert answered > 5
