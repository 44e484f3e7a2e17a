"""A rank that prints, and ends as it is told: MODE and a folder. It needs no framework, but those of msrun meet."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

WAIT_SECONDS = 120.0
NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK_ID")
RANK = next((int(os.environ[name]) for name in NAMES if name in os.environ), -1)


def main(mode: str = "print", folder: str = ".") -> int:
    print(f"rank {RANK} begins", flush=True)
    os.write(2, f"rank {RANK} warns\n".encode())
    if mode == "fail" and RANK == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        wait_for_rank_0()
        raise AssertionError("the first attempt fails")
    if mode == "debug" and RANK == 1:
        return debug(folder)
    meet()
    print(f"rank {RANK} ends", flush=True)
    return 0


def wait_for_rank_0() -> None:
    """Wait until rank 0 has printed: its launcher ends it when this rank has failed."""
    out = Path(os.environ["PYTHONPATH"].split(":")[0]).parent / "rank-0.out"
    end = time.monotonic() + WAIT_SECONDS
    while not (out.exists() and out.read_text()) and time.monotonic() < end:
        time.sleep(0.02)


def debug(folder: str) -> int:
    """Read a line until it is interrupted, then stop in pdb. MindSpore takes Ctrl-C once its workers have met."""
    try:
        input("name> ")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    meet()
    rank = RANK
    breakpoint()  # noqa: T100
    Path(folder, "through").touch()
    return rank - 1


def meet() -> None:
    """A worker of msrun may not end before."""
    if os.environ.get("MS_ROLE"):
        from mindspore.communication import init

        init()


if __name__ == "__main__":
    sys.exit(main(*(word for word in sys.argv[1:] if not word.startswith("--local_rank"))))
