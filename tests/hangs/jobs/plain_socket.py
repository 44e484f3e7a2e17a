"""No framework: every rank asks a server that took the connection and never answers."""

import socket

from mark import ready, work_path


def fetch_features() -> bytes:
    with open(work_path("address")) as file:
        host, _, port = file.read().partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"features?\n")
        ready()
        return connection.recv(4096)


if __name__ == "__main__":
    fetch_features()
