"""What the controller and a host's agent say to each other: plain typed values, one union each way.

A request has a number, and its answer bears the same. Hosts decode only what is in :data:`Request`, the controller only
what is in :data:`Report`; what does not fit is an error, never executed.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from breakranks.jobs.find import Found

PROTOCOL = 1


# ---- from the controller


class Find(Struct, frozen=True, tag="find"):
    """Which jobs are there. ``slurm``: only those of this Slurm job (and step)."""

    id: int
    slurm: tuple[str, str] | None = None


class Look(Struct, frozen=True, tag="look"):
    """Which job the next samples are of, by its key on that host. ``details``: see ``reach.local.Session``."""

    key: str
    ranks: str | None = None
    details: bool = True


class Sample(Struct, frozen=True, tag="sample"):
    """One more sample, and then the snapshot of the last ``keep`` (0: of all). ``look``: of another job than the last.
    ``samples`` 0: what the process table says, and nobody is paused. ``visit``: ask ranks what only they know: "",
    "some" or "all"."""

    id: int
    look: Look | None = None
    samples: int = 1
    native: bool = False
    recorders: bool = False
    visit: str = ""
    keep: int = 0


class Attach(Struct, frozen=True, tag="attach"):
    """An agent into each rank of a job, or into some."""

    id: int
    key: str
    ranks: str | None
    deadline: float


class Eval(Struct, frozen=True, tag="eval"):
    """One question to ranks of a job; ``takers``: all ranks that get it, on all hosts."""

    id: int
    key: str
    ranks: str | None
    takers: str
    question: dict[str, Any]
    deadline: float


class Agents(Struct, frozen=True, tag="agents"):
    """Which ranks have an agent already."""

    id: int


class End(Struct, frozen=True, tag="end"):
    """End the job that these processes are of: its launcher, and what is left of it there."""

    id: int
    pids: tuple[int, ...]


class Check(Struct, frozen=True, tag="check"):
    """Which steps of the ladder this host takes: processes, ranks, stacks."""

    id: int
    slurm: tuple[str, str] | None = None


class SendLog(Struct, frozen=True, tag="send-log"):
    """Send what you log, from this level on. An agent that does not know this answers that it did not understand."""

    level: int


class Connect(Struct, frozen=True, tag="connect"):
    """Join the link of this number to the agent of a rank, by the path that ``Agents`` or ``Attach`` told."""

    id: int
    link: int
    path: str


class Data(Struct, frozen=True, tag="data"):
    """What goes over a link, either way."""

    link: int
    data: bytes


class Shut(Struct, frozen=True, tag="shut"):
    """A link has ended, either way."""

    link: int


class Ping(Struct, frozen=True, tag="ping"):
    """Somebody is there. An agent that hears nothing for long ends."""


Request = Find | Sample | Attach | Eval | Agents | End | Check | SendLog | Connect | Data | Shut | Ping


# ---- from a host


class Hello(Struct, frozen=True, tag="hello"):
    """The first word of an agent. ``same`` is equal for two on one machine; ``shipped``: our code came with us."""

    protocol: int
    version: str
    python: str
    host: str
    user: str
    pid: int
    time: float
    same: str
    aliases: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    shipped: bool = False


class Jobs(Struct, frozen=True, tag="jobs"):
    id: int
    found: Found


class Taken(Struct, frozen=True, tag="taken"):
    """A snapshot, as the bytes of its file."""

    id: int
    snapshot: bytes


class Attached(Struct, frozen=True, tag="attached"):
    """``agents`` and ``unreached`` as plain values of ``debug.attach``, which ``reach`` does not know."""

    id: int
    agents: tuple[dict[str, Any], ...]
    unreached: tuple[dict[str, Any], ...] = ()


class Told(Struct, frozen=True, tag="told"):
    """The answers to a question, as plain values of ``debug.asking``."""

    id: int
    told: tuple[dict[str, Any], ...]


class Ended(Struct, frozen=True, tag="ended"):
    """Which processes are still there."""

    id: int
    left: tuple[int, ...]


class Step(Struct, frozen=True):
    """One rung of the ladder: its name, whether the host takes it, what was seen, and what to do if not."""

    name: str
    fine: bool
    what: str
    remedy: str = ""


class Checked(Struct, frozen=True, tag="checked"):
    id: int
    steps: tuple[Step, ...]


class Failed(Struct, frozen=True, tag="failed"):
    """A request that could not be met."""

    id: int
    what: str
    help: str = ""


class Clock(Struct, frozen=True, tag="clock"):
    """The answer to a ping, and a sign of life from time to time."""

    time: float


class LogLine(Struct, frozen=True, tag="log-line"):
    """One line of a host's log, after it was asked for by ``SendLog``. ``time``: by its own clock."""

    time: float
    level: int
    room: str
    pid: int
    text: str


Report = Hello | Jobs | Taken | Attached | Told | Ended | Checked | Failed | Clock | LogLine | Data | Shut
Reply = Jobs | Taken | Attached | Told | Ended | Checked | Failed
