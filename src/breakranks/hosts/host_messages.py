"""The messages between the controller and a host's agent: plain typed values, one union for each direction.

A request has a number, and its answer has the same number. A host decodes only what is in :data:`Request`, the
controller (``host_message_checks``) only what is in :data:`Report`. Anything else is an error and is never executed.

On the wire a message is JSON, ``{"type": KIND, FIELD: VALUE, …}``, with bytes as base64. A host needs nothing but the
standard library for it.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any

from breakranks.jobs.found_jobs import LocalJobs
from breakranks.snapshot.model import Snapshot
from breakranks.typed_json import from_plain

PROTOCOL = 1


# ---- from the controller


@dataclass(frozen=True, slots=True)
class FindJobs:
    """Find the jobs of the host. ``slurm``: only those of this Slurm job (and step)."""

    id: int
    slurm: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SelectJob:
    """Select the job of the next samples by its key on that host. ``details``: see ``backend.sampler.Sampler``."""

    key: str
    ranks: str | None = None
    details: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSample:
    """Take a sample and return the snapshot of the last ``keep`` samples (0: of all).

    ``look`` selects another job than that of the last sample. With ``samples`` 0 only the process table is read, and no
    process is paused. ``visit`` is which ranks are asked what only they know: "", "some" or "all".
    """

    id: int
    look: SelectJob | None = None
    samples: int = 1
    native: bool = False
    recorders: bool = False
    visit: str = ""
    keep: int = 0


@dataclass(frozen=True, slots=True)
class AttachAgents:
    """Start an agent in each rank of a job, or in some ranks."""

    id: int
    key: str
    ranks: str | None
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Ask ranks of a job a question. ``takers``: all ranks that are asked, on all hosts."""

    id: int
    key: str
    ranks: str | None
    takers: str
    question: dict[str, Any]
    deadline: float


@dataclass(frozen=True, slots=True)
class ListAgents:
    """List the ranks that have an agent."""

    id: int


@dataclass(frozen=True, slots=True)
class EndJob:
    """End the job of these processes: its launcher and its remaining processes on that host."""

    id: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckHost:
    """Run the steps of the check on this host: processes, ranks, stacks."""

    id: int
    slurm: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SendLog:
    """Send the host's log from this level on. An agent that does not know this request answers that it failed."""

    level: int


@dataclass(frozen=True, slots=True)
class OpenLink:
    """Connect the link of this number to a rank's agent, by a path that ``ListAgents`` or ``AttachAgents`` returned."""

    id: int
    link: int
    path: str


@dataclass(frozen=True, slots=True)
class LinkData:
    """Data on a link, in either direction."""

    link: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CloseLink:
    """The end of a link, in either direction."""

    link: int


@dataclass(frozen=True, slots=True)
class Ping:
    """A sign of life of the controller. An agent that receives nothing for long ends."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of an agent. ``same`` is equal for agents on one machine. ``shipped``: its code was sent."""

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


@dataclass(frozen=True, slots=True)
class JobsFound:
    """The jobs of a host."""

    id: int
    found: LocalJobs


@dataclass(frozen=True, slots=True)
class SampleTaken:
    """A snapshot, as :func:`pack_snapshot` gives it."""

    id: int
    snapshot: bytes


@dataclass(frozen=True, slots=True)
class AgentsAttached:
    """``agents`` and ``unreached`` as plain values of ``backend.attach_agents``."""

    id: int
    agents: tuple[dict[str, Any], ...]
    unreached: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The answers to a question, as plain values of ``backend.evaluate``."""

    id: int
    told: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Which processes remain."""

    id: int
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckStep:
    """One step of the check: its name, whether the host passes it, what was seen, and what to do otherwise."""

    name: str
    fine: bool
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class HostChecked:
    """The steps of the check on a host."""

    id: int
    steps: tuple[CheckStep, ...]


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request that failed: why, and what to do."""

    id: int
    what: str
    help: str = ""


@dataclass(frozen=True, slots=True)
class ClockReply:
    """The answer to a ping, and a periodic sign of life."""

    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLogLine:
    """One line of a host's log, once ``SendLog`` has requested it. ``time`` is by the host's clock."""

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
    | HostLogLine
    | LinkData
    | CloseLink
)
Reply = JobsFound | SampleTaken | AgentsAttached | Evaluated | JobEnded | HostChecked | RequestFailed


# ---- on the wire

REQUESTS: dict[str, type[Request]] = {
    "find": FindJobs,
    "sample": TakeSample,
    "attach": AttachAgents,
    "eval": Evaluate,
    "agents": ListAgents,
    "end": EndJob,
    "check": CheckHost,
    "send-log": SendLog,
    "connect": OpenLink,
    "data": LinkData,
    "shut": CloseLink,
    "ping": Ping,
}
REPORTS: dict[str, type[Report]] = {
    "hello": Hello,
    "jobs": JobsFound,
    "taken": SampleTaken,
    "attached": AgentsAttached,
    "told": Evaluated,
    "ended": JobEnded,
    "checked": HostChecked,
    "failed": RequestFailed,
    "clock": ClockReply,
    "log-line": HostLogLine,
    "data": LinkData,
    "shut": CloseLink,
}
_KINDS = {kind: name for name, kind in (REQUESTS | REPORTS).items()}


def encode(message: Request | Report) -> bytes:
    """Return the JSON of a message. In text that is not UTF-8 ``?`` replaces what cannot be encoded.

    Raises ValueError for a number that is not finite.
    """
    return _json({"type": _KINDS[type(message)], **_fields(message)})


def pack_snapshot(snapshot: Snapshot) -> bytes:
    """Return a snapshot as a host sends it: compressed JSON. The controller writes the file, with msgspec."""
    return zlib.compress(_json(_fields(snapshot)), 6)


def decode_request(body: bytes) -> Request:
    """Return the request in a message. Raises ValueError or RecursionError for anything else."""
    fields = json.loads(body)
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    kind = REQUESTS.get(str(fields.pop("type", "")))
    if kind is None:
        raise ValueError("not the type of a request")
    return from_plain(kind, fields)


def _json(value: object) -> bytes:
    text = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _plain(value: Any) -> object:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else _fields(value)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
