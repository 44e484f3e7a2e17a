"""A home-made launcher waits for its ranks in their order: rank 1 has failed and nobody looks at it yet."""

import os
import subprocess
import sys

from mark import rank_of_this_process, ready


def launch(world: int) -> None:
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["ZOO_PORT"]}
    ranks = []
    for rank in range(world):
        environment = {**os.environ, **shared, "RANK": str(rank)}
        ranks.append(subprocess.Popen([sys.executable, __file__], env=environment))
    for process in ranks:
        process.wait()


def load_config(rank: int) -> None:
    if rank == 1:
        raise FileNotFoundError("conf/rank1.yaml")


def train() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")


if __name__ == "__main__":
    if "RANK" not in os.environ:
        launch(3)
    else:
        ready()
        load_config(int(rank_of_this_process()))
        train()
