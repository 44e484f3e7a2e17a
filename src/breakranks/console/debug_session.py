"""All reachable ranks of a job: their states, requests to them, and their replies."""

from __future__ import annotations

import itertools
import selectors
import time
from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

from msgspec import Struct

from breakranks.backend.found_agents import FoundAgent
from breakranks.backend.job_backend import Backend
from breakranks.backend.local_backend import LocalBackend
from breakranks.backend.rank_connection import RankConnection
from breakranks.console.command_parser import RESUMING
from breakranks.console.job_choice import named_job, only_job
from breakranks.console.wait_times import FOREVER_SECONDS, POLL_SECONDS, REPLY_SECONDS
from breakranks.machine_suspension import stalled
from breakranks.rank_messages import (
    AnswerEvent,
    ByeRequest,
    DoneEvent,
    GoRequest,
    HelloEvent,
    HelloRequest,
    ProbeEvent,
    RankEvent,
    RankRequest,
    RankState,
    RunRequest,
    RunState,
    SaidEvent,
    StateEvent,
    WhereEvent,
    WhereRequest,
    changed,
)
from breakranks.rankset import RankSet
from breakranks.snapshot.rank_answer import RankAnswer

_MAX_DRAINS = 100
Reply = TypeVar("Reply", bound=RankEvent)
Change = Literal["stopped", "running", "gone", "said"]


class SessionEvent(Struct, frozen=True, kw_only=True):
    """A change that no request has caused: a rank has stopped, resumed or ended, or a breakpoint's commands printed."""

    rank: int
    what: Change
    state: RankState
    text: str = ""


class PendingCommand(Struct, kw_only=True):
    """A line that ranks run, and their answers so far."""

    number: int
    line: str
    awaited: set[int]
    answers: dict[int, RankAnswer]
    gone: set[int]  # ended instead
    went: set[int]  # resumed
    tracing: set[int]  # those of them that may stop again at a breakpoint


