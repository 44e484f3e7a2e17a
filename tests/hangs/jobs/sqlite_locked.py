"""Rank 0 logs to a database that another process has locked; the others wait in a barrier."""

import sqlite3

import torch.distributed as dist
from mark import ready, work_path


def log_run(name: str) -> None:
    with sqlite3.connect(work_path("runs.db"), timeout=100_000) as database:
        database.execute("insert into runs values (?)", (name,))


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 0:
        log_run("baseline")
    dist.barrier()


if __name__ == "__main__":
    main()
