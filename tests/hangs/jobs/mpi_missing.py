"""MPI: rank 1 waits for a restart file; the others are in a barrier, and spin in it."""

import os
import time

from mark import ready, work_path
from mpi4py import MPI


def wait_for_restart_file() -> None:
    while not os.path.exists(work_path("restart.h5")):
        time.sleep(1)


def synchronise(world: MPI.Comm) -> None:
    world.Barrier()


def main() -> None:
    world = MPI.COMM_WORLD
    world.Barrier()
    ready()
    if world.rank == 1:
        wait_for_restart_file()
    synchronise(world)


if __name__ == "__main__":
    main()
