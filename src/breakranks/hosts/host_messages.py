"""What the controller and a host's agent say to each other: plain typed values, one union each way.

A request has a number, and its answer bears the same. Hosts decode only what is in :data:`Request`, the controller only
what is in :data:`Report`; what does not fit is an error, never executed.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from breakranks.jobs.found_jobs import LocalJobs

PROTOCOL = 1


# ---- from the controller


class FindJobs(Struct, frozen=True, tag="find"):
    """Which jobs are there. ``slurm``: only those of this Slurm job (and step)."""

    id: int
    slurm: tuple[str, str] | None = None


class SelectJob(Struct, frozen=True, tag="look"):
    """Which job the next samples are of, by its key on that host. ``details``: see ``backend.sampler.Sampler``."""

    key: str
    ranks: str | None = None
    details: bool = True


class TakeSample(Struct, frozen=True, kw_only=True, tag="sample"):
    """One more sample, and then the snapshot of the last ``keep`` (0: of all). ``look``: of another job than the last.
    ``samples`` 0: what the process table says, and nobody is paused. ``visit``: ask ranks what only they know: "",
    "some" or "all"."""

    id: int
    look: SelectJob | None = None
    samples: int = 1
    native: bool = False
    recorders: bool = False
    visit: str = ""
    keep: int = 0


class AttachAgents(Struct, frozen=True, tag="attach"):
    """An agent into each rank of a job, or into some."""

    id: int
    key: str
    ranks: str | None
    deadline: float


class Evaluate(Struct, frozen=True, kw_only=True, tag="eval"):
    """One question to ranks of a job; ``takers``: all ranks that get it, on all hosts."""

    id: int
    key: str
    ranks: str | None
    takers: str
    question: dict[str, Any]
    deadline: float


class ListAgents(Struct, frozen=True, tag="agents"):
    """Which ranks have an agent already."""

    id: int


class EndJob(Struct, frozen=True, tag="end"):
    """End the job that these processes are of: its launcher, and what is left of it there."""

    id: int
    pids: tuple[int, ...]


class CheckHost(Struct, frozen=True, tag="check"):
    """Which steps of the check this host passes: processes, ranks, stacks."""

    id: int
    slurm: tuple[str, str] | None = None


class SendLog(Struct, frozen=True, tag="send-log"):
    """Send what you log, from this level on. An agent that does not know this answers that it did not understand."""

    level: int


class OpenLink(Struct, frozen=True, tag="connect"):
    """Join the link of this number to the agent of a rank, by the path that ``ListAgents`` or ``AttachAgents`` told."""

    id: int
    link: int
    path: str


class LinkData(Struct, frozen=True, tag="data"):
    """What goes over a link, either way."""

    link: int
    data: bytes


class CloseLink(Struct, frozen=True, tag="shut"):
    """A link has ended, either way."""

    link: int


class Ping(Struct, frozen=True, tag="ping"):
    """Somebody is there. An agent that hears nothing for long ends."""


Request = (
    FindJobs
    | TakeSample
    | AttachAgents
    | Evaluate
    | ListAgents
    | EndJob
    | CheckHost
    | SendLog
    | OpenLink
    | LinkData
    | CloseLink
    | Ping
)


# ---- from a host


class Hello(Struct, frozen=True, kw_only=True, tag="hello"):
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


class JobsFound(Struct, frozen=True, tag="jobs"):
    id: int
    found: LocalJobs


class SampleTaken(Struct, frozen=True, tag="taken"):
    """A snapshot, as the bytes of its file."""

    id: int
    snapshot: bytes


class AgentsAttached(Struct, frozen=True, tag="attached"):
    """``agents`` and ``unreached`` as plain values of ``backend.attach_agents``."""

    id: int
    agents: tuple[dict[str, Any], ...]
    unreached: tuple[dict[str, Any], ...] = ()


class Evaluated(Struct, frozen=True, tag="told"):
    """The answers to a question, as plain values of ``backend.evaluate``."""

    id: int
    told: tuple[dict[str, Any], ...]


class JobEnded(Struct, frozen=True, tag="ended"):
    """Which processes are still there."""

    id: int
    left: tuple[int, ...]


class CheckStep(Struct, frozen=True):
    """One step of the check: its name, whether the host passes it, what was seen, and what to do if not."""

    name: str
    fine: bool
    what: str
    remedy: str = ""


class HostChecked(Struct, frozen=True, tag="checked"):
    id: int
    steps: tuple[CheckStep, ...]


class RequestFailed(Struct, frozen=True, tag="failed"):
    """A request that could not be met."""

    id: int
    what: str
    help: str = ""


class ClockReply(Struct, frozen=True, tag="clock"):
    """The answer to a ping, and a sign of life from time to time."""

    time: float


class LogLine(Struct, frozen=True, tag="log-line"):
    """One line of a host's log, after it was asked for by ``SendLog``. ``time``: by its own clock."""

    time: float
    level: int
    room: str
    pid: int
    text: str


Report = (
    Hello
    | JobsFound
    | SampleTaken
    | AgentsAttached
    | Evaluated
    | JobEnded
    | HostChecked
    | RequestFailed
    | ClockReply
    | LogLine
    | LinkData
    | CloseLink
)
Reply = JobsFound | SampleTaken | AgentsAttached | Evaluated | JobEnded | HostChecked | RequestFailed
