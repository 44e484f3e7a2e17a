"""The parts of a transport to hosts: plain values."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

PIECE_BYTES = 48_000  # of a message per line, for a transport of one host
SHORT_PIECE_BYTES = 600  # for a transport of several hosts, which passes only short lines whole

# From the piece size to the command that starts an agent on a host.
Remote = Callable[[int], tuple[str, ...]]


class TransportOptions(Struct, frozen=True, kw_only=True):
    """Options of the command line. ``ssh_options`` are words as for a shell: ``-p 2222 -i key``."""

    ssh_config: str | None = None
    ssh_options: str | None = None
    python: str | None = None
    setup: str | None = None
    sudo: bool = False
    deadline: float = 10.0
    fanout: int = 64


class Transport(Struct, frozen=True, kw_only=True):
    """One local process that carries the lines of one or several hosts. It is started without a terminal.

    Lines for the hosts go to its stdin. ``env`` is added to its environment.
    """

    hosts: tuple[str, ...]
    argv: tuple[str, ...]
    piece: int
    env: dict[str, str] = {}


class LostHost(Struct, frozen=True, kw_only=True):
    """Why a host is lost. ``kind``: unreachable, refused, no-python, timed-out, failed, lost."""

    kind: str
    what: str
    remedy: str


class HostPlan(Struct, frozen=True, kw_only=True):
    """How to reach the hosts of a target. ``name``: the target as a user writes it. ``scheme``: its first word.
    ``slurm``: the job, and the step or "", whose processes count."""

    name: str
    scheme: str
    hosts: tuple[str, ...]
    transports: tuple[Transport, ...]
    lost: dict[str, LostHost] = {}
    slurm: tuple[str, str] | None = None
