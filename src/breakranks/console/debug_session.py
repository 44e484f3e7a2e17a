"""All ranks of a job that can be reached, as one: who is where, what goes to whom, and what came back."""

from __future__ import annotations

import itertools
import selectors
import time
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from breakranks.backend.job_backend import Backend
from breakranks.backend.local_backend import LocalBackend
from breakranks.backend.rank_connection import FoundAgent, Message, RankConnection
from breakranks.errors import ManyJobsError, NoJobError
from breakranks.own_suspension import stalled
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.answer_groups import RankAnswer

_NO_AGENT = (
    "Put breakranks.breakpoint() where it is to stop, and start the job; a rank is here from its first breakpoint on.\n"
    "For a job that runs already: breakranks why, breakranks stacks."
)


class SessionEvent(Struct, frozen=True, kw_only=True):
    """Something that happened to a rank while nobody asked: it stopped, went on, or ended."""

    rank: int
    what: str  # "stopped", "running", "gone", "said" (by the commands of a breakpoint)
    state: dict[str, Any]
    text: str = ""


class PendingCommand(Struct, kw_only=True):
    """A line that ranks were sent, and the answers so far."""

    number: int
    line: str
    awaited: set[int]
    answers: dict[int, RankAnswer]
    gone: set[int]  # those that ended instead
    went: set[int]
    tracing: set[int]  # those of them that will stop again at a breakpoint of pdb's


