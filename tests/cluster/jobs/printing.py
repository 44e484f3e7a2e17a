"""A rank that prints many lines, and a long one: COUNT LENGTH."""

from __future__ import annotations

import os
import sys

RANK = int(os.environ.get("SLURM_PROCID", os.environ.get("OMPI_COMM_WORLD_RANK", "-1")))

if __name__ == "__main__":
    print(f"rank {RANK} on {os.uname().nodename}")
    os.write(2, b"a warning\n")
    for at in range(int(sys.argv[1])):
        print(f"line {at}")
    print("x" * int(sys.argv[2]))
    print("end")
