"""A job without torch, for any Python 3: ranks meet at rank 0, and one never comes. Usage: plain.py [RANK]

Rank 0 gathers a line from each over TCP, which the others send; RANK sits in load_batch instead.
"""

import os
import socket
import sys
import threading
import time

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ADDRESS = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
LATE = int(sys.argv[1]) if len(sys.argv) > 1 else -1


def ready():
    path = os.path.join(os.environ["RIG_DIR"], f"ready.{RANK}")
    with open(path + ".part", "w") as file:
        file.write(f"{socket.gethostname()} {os.getpid()}")
    os.replace(path + ".part", path)


def load_batch():
    threading.Event().wait()


def gather(server):
    """Rank 0: wait for everybody."""
    links = []
    while len(links) < WORLD - 1:
        links.append(server.accept()[0])
        links[-1].recv(100)


def report():
    """The others: say that one is here, and wait for the answer."""
    link = socket.socket()
    while link.connect_ex(ADDRESS):
        link.close()
        time.sleep(0.05)
        link = socket.socket()
    link.send(b"here")
    link.recv(100)


def train():
    if RANK == 0:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", ADDRESS[1]))
        server.listen(64)
    ready()
    if RANK == LATE:
        load_batch()
    elif RANK == 0:
        gather(server)
    else:
        report()


train()
