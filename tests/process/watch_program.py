"""A rank that makes steps with the others, and does what the files in its folder say: stall, go, compute, end."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

FOLDER = Path(os.environ["WATCH_FOLDER"])
RANK = int(os.environ["RANK"])
ADDRESS = "127.0.0.1", int(os.environ["MASTER_PORT"])
COMPUTE_SECONDS = 12.0


def told(word: str) -> bool:
    return (FOLDER / word).exists()


class Woken(Exception):
    """SIGUSR1 came."""


def wake(number: int, frame: object) -> None:
    raise Woken


def read_shard() -> None:
    """Sleep for an hour, or until SIGUSR1."""
    signal.signal(signal.SIGUSR1, wake)
    (FOLDER / "stalled").touch()
    try:
        time.sleep(3600)
    except Woken:
        pass
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def compute(step: int) -> int:
    """One long step, of which only the CPU and its own values tell that it moves."""
    total = 0
    until = time.monotonic() + COMPUTE_SECONDS
    while time.monotonic() < until:
        total = (total * 31 + step) % 1_000_003
    return total


def wait_for_rank(connection: socket.socket) -> bytes:
    return connection.recv(1)


def train(connection: socket.socket) -> None:
    step = 0
    while not told("end"):
        step += 1
        if RANK == 1:
            if told("stall") and not told("go"):
                read_shard()
            if told("compute"):
                compute(step)
                (FOLDER / f"computed.{step}").touch()
            time.sleep(0.2)
            connection.send(b"x")
        elif not wait_for_rank(connection):
            return


def main() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if told("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if RANK == 0:
        with socket.create_server(ADDRESS) as listener:
            connection, _ = listener.accept()
    else:
        while True:
            try:
                connection = socket.create_connection(ADDRESS)
                break
            except OSError:
                time.sleep(0.05)
    (FOLDER / f"ready.{RANK}").write_text(str(os.getpid()))
    with connection:
        train(connection)


main()
