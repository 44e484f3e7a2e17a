"""MPI: a ring of blocking sends, too large for the eager protocol."""

import numpy
from mark import ready
from mpi4py import MPI


def shift_blocks(world: MPI.Comm, block: numpy.ndarray) -> None:
    world.Send(block, dest=(world.rank + 1) % world.size)
    world.Recv(block, source=(world.rank - 1) % world.size)


def main() -> None:
    ready()
    shift_blocks(MPI.COMM_WORLD, numpy.ones(1_000_000))


if __name__ == "__main__":
    main()
