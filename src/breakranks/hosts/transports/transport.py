"""What a way to a host is made of: plain values."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

PIECE_BYTES = 48_000  # bytes of a message in a line, where a transport is of one host
SHORT_PIECE_BYTES = 600  # where it is of many, whose lines must not be cut by what carries them

# From a piece to the command that starts an agent on a host.
Remote = Callable[[int], tuple[str, ...]]


class TransportOptions(Struct, frozen=True, kw_only=True):
    """What was asked for on the command line. ``ssh_options`` are words as for a shell: ``-p 2222 -i key``."""

    ssh_config: str | None = None
    ssh_options: str | None = None
    python: str | None = None
    setup: str | None = None
    sudo: bool = False
    deadline: float = 10.0
    fanout: int = 64


class Transport(Struct, frozen=True, kw_only=True):
    """One local process that carries the lines of one host, or of many; to be started without a terminal.

    Lines for the hosts go to its stdin. ``env`` is added to its environment.
    """

    hosts: tuple[str, ...]
    argv: tuple[str, ...]
    piece: int
    env: dict[str, str] = {}


class LostHost(Struct, frozen=True, kw_only=True):
    """A host that is not seen. ``kind``: unreachable, refused, no-python, timed-out, failed."""

    kind: str
    what: str
    remedy: str


class HostPlan(Struct, frozen=True, kw_only=True):
    """``slurm``: the job, and the step or "", whose processes count. ``name`` is how a person writes the target."""

    name: str
    hosts: tuple[str, ...]
    transports: tuple[Transport, ...]
    lost: dict[str, LostHost] = {}
    slurm: tuple[str, str] | None = None
