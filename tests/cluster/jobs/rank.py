"""What the jobs of the rig share: who this rank is under whichever launcher, and how it says where it is."""

import os
import socket
from datetime import timedelta

import torch.distributed as dist

_NAMES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
FOLDER = os.environ["RIG_DIR"]


def join() -> int:
    """Join the group of all ranks over gloo: the rank."""
    rank, world = next((os.environ[one], os.environ[two]) for one, two in _NAMES if one in os.environ)
    os.environ.update(RANK=rank, WORLD_SIZE=world)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    return int(rank)


def say(what: str, rank: int, text: str = "") -> None:
    """Write WHAT.RANK, whole or not at all."""
    path = os.path.join(FOLDER, f"{what}.{rank}")
    with open(path + ".part", "w") as file:
        file.write(text)
    os.replace(path + ".part", path)


def ready(rank: int) -> None:
    say("ready", rank, f"{socket.gethostname()} {os.getpid()}")
