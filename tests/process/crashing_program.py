"""A launcher of plain ranks that fail: ``launch COUNT MODE`` starts COUNT ranks, and ends as the first that failed.

Rank 1 listens, and the others send it bytes that it never reads: when it has gone, their connections are reset.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

RANK = int(os.environ.get("RANK", "-1"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
HUB = 1
WAIT_SECONDS = 120.0


def launch(count: str, mode: str) -> int:
    job = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1"}
    ranks = []
    for rank in range(int(count)):
        environ = {**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen([sys.executable, __file__, mode], env=environ))
    return next((status for rank in ranks if (status := rank.wait())), 0) & 255


def train(mode: str) -> None:
    """Meet the other ranks, fail on rank 1, and wait on the others for what it never sends."""
    if RANK == HUB:
        with socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))) as listener:
            connections = [listener.accept()[0] for _ in range(WORLD - 1)]
            for connection in connections:
                connection.recv(1, socket.MSG_PEEK)  # it has come, and is not read
            FAILURES[mode]()
            for connection in connections:
                connection.send(connection.recv(1))
    else:
        with connected() as connection:
            connection.send(b"x")
            gather(connection)


def connected() -> socket.socket:
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def gather(connection: socket.socket) -> bytes:
    return connection.recv(1)


def raise_of_step() -> None:
    raise ValueError("loss is nan at step 41")


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def read_nothing() -> None:
    ctypes.string_at(0)


def leave() -> NoReturn:
    sys.exit(3)


def lock_twice() -> None:
    """Hang in a lock that the rank itself holds."""
    lock = threading.Lock()
    lock.acquire()
    take_lock(lock)


def take_lock(lock: threading.Lock) -> None:
    lock.acquire()


def read_config() -> None:
    """Wait for a writer of the pipe ``go``."""
    Path(f"paused.{RANK}").touch()
    Path("go").read_text()


def end_well() -> None:
    pass


FAILURES = {
    "raise": raise_of_step,
    "kill": kill_itself,
    "segv": read_nothing,
    "exit": leave,
    "hang": lock_twice,
    "pause": read_config,
    "ends": end_well,
}


def main(mode: str) -> None:
    if mode == "all":
        raise_of_step()
    elif mode in FAILURES and WORLD > 1:
        train(mode)
    elif mode in FAILURES:
        FAILURES[mode]()


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        sys.exit(launch(*sys.argv[2:]))
    main(sys.argv[1])
