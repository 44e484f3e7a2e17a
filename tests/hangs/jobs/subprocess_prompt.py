"""Rank 0 runs `cp -i`, which asks whether it may overwrite; its question is in a pipe that nobody reads."""

import subprocess

import torch.distributed as dist
from mark import ready, work_path


def backup_checkpoint(old: str, new: str) -> bytes:
    copy = subprocess.Popen(["cp", "-i", new, old], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return copy.communicate()[0]


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        for name in ("last.pt", "best.pt"):
            with open(work_path(name), "w") as file:
                file.write(name)
        ready()
        backup_checkpoint(work_path("last.pt"), work_path("best.pt"))
    ready()
    dist.barrier()


if __name__ == "__main__":
    main()
