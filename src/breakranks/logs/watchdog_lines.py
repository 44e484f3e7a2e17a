"""Lines of collectives that timed out: the watchdog of torch's NCCL groups, gloo, stores and barriers.

The texts are those of torch 1.9 to 2.13; other backends that copy the watchdog (XCCL, HCCL, CNCL) have the same. In
``[PG ID 1 PG GUID 3(mesh_tp) Rank 0]`` the rank is that within the group, and so it is in ``[Rank 0]``; the rank of the
job is in ``[rank4]:``, which torch prints before each such line since 2.2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from breakranks.logs.known_row import searchable
from breakranks.logs.log_events import LogLine, Raised, TimeoutEvent
from breakranks.rankset import RankSet

# The words of the lines, in few literals: the scanner looks only at lines with one of them.
TRIGGERS = (
    b"collective operation timeout",
    b"ast enqueued",
    b"signal dumping",
    b"flight recorder dump signal",
    b"imed out waiting ",
    b"imeout after",
    b"imeout waiting for key",
    b"imed out after",
    b"onitoredBarrier",
    b"lagging ranks",
    b"timed out in blocking wait",
    b"store based barrier",
    b"pair closure",
    b"Notify register",
)

_TORCH_RANK = re.compile(r"\[rank(\d+)\]:")
# torch 2.3: "[PG 1 Rank 0]"; 2.4: "[PG 1 (default_pg) Rank 0]" as well; 2.5 and later: with a GUID.
_GROUP = re.compile(
    r"\[PG (?:ID )?(?P<id>\w+)(?: PG GUID (?P<guid>[^\s()\]]+))? ?(?:\((?P<description>[^)]*)\))? ?Rank (?P<rank>\d+)\]"
)
_GROUP_RANK = re.compile(r"\[Rank (\d+)\]")
# torch 1.9 and 1.10: no SeqNum; to 2.0: no Numel; later: "NumelIn=1, NumelOut=1"; 1.13: with shapes for some.
_WORK = re.compile(
    r"Work[A-Za-z]{1,16}\((?:SeqNum=(?P<sequence>\d+), )?OpType=(?P<operation>\w+)(?P<rest>[^)]*(?:\(ms\))?[^)]*)\)"
)
_WORK_TIMEOUT = re.compile(r"Timeout\(ms\)=(\d+)")
_ENQUEUED = re.compile(r"last enqueued (?:\w+ )?work: (-?\d+)", re.IGNORECASE)
_STARTED = re.compile(r"last started (?:\w+ )?work: (-?\d+)", re.IGNORECASE)
_COMPLETED = re.compile(r"last completed (?:\w+ )?work: (-?\d+)", re.IGNORECASE)
# torch 2.2 to 2.5 "detected by watchdog at work: 5", "Timeout at NCCL work: 5"; later "at work sequence id: 5".
_AT_WORK = re.compile(r"(?:by watchdog at work(?: sequence id)?|Timeout at \w+ work): (\d+)")
# torch 2.2: "Received a timeout signal from", "Received a global timeout from"; later "a dump signal due to ...".
_SIGNALLED = re.compile(
    r"Received a (?:dump signal|timeout signal|global timeout)[\w ]*? from +(this local rank|another rank|rank \d+)"
)
_FIRST = "First PG on this rank to signal dumping"
_OBSERVED = "Observed flight recorder dump signal from another rank"
_BLOCKING = "timed out in blocking wait"

_GLOO = re.compile(r"Timed out waiting (?P<ms>\d+)ms for (?P<operation>\w+) operation to complete")
_PAIR_CLOSURE = "Application timeout caused pair closure"
_STORE = re.compile(r"[Ww]ait timeout after (?P<ms>\d+)ms, keys: (?P<keys>\S+)")
# gloo publishes the address of rank R of the default group under this key; who waits for it misses R.
_GLOO_KEY = re.compile(r"/default_pg/0//cpu//\d+/(\d+)$")
_CLIENTS = re.compile(
    r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<count>\d+/\d+) clients joined"
)
_STORE_KEY = re.compile(r"(?:Timeout waiting for key: (?P<key>.+?)|barrier timeout) after (?P<ms>\d+) ?ms")
_STORE_BARRIER = re.compile(
    r"in store based barrier on rank: (?P<rank>\d+).*?world_size=(?P<size>\d+), (?:num_workers_joined|worker_count)="
    r"(?P<count>\d+)"
)
# torch.distributed.elastic since 2.5, after the ranks that it misses were asked for.
_MISSING_RANKS = re.compile(
    r"[Tt]imed out waiting on barrier on rank (?P<rank>\d+).*?missing_ranks=(?P<ranks>\[[^]]*\])"
)
_MONITORED = re.compile(r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms")
_LAGGING = re.compile(r"ranks \[(?P<ranks>[\d, ]+)\] are the lagging ranks that caused this timeout")


# CANN 7 and 8; the peer may be "unknown".
_NOTIFY = re.compile(
    r"Notify register has not received the Notify record from remote rank:? ?\[(?P<peer>\w+)\]"
    r"(?:.*?tag\[(?P<operation>[A-Za-z]+)_)?(?:.*?group:\[(?P<group>[^\],]+))?"
)


def read_timeout(line: LogLine) -> TimeoutEvent | None:
    """The timeout that a line reports, None if it reports none.

    A line "failure detected by watchdog" alone gives only the state of the group: it is printed for asynchronous errors
    of NCCL too. Its event has no ``operation``.
    """
    text = searchable(line.text)
    for read in _READERS:
        event = read(text, line)
        if event is not None:
            return event
    return None


def with_groups(events: Sequence[TimeoutEvent]) -> list[TimeoutEvent]:
    """The events, with those of "Watchdog caught collective operation timeout" completed: such a line names no group.

    The next lines of the same rank tell the group of the same work and what it enqueued and completed there, and the
    stack of the call. A state that is joined so stays in the list too.
    """
    states: dict[tuple[str, int], list[TimeoutEvent]] = {}
    for event in events:
        if not event.operation:
            states.setdefault((event.line.source, event.rank), []).append(event)
    return [_joined(event, states.get((event.line.source, event.rank), ())) for event in events]


def _joined(event: TimeoutEvent, states: Sequence[TimeoutEvent]) -> TimeoutEvent:
    """An event with what the first lines after it tell. Groups of one rank may stand at the same number."""
    if not event.operation or event.group or event.sequence < 0:
        return event
    after = [state for state in states if state.line.position >= event.line.position]
    state = next((state for state in after if state.group and state.sequence == event.sequence), None)
    stack = next((state.frames for state in after if state.frames), ())
    event = replace(event, frames=stack)
    if state is None:
        return event
    return replace(
        event,
        group=state.group,
        description=state.description,
        last_enqueued=state.last_enqueued,
        last_started=state.last_started,
        last_completed=state.last_completed,
    )


def timeout_of_exception(raised: Raised, line: LogLine) -> TimeoutEvent | None:
    """The same from the message of an exception; ``line`` is that of its traceback."""
    return read_timeout(line._replace(text=f"{raised.type}: {raised.message}"))


def _rank(text: str, line: LogLine, within_group: int = -1, whole_job: bool = True) -> int:
    """The rank in the job: of the prefix, of torch's own prefix, or that within a group which is the whole job."""
    if line.rank >= 0:
        return line.rank
    found = _TORCH_RANK.search(text)
    if found:
        return int(found.group(1))
    return within_group if whole_job else -1


