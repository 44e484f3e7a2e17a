"""Every rank stops at a breakpoint of ours, without torch, and ends when it is let go."""

import os
import socket

import breakranks

rank = int(next(os.environ[name] for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID") if name in os.environ))
path = os.path.join(os.environ["RIG_DIR"], f"ready.{rank}")
with open(path + ".part", "w") as file:
    file.write(f"{socket.gethostname()} {os.getpid()}")
os.replace(path + ".part", path)
breakranks.breakpoint()
open(os.path.join(os.environ["RIG_DIR"], f"passed.{rank}"), "w").close()