class DebugSession:
    """One job, by name or by some of its processes. Ranks come into it as they reach their first breakpoint."""

    def __init__(
        self,
        job: str | None = None,
        pids: Iterable[int] | None = None,
        *,
        watch: bool = False,
        agents: Iterable[FoundAgent] | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.job = job
        self.backend: Backend = LocalBackend() if backend is None else backend
        self._place = self.backend.agents
        self._agents = None if agents is None else list(agents)  # those of a job that was attached to: no others come
        self._pids = None if pids is None else frozenset(pids)
        self._watch = watch
        self.links: dict[int, RankConnection] = {}  # by rank
        self.events: list[SessionEvent] = []
        self.hits: list[tuple[int, Message]] = []  # of probes, as they came
        self._numbers = itertools.count(1)
        self._replies: dict[int, dict[int, Message]] = {}
        self._pending: PendingCommand | None = None
        self._selector = selectors.DefaultSelector()
        self.scanned = 0.0
        self.world = 0

    # ---- who is here

    def scan(self) -> None:
        """Connect to the agents that are new. The first of a job decides which job it is."""
        self.scanned = time.monotonic()
        if self._agents is not None:
            agents, self._agents = self._agents, []
            for found in agents:
                self._meet(found)
            return
        here = self._place.find()
        if self.job is None:
            self.job = _only_job([one for one in here if self._pids is None or one.pid in self._pids])
        elif not any(one.job == self.job for one in here):
            self.job = _named_job(here, self.job) or self.job
        for found in here:
            if found.job == self.job:
                self._meet(found)

    def _meet(self, found: FoundAgent) -> None:
        known = self.links.get(found.rank)
        if known is not None and not known.closed:
            if known.found.pid == found.pid:
                return
            # A helper takes the rank's place only where it is the one that is stopped.
            if found.helper and (known.state.get("state") != "running" or not found.debugging):
                return
            if not found.helper and not (known.found.helper and known.state.get("state") == "running"):
                return
            self._forget(known)
        try:
            link = RankConnection(found, self._place)
        except OSError:  # it has just ended
            return
        self.links[found.rank] = link
        self._selector.register(link, selectors.EVENT_READ, link)
        link.send({"do": "hello", "console": not self._watch, "version": 1})

    def _forget(self, link: RankConnection) -> None:
        try:
            self._selector.unregister(link)
        except (KeyError, ValueError):
            pass
        link.close()

    @property
    def ranks(self) -> RankSet:
        return RankSet(rank for rank, link in self.links.items() if not link.closed)

    def in_state(self, *states: str) -> RankSet:
        return RankSet(rank for rank in self.ranks if self.links[rank].state.get("state") in states)

    @property
    def stopped(self) -> RankSet:
        """Ranks that are in the debugger, at a prompt or held."""
        return self.in_state("stopped", "busy")

    def stops(self) -> dict[int, float]:
        """Since when each stopped rank is stopped; what tells one stop from the next."""
        return {rank: float(self.links[rank].state.get("since") or 0.0) for rank in self.stopped}

    def unmoved(self, before: dict[int, float]) -> RankSet:
        """Ranks that are still in the stop that they were in."""
        now = self.stops()
        return RankSet(rank for rank, since in before.items() if now.get(rank) == since)

    @property
    def held(self) -> RankSet:
        return RankSet(rank for rank in self.stopped if self.links[rank].state.get("role") == "held")

    @property
    def debugged(self) -> RankSet:
        """Ranks that are stopped, or run to a breakpoint that somebody has set."""
        return self.stopped | RankSet(rank for rank in self.ranks if self.links[rank].state.get("tracing"))

    def state(self, rank: int) -> Message:
        return self.links[rank].state

    # ---- in and out

    def poll(self, wait: float) -> None:
        """Hear what there is, for at most so long."""
        # Ranks that are still to come are waited for by a person; once all are here, hardly anything changes.
        complete = bool(self.world) and len(self.links) >= self.world
        self.rescan(self._place.rescan if complete else self._place.rescan / 10)
        for key, _ in self._selector.select(wait):
            link: RankConnection = key.data
            messages = link.receive()
            for message in messages:
                self._hear(link, message)
            if link.closed:
                self._gone(link)

    def rescan(self, seconds: float | None = None) -> None:
        """Look for agents that are new, if the last look is so long ago."""
        if time.monotonic() - self.scanned > (self._place.rescan if seconds is None else seconds):
            self.scan()

    def drain(self) -> None:
        """Hear all that has come so far."""
        for _ in range(100):
            if not self._selector.select(0):
                return
            self.poll(0)

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Poll until something is so; False if it is not in time."""
        until = time.monotonic() + seconds
        while not done():
            began = time.monotonic()
            span = min(until - began, 0.05)
            if span <= 0:
                return False
            self.poll(span)
            until += stalled(time.monotonic() - began, span)
        return True

    def _gone(self, link: RankConnection) -> None:
        self._forget(link)
        rank = link.rank
        if self.links.get(rank) is not link:
            return
        del self.links[rank]
        self.events.append(SessionEvent(rank=rank, what="gone", state=link.state))
        pending = self._pending
        if pending is not None and rank in pending.awaited:
            pending.awaited.discard(rank)
            pending.gone.add(rank)

    def _hear(self, link: RankConnection, message: Message) -> None:
        event = message.get("event")
        if event in ("hello", "state", "where"):
            self._note(link, message)
        elif event == "probe":
            self.hits.append((link.rank, message))
        elif event == "said":
            text = str(message.get("text", ""))
            self.events.append(SessionEvent(rank=link.rank, what="said", state=link.state, text=text))
        elif event == "answer":
            state = message.get("state")
            if isinstance(state, dict):
                # An answer to a line that nobody waits for any more is news.
                self._note(link, state, quiet=self._pending is not None and message.get("id") == self._pending.number)
            self._answered(link, message)
        number = message.get("id")
        if isinstance(number, int) and number in self._replies:
            self._replies[number][link.rank] = message

    def _note(self, link: RankConnection, state: Message, *, quiet: bool = False) -> None:
        if int(state.get("turn") or 0) < int(link.state.get("turn") or 0):
            return  # overtaken on its way by what it became
        state = {**state, "rank": link.rank}
        before, link.state = link.state, state
        world = state.get("world")
        if isinstance(world, int):
            self.world = max(self.world, world)
        was, now = _standing(before), _standing(state)
        if state.get("event") == "where" or quiet or was == now:
            return
        what = "stopped" if state.get("state") in ("stopped", "busy") else "running"
        if what == "running" and before.get("state") == "running":
            return
        self.events.append(SessionEvent(rank=link.rank, what=what, state=state, text=str(state.get("text", ""))))

    def _answered(self, link: RankConnection, message: Message) -> None:
        pending = self._pending
        if pending is None or message.get("id") != pending.number or link.rank not in pending.awaited:
            return
        pending.awaited.discard(link.rank)
        if message.get("running"):
            pending.answers[link.rank] = RankAnswer(rank=link.rank, text="is running; `interrupt` stops it", error=True)
            return
        if message.get("went"):
            pending.went.add(link.rank)
            if link.state.get("tracing"):
                pending.tracing.add(link.rank)
        value = message.get("value")
        pending.answers[link.rank] = RankAnswer(
            rank=link.rank,
            text=str(message.get("text", "")),
            value=value if isinstance(value, dict) else None,
            error=bool(message.get("error")),
            cut=int(message.get("cut") or 0),
        )

    # ---- asking

    def start(self, line: str, ranks: RankSet, *, look: bool = False) -> PendingCommand:
        """Send a line to ranks, all at once; the answers come into what is returned, as long as somebody polls.

        ``look``: also to those that are not stopped, for what can be answered without.
        """
        number = next(self._numbers)
        here = ranks & self.ranks
        self._pending = PendingCommand(
            number=number,
            line=line,
            awaited=set(here),
            answers={},
            gone=set(),
            went=set(),
            tracing=set(),
        )
        for rank in here:
            self.links[rank].send({"do": "run", "id": number, "line": line, "takers": str(here), "look": look})
        return self._pending

    def ask(self, message: Message, ranks: RankSet, seconds: float = 2.0) -> dict[int, Message]:
        """Ask the agents themselves, which answer also while their rank is busy; those that did in time."""
        number = next(self._numbers)
        here = ranks & self.ranks
        replies = self._replies[number] = {}
        for rank in here:
            self.links[rank].send({**message, "id": number})
        self.wait(lambda: len(replies) >= len(here & self.ranks), seconds)
        return self._replies.pop(number)

    def go(self, ranks: RankSet) -> None:
        """Let ranks go on; those of other hosts are told through the job's own store."""
        here = ranks & self.ranks
        remote_ranks = ranks - here
        speaker = (self.stopped or self.ranks) if remote_ranks else RankSet()
        for rank in here:
            relay = remote_ranks if speaker and rank == speaker.first else RankSet()
            self.links[rank].send({"do": "go", "id": next(self._numbers), "ranks": str(relay)})
        if remote_ranks and speaker and speaker.first not in here:
            self.links[speaker.first].send(
                {"do": "go", "id": next(self._numbers), "ranks": str(remote_ranks), "only": True}
            )

    def take_events(self) -> list[SessionEvent]:
        events, self.events = self.events, []
        return events

    def close(self, *, armed: bool) -> None:
        """Leave. ``armed``: breakpoints stop again; else everything runs on, and nothing stops any more."""
        for link in self.links.values():
            if not link.closed:
                link.send({"do": "bye", "armed": armed})
                self._forget(link)
        self._selector.close()


def _standing(state: Message) -> tuple[Any, ...]:
    stopped = state.get("state") in ("stopped", "busy")
    return stopped, state.get("since") if stopped else None


def _only_job(here: list[FoundAgent]) -> str | None:
    jobs = sorted({one.job for one in here})
    if len(jobs) > 1:
        stopped = sorted({one.job for one in here if one.debugging})
        if len(stopped) == 1:
            return stopped[0]
        rows = (_job_text([one for one in here if one.job == job]) for job in jobs)
        raise ManyJobsError(f"{len(jobs)} jobs with breakpoints are here", "Say which:\n" + "\n".join(rows))
    return jobs[0] if jobs else None


def _job_text(agents: list[FoundAgent]) -> str:
    where = next((f", at {one.place}" for one in agents if one.place), "")
    ranks = ranks_text(RankSet(one.rank for one in agents))
    return f"  --job {agents[0].job}   {agents[0].program}, {ranks}{where}"


def _named_job(here: list[FoundAgent], name: str) -> str | None:
    """The job whose name, or a part of it such as its port, is ``name``."""
    jobs = sorted({one.job for one in here})
    fitting = [job for job in jobs if job.startswith(name)] or [job for job in jobs if name in job.split("-")]
    if len(fitting) > 1:
        raise ManyJobsError(f"{name!r} fits {len(fitting)} jobs", "They are: " + ", ".join(fitting))
    return fitting[0] if fitting else None


def nobody(job: str | None) -> NoJobError:
    """Why there is nothing to talk to."""
    if job is not None:
        return NoJobError(f"no rank of job {job!r} has come to a breakpoint here", _NO_AGENT)
    return NoJobError("no rank here has come to a breakpoint", _NO_AGENT)
