"""A rank that does nothing: says that it is there, and sleeps. Needs no torch, so it starts at once.

usage: sleeper_program.py FOLDER [--fork N] [--subprocess N] [--ignored…]
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time


def ready(folder: str, name: str) -> None:
    path = os.path.join(folder, f"{name}.{os.getpid()}")
    with open(path + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".new", path)


def helper(folder: str) -> None:
    ready(folder, "helper")
    time.sleep(600)


def count(option: str) -> int:
    return int(sys.argv[sys.argv.index(option) + 1]) if option in sys.argv else 0


def main() -> None:
    folder = next(word for word in sys.argv[1:] if not word.startswith("-"))  # deepspeed puts --local_rank first
    started: list[object] = []
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        for _ in range(count("--" + method)):
            process = context.Process(target=helper, args=(folder,))
            process.start()
            started.append(process)
    for _ in range(count("--subprocess")):
        started.append(subprocess.Popen([sys.executable, __file__, folder, "--name", "helper"]))
    ready(folder, "helper" if "--name" in sys.argv else "rank")
    time.sleep(600)


if __name__ == "__main__":
    main()
