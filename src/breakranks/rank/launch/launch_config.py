"""What `breakranks run` tells the ranks: a JSON file in a folder that they find through PYTHONPATH."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, NamedTuple

STARTUP = "startup"  # the folder in that of the run
CONFIG = "config.json"
RANKS = "ranks"  # the folder of registrations, below that of the run
RELEASE = "release"  # a file in it that ends the wait of crashed ranks
HEARTBEAT = "heartbeat"  # a file in it that `run` touches while it lives
ENDED = "ended"  # a file in the startup folder: `run` has ended, and its variables may be those of later jobs
LAUNCH = "BREAKRANKS_LAUNCH"


class LaunchConfig(NamedTuple):
    """The options of one run. ``run_pid`` and ``run_start`` are those of its process, on the host ``host_key``."""

    token: str
    run_folder: str
    startup: str
    host_key: str
    run_pid: int
    run_start: int
    names: tuple[str, ...]
    debug_rank: int = -1
    terminal: str = ""
    on_crash: str = ""
    preload_agent: bool = True
    keep_free_bytes: int = 0

    @property
    def is_here(self) -> bool:
        """Whether `run` is on this host, and sees the same files and processes."""
        return self.host_key == host_key()

    @property
    def ranks(self) -> str:
        return f"{self.run_folder}/{RANKS}"


def read_config(startup: str) -> LaunchConfig:
    """The options in a startup folder."""
    with open(f"{startup}/{CONFIG}", encoding="utf-8") as file:
        known: dict[str, Any] = json.load(file)
    names = tuple(known.pop("names"))
    return LaunchConfig(startup=startup, names=names, **{k: v for k, v in known.items() if k in LaunchConfig._fields})


def host_key() -> str:
    """A key that is equal for processes that see the same files and process ids on the same host."""
    return " ".join((_boot_id(), socket.gethostname(), _namespace("mnt"), _namespace("pid")))


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""