class DebugSession:
    """One job, by name or by some of its processes. Ranks appear as they reach their first breakpoint.

    ``agents``: those of a job that was attached to; no others are looked for.
    """

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
        self._agents = None if agents is None else list(agents)
        self._pids = None if pids is None else frozenset(pids)
        self._watch = watch
        self.links: dict[int, RankConnection] = {}  # by rank
        self.events: list[SessionEvent] = []
        self.hits: list[tuple[int, ProbeEvent]] = []  # of logpoints, in order
        self._numbers = itertools.count(1)
        self._replies: dict[int, dict[int, RankEvent]] = {}
        self._pending: PendingCommand | None = None
        self._selector = selectors.DefaultSelector()
        self.scanned = 0.0
        self.world = 0

    # ---- ranks

    def scan(self) -> None:
        """Connect to new agents. The first one decides which job the session is about."""
        self.scanned = time.monotonic()
        if self._agents is not None:
            agents, self._agents = self._agents, []
            for found in agents:
                self._connect(found)
            return
        agents = self._place.find()
        if self.job is None:
            self.job = only_job([agent for agent in agents if self._pids is None or agent.pid in self._pids])
        elif not any(agent.job == self.job for agent in agents):
            self.job = named_job(agents, self.job) or self.job
        for found in agents:
            if found.job == self.job:
                self._connect(found)

    def _connect(self, found: FoundAgent) -> None:
        known = self.links.get(found.rank)
        if known is not None and not known.closed:
            if known.found.pid == found.pid:
                return
            # A helper replaces the process of the rank only where the helper alone is stopped.
            if found.helper and (known.state.is_stopped or not found.debugging):
                return
            if not found.helper and not (known.found.helper and not known.state.is_stopped):
                return
            self._forget(known)
        try:
            link = RankConnection(found, self._place)
        except OSError:  # it has just ended
            return
        self.links[found.rank] = link
        self._selector.register(link, selectors.EVENT_READ, link)
        link.send(HelloRequest(console=not self._watch))

    def _forget(self, link: RankConnection) -> None:
        try:
            self._selector.unregister(link)
        except (KeyError, ValueError):
            pass
        link.close()

    @property
    def ranks(self) -> RankSet:
        return RankSet(rank for rank, link in self.links.items() if not link.closed)

    @property
    def absent(self) -> RankSet:
        """Ranks of the job that are not connected."""
        return RankSet.span(0, self.world) - self.ranks

    @property
    def is_greeted(self) -> bool:
        """Whether all connected ranks have sent their state."""
        return all(self.links[rank].greeted for rank in self.ranks)

    def in_state(self, *states: RunState) -> RankSet:
        return RankSet(rank for rank in self.ranks if self.links[rank].state.state in states)

    @property
    def stopped(self) -> RankSet:
        """Ranks that are in the debugger, at a prompt or held."""
        return self.in_state("stopped", "busy")

    def stops(self) -> dict[int, float]:
        """Since when each stopped rank is stopped, which tells one stop from the next."""
        return {rank: self.links[rank].state.since or 0.0 for rank in self.stopped}

    def unmoved(self, before: dict[int, float]) -> RankSet:
        """Ranks that are still in the stop that they were in."""
        now = self.stops()
        return RankSet(rank for rank, since in before.items() if now.get(rank) == since)

    @property
    def held(self) -> RankSet:
        return RankSet(rank for rank in self.stopped if self.links[rank].state.is_held)

    @property
    def debugged(self) -> RankSet:
        """Ranks that are stopped, or run to a breakpoint."""
        return self.stopped | RankSet(rank for rank in self.ranks if self.links[rank].state.tracing)

    def state(self, rank: int) -> RankState:
        return self.links[rank].state

    # ---- receiving

    def poll(self, seconds: float) -> None:
        """Receive events for at most this long."""
        # While ranks are missing, a user waits for them; when all are here, hardly anything changes.
        complete = bool(self.world) and len(self.links) >= self.world
        self.rescan(self._place.rescan if complete else self._place.rescan / 10)
        for key, _ in self._selector.select(seconds):
            link: RankConnection = key.data
            for event in link.receive():
                self._receive(link, event)
            if link.closed:
                self._gone(link)

    def rescan(self, seconds: float | None = None) -> None:
        """Look for new agents, if the last search was longer ago than this."""
        if time.monotonic() - self.scanned > (self._place.rescan if seconds is None else seconds):
            self.scan()

    def drain(self) -> None:
        """Receive everything that has come so far."""
        for _ in range(_MAX_DRAINS):
            if not self._selector.select(0):
                return
            self.poll(0)

    def wait(self, done: Callable[[], bool], seconds: float = FOREVER_SECONDS) -> bool:
        """Poll until a condition holds; False if it does not in time."""
        until = time.monotonic() + seconds
        while not done():
            began = time.monotonic()
            span = min(until - began, POLL_SECONDS)
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

    def _receive(self, link: RankConnection, event: RankEvent) -> None:
        if isinstance(event, (HelloEvent, StateEvent, WhereEvent)):
            event = changed(event, rank=link.rank)
        if isinstance(event, WhereEvent):
            self._update(link, event, quiet=True)
        elif isinstance(event, StateEvent):
            self._update(link, event, text=event.text or "")
        elif isinstance(event, HelloEvent):
            self._update(link, event)
        elif isinstance(event, ProbeEvent):
            self.hits.append((link.rank, event))
        elif isinstance(event, SaidEvent):
            self.events.append(SessionEvent(rank=link.rank, what="said", state=link.state, text=event.text))
        elif isinstance(event, AnswerEvent):
            # An answer to a line that no command waits for any more is a change.
            mine = self._pending is not None and event.id == self._pending.number
            self._update(link, event.state, quiet=mine and not event.went)
            self._answered(link, event)
        if event.id is not None and event.id in self._replies:
            self._replies[event.id][link.rank] = event

    def _update(self, link: RankConnection, state: RankState, *, text: str = "", quiet: bool = False) -> None:
        if state.turn < link.state.turn:
            return  # a newer state has overtaken it
        link.greeted = True
        before, link.state = link.state, changed(state, rank=link.rank)
        self.world = max(self.world, state.world)
        was, now = _stop_of(before), _stop_of(state)
        if quiet or was == now:
            return
        what: Change = "stopped" if state.is_stopped else "running"
        if state.is_stopped or before.is_stopped:
            self.events.append(SessionEvent(rank=link.rank, what=what, state=link.state, text=text))

    def _answered(self, link: RankConnection, event: AnswerEvent) -> None:
        pending = self._pending
        if pending is None or event.id != pending.number or link.rank not in pending.awaited:
            return
        pending.awaited.discard(link.rank)
        if event.running:
            pending.answers[link.rank] = RankAnswer(rank=link.rank, text="is running; `interrupt` stops it", error=True)
            return
        if event.went:
            pending.went.add(link.rank)
            if link.state.tracing:
                pending.tracing.add(link.rank)
        pending.answers[link.rank] = RankAnswer(
            rank=link.rank, text=event.text, value=event.value, error=event.error, cut=event.cut
        )

    # ---- requests

    def start(self, line: str, ranks: RankSet, *, look: bool = False) -> PendingCommand:
        """Send a line to ranks, all at once. The answers appear in the result while the session is polled.

        ``look``: ranks that are not stopped answer as well, as far as they can.
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
        resumes = line.split()[:1] in RESUMING
        for rank in here:
            turn = self._turn(rank) if resumes else None
            self.links[rank].send(RunRequest(id=number, line=line, takers=str(here), look=look, turn=turn))
        return self._pending

    def ask(self, request: RankRequest, ranks: RankSet, seconds: float = REPLY_SECONDS) -> dict[int, RankEvent]:
        """Send a request to agents, which answer also while their rank is busy; return the replies in time."""
        number = next(self._numbers)
        here = ranks & self.ranks
        replies = self._replies[number] = {}
        for rank in here:
            self.links[rank].send(changed(request, id=number))
        self.wait(lambda: len(replies) >= len(here & self.ranks), seconds)
        return self._replies.pop(number)

    def ask_where(self, ranks: RankSet, seconds: float = REPLY_SECONDS) -> dict[int, WhereEvent]:
        """Where ranks are, which may run."""
        return _of_kind(self.ask(WhereRequest(), ranks, seconds), WhereEvent)

    def ask_done(self, request: RankRequest, ranks: RankSet, seconds: float = REPLY_SECONDS) -> dict[int, DoneEvent]:
        """What has come of a request."""
        return _of_kind(self.ask(request, ranks, seconds), DoneEvent)

    def go(self, ranks: RankSet) -> None:
        """Resume ranks; those of other hosts through the job's own store."""
        here = ranks & self.ranks
        elsewhere = ranks - here
        speaker = (self.stopped or self.ranks) if elsewhere else RankSet()
        for rank in here:
            relay = elsewhere if speaker and rank == speaker.first else RankSet()
            self.links[rank].send(GoRequest(id=next(self._numbers), ranks=str(relay), turn=self._turn(rank)))
        if elsewhere and speaker and speaker.first not in here:
            self.links[speaker.first].send(GoRequest(id=next(self._numbers), ranks=str(elsewhere), only=True))

    def _turn(self, rank: int) -> int | None:
        """The turn of the stop from which a request resumes a rank: of the known one, or else of the next one."""
        link = self.links[rank]
        if not link.greeted:
            return None
        return link.state.turn if link.state.is_stopped else link.state.turn + 1

    def take_events(self) -> list[SessionEvent]:
        events, self.events = self.events, []
        return events

    def drop_events(self, ranks: RankSet, what: Change) -> None:
        """Drop changes that an answer has shown already."""
        self.events = [event for event in self.events if event.rank not in ranks or event.what != what]

    def close(self, *, armed: bool) -> None:
        """Leave. ``armed``: breakpoints stop again; else all ranks resume, and nothing stops them any more."""
        for link in self.links.values():
            if not link.closed:
                link.send(ByeRequest(armed=armed))
                self._forget(link)
        self._selector.close()


def _stop_of(state: RankState) -> tuple[bool, float | None]:
    return state.is_stopped, state.since if state.is_stopped else None


def _of_kind(replies: dict[int, RankEvent], kind: type[Reply]) -> dict[int, Reply]:
    return {rank: reply for rank, reply in replies.items() if isinstance(reply, kind)}
