"""How a job of the zoo tells the harness where it is: a file with its pid in the folder ZOO_DIR."""

import os
import sys


def rank_of_this_process() -> str:
    return os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"


def ready(rank: int | str | None = None, pid: int | None = None) -> None:
    """Say, as the last thing before the interesting part, that this rank (or helper) is there."""
    name = rank_of_this_process() if rank is None else str(rank)
    path = os.path.join(os.environ["ZOO_DIR"], f"ready.{name}")
    with open(path + ".part", "w") as mark:
        mark.write(str(os.getpid() if pid is None else pid))
    os.replace(path + ".part", path)


def work_path(name: str) -> str:
    """A path in the job's own working folder."""
    return os.path.join(os.environ["ZOO_DIR"], name)


sys.stdout.reconfigure(line_buffering=True)
