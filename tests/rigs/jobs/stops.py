"""Every rank stops at a breakpoint of ours, without torch, and ends when it is let go."""

import os
import socket

import breakranks

rank = int(os.environ["RANK"])
path = os.path.join(os.environ["RIG_DIR"], f"ready.{rank}")
with open(path + ".part", "w") as file:
    file.write(f"{socket.gethostname()} {os.getpid()}")
os.replace(path + ".part", path)
breakranks.breakpoint()
open(os.path.join(os.environ["RIG_DIR"], f"passed.{rank}"), "w").close()
