"""MPI: compute, reduce, again."""

import numpy
from mark import ready
from mpi4py import MPI


def relax(grid: numpy.ndarray) -> float:
    for _ in range(200):
        grid[1:-1] = (grid[:-2] + grid[2:]) / 2
    return float(grid.sum())


def main() -> None:
    grid = numpy.linspace(0, 1, 1000)
    for step in range(100_000_000):
        MPI.COMM_WORLD.allreduce(relax(grid))
        if step == 10:
            ready()


if __name__ == "__main__":
    main()