def _number(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return int(found.group(1)) if found else -1


def _ranks(text: str) -> str:
    """``1, 2, 4`` as a rank set; "" where no number is found."""
    return str(RankSet(int(number) for number in re.findall(r"\d+", text)))


def _read_work(text: str, line: LogLine) -> TimeoutEvent | None:
    if "collective operation timeout" not in text and _BLOCKING not in text:
        return None
    work = _WORK.search(text)
    group_rank = _number(_GROUP_RANK, text)
    event = TimeoutEvent(
        line=line,
        rank=_rank(text, line, group_rank),
        operation=work["operation"] if work else "",
        sequence=int(work["sequence"]) if work and work["sequence"] else -1,
        timeout_ms=_number(_WORK_TIMEOUT, text),
    )
    return _in_group(event, _GROUP.search(text))


def _read_status(text: str, line: LogLine) -> TimeoutEvent | None:
    """The lines with the prefix of a group: what it enqueued and completed, who signalled."""
    signalled = _SIGNALLED.search(text)
    own_signal = _FIRST in text
    observed = _OBSERVED in text
    enqueued = _number(_ENQUEUED, text)
    if not (signalled or own_signal or observed or _ENQUEUED.search(text)):
        return None
    group = _GROUP.search(text)
    group_rank = int(group["rank"]) if group else -1
    heard = observed or (signalled is not None and signalled.group(1) != "this local rank")
    event = TimeoutEvent(
        line=line,
        rank=_rank(text, line, group_rank, _is_default(group)),
        sequence=_number(_AT_WORK, text),
        last_enqueued=enqueued,
        last_started=_number(_STARTED, text),
        last_completed=_number(_COMPLETED, text),
        own=not heard,
        peer=signalled.group(1) if signalled and heard else "",
    )
    return _in_group(event, group)


def _is_default(group: re.Match[str] | None) -> bool:
    return group is None or group["id"] == "0" or group["description"] == "default_pg"


def _in_group(event: TimeoutEvent, group: re.Match[str] | None) -> TimeoutEvent:
    """The event with name and description of its group. The GUID is the same on all ranks, as before 2.5 the id."""
    if group is None:
        return event
    return replace(event, group=group["guid"] or group["id"], description=group["description"] or "")


def _read_gloo(text: str, line: LogLine) -> TimeoutEvent | None:
    found = _GLOO.search(text)
    if found:
        return TimeoutEvent(
            line=line, rank=_rank(text, line), operation=found["operation"], timeout_ms=int(found["ms"])
        )
    if _PAIR_CLOSURE in text:  # after an earlier timeout of the same rank
        return TimeoutEvent(line=line, rank=_rank(text, line), own=False)
    return None


def _read_store(text: str, line: LogLine) -> TimeoutEvent | None:
    found = _STORE.search(text)
    if found:
        key = _GLOO_KEY.search(found["keys"])
        return TimeoutEvent(
            line=line,
            rank=_rank(text, line),
            operation="store wait",
            description=found["keys"],
            timeout_ms=int(found["ms"]),
            absent=key.group(1) if key else "",
        )
    found = _STORE_KEY.search(text)
    if found:
        return TimeoutEvent(
            line=line,
            rank=_rank(text, line),
            operation="store wait",
            description=found["key"] or "",
            timeout_ms=int(found["ms"]),
        )
    found = _CLIENTS.search(text)
    if found:
        return TimeoutEvent(
            line=line,
            rank=_rank(text, line),
            operation="store join",
            description=f"{found['count']} joined",
            timeout_ms=int(found["seconds"]) * 1000,
        )
    return None


def _read_barrier(text: str, line: LogLine) -> TimeoutEvent | None:
    found = _MONITORED.search(text)
    if found:
        return TimeoutEvent(
            line=line,
            rank=_rank(text, line, _number(_GROUP_RANK, text)),
            operation="monitored_barrier",
            timeout_ms=int(found["ms"]),
            absent=_ranks(found["ranks"]),
        )
    found = _LAGGING.search(text)
    if found:
        return TimeoutEvent(line=line, rank=_rank(text, line), absent=_ranks(found["ranks"]))
    found = _MISSING_RANKS.search(text)
    if found:
        return TimeoutEvent(
            line=line, rank=int(found["rank"]), operation="store barrier", absent=_ranks(found["ranks"])
        )
    found = _STORE_BARRIER.search(text)
    if found:
        return TimeoutEvent(
            line=line,
            rank=int(found["rank"]),
            operation="store barrier",
            description=f"{found['count']}/{found['size']} joined",
        )
    return None


def _read_notify(text: str, line: LogLine) -> TimeoutEvent | None:
    found = _NOTIFY.search(text)
    if not found:
        return None
    return TimeoutEvent(
        line=line,
        rank=_rank(text, line),
        operation=found["operation"] or "notify wait",
        group=found["group"] or "",
        peer=f"rank {found['peer']}" if found["peer"].isdigit() else "",
    )


_READERS = (_read_work, _read_status, _read_gloo, _read_store, _read_barrier, _read_notify)
