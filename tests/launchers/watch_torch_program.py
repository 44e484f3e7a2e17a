"""A small training of gloo that does, from step 50 on, what its argument says. Its group gives up after 180 seconds."""

from __future__ import annotations

import datetime
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER = Path.cwd()
FIRST_ODD_STEP = 50
TIMEOUT_SECONDS = 180.0
SLOW_SECONDS = 9.0


class Prefetcher:
    filled = False


def has_batch(prefetcher: Prefetcher) -> bool:
    return prefetcher.filled


def is_closed(prefetcher: Prefetcher) -> bool:
    return prefetcher.filled is None


def wait_for_batch(prefetcher: Prefetcher) -> None:
    """A loop over a few lines, in which nothing ever changes."""
    while True:
        if has_batch(prefetcher):
            break
        if is_closed(prefetcher):
            break


def wait_for_quota() -> None:
    while True:
        time.sleep(600)


def validate(weights: torch.Tensor) -> torch.Tensor:
    """A long step of one rank. No counter tells how far it is."""
    until = time.monotonic() + SLOW_SECONDS
    while time.monotonic() < until:
        weights = torch.tanh(weights @ weights)
    return weights


def odd_step(mode: str, rank: int, step: int) -> None:
    if mode == "sleep" and rank == 1:
        (FOLDER / "hangs").touch()
        wait_for_quota()
    if mode == "loop" and rank == 1:
        (FOLDER / "hangs").touch()
        wait_for_batch(Prefetcher())
    if mode == "slow" and rank == 0:
        validate(torch.randn(200, 200))
        (FOLDER / f"validated.{step}").touch()


def main() -> None:
    torch.set_num_threads(1)
    mode = sys.argv[1]
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS))
    rank = dist.get_rank()
    (FOLDER / f"ready.{rank}").write_text(str(os.getpid()))
    step = 0
    while not (FOLDER / "end").exists():
        step += 1
        if step >= FIRST_ODD_STEP:
            odd_step(mode, rank, step)
        time.sleep(0.02)
        ended = torch.tensor([float((FOLDER / "end").exists())])
        dist.all_reduce(ended)
        if ended.item():
            break
    dist.destroy_process_group()


main()
