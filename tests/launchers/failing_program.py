"""Ranks that fail: ``failing_program.py WAY``. Needs torch only for ``collective``."""

from __future__ import annotations

import os
import signal
import sys


def number(*names: str) -> int:
    return next(int(os.environ[name]) for name in names if name in os.environ)


RANK = number("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def check_loss(step: int) -> None:
    raise ValueError(f"loss is nan at step {step}")


def collective() -> None:
    """Rank 1 fails while the others wait for it."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for step in range(3):
        if RANK == 1 and step == 2:
            check_loss(step)
        dist.all_reduce(torch.ones(2))
        print(f"step {step} done", flush=True)


def restart() -> None:
    """Each attempt fails on another rank."""
    attempt = number("TORCHELASTIC_RESTART_COUNT")
    if attempt == RANK:
        raise ValueError("bad data") if attempt == 0 else KeyError("vocabulary")
    signal.pause()


def pieces() -> None:
    """All ranks print lines in pieces at once, then rank 1 fails."""
    for step in range(50):
        for piece in ("step ", str(step), " ", "x" * 1500, "\n"):
            os.write(1, piece.encode())
    if RANK == 1:
        check_loss(50)
    signal.pause()


def all_at_once() -> None:
    check_loss(0)


if __name__ == "__main__":
    {"collective": collective, "restart": restart, "pieces": pieces, "all": all_at_once}[sys.argv[1]]()
