"""Lightning starts its own ranks: the first process is rank 0 and starts the others as its children."""

from __future__ import annotations

import os
import sys
import time

from lightning.fabric import Fabric


def main() -> None:
    folder, ranks = sys.argv[1], int(sys.argv[2])
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp")
    fabric.launch()
    path = os.path.join(folder, f"rank.{os.getpid()}")
    with open(path + ".new", "w") as file:
        file.write(str(fabric.global_rank))
    os.rename(path + ".new", path)
    time.sleep(600)


if __name__ == "__main__":
    main()
