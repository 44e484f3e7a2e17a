"""Not a rank: a server that takes connections and never answers."""

import signal
import socket

from mark import ready, work_path

server = socket.create_server(("127.0.0.1", 0))
with open(work_path("address"), "w") as file:
    file.write(f"127.0.0.1:{server.getsockname()[1]}")
ready("other")
client = server.accept()
signal.pause()
