"""The console without its terminal: a line goes in, and what it did comes out as plain values.

A line is a word of ours (``focus``, ``go``, ``ranks`` …) or goes to pdb in every rank of the focus.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from breakranks.backend.rank_connection import Message
from breakranks.console.command_parser import ARMING, HELP, STEPS, CommandWord, parse
from breakranks.console.command_results import (
    NEW_LINE,
    LeaveConsole,
    Notice,
    Outcome,
    RanksStopped,
    RankState,
    RankStates,
    ToolCommand,
)
from breakranks.console.debug_session import DebugSession, PendingCommand, SessionEvent
from breakranks.console.rank_phrases import are, them, they_come, they_stop, verb
from breakranks.console.unanswered import UnansweredRanks, waits_of
from breakranks.errors import UsageError
from breakranks.own_suspension import stalled
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.answer_groups import RankAnswer, fold

_LOOK_SECONDS = 0.7  # seconds without an answer after which we look where a rank is
_AGAIN_SECONDS = 2.0
_TURN_SECONDS = 0.2
_ANSWER_SECONDS = 1.0  # seconds in which an agent says where its rank is
_COMING_SECONDS = 10.0  # seconds that it waits for the rank that others hold for
_FOLD_SECONDS = 0.5  # without another stop after which those that there were are said, in one line for each place,
_FOLD_SECONDS_MOST = 2.0  # and at the latest
_GO_SECONDS = 10.0  # seconds that a rank has to go on, once nothing keeps it
_ARRIVAL_SECONDS = 3.0  # seconds that a script waits for ranks that should come soon


class Console:
    """``patience`` is how long a script waits for a rank; a person waits until ``pressed`` says that they do not."""

    def __init__(
        self,
        session: DebugSession,
        *,
        interactive: bool,
        patience: float = 60.0,
        pressed: Callable[[], bool] = lambda: False,
        stays: Callable[[], bool] = lambda: True,
        looks: bool = False,
    ) -> None:
        self.session = session
        self.interactive = interactive
        self.failed = False  # something that was asked for did not work
        self._patience = patience
        self._pressed = pressed
        self._stays = stays  # whether to wait for the next stop, once everything runs
        self._looks = looks  # whether ranks that are not stopped are asked too
        self._chosen: RankSet | None = None
        self._shown: tuple[UnansweredRanks, ...] = ()
        self._told_absent = False
        self._sent = False  # a script has sent ranks to a breakpoint, and not waited for them yet
        self.repeated = ""  # the last line for pdb: what an empty line stands for

    # ---- the focus

    @property
    def focus(self) -> RankSet:
        """Whom a line goes to: what was chosen, else those at a prompt, else all that are stopped."""
        session = self.session
        if self._chosen is not None:
            return self._chosen
        if self._looks:
            return session.ranks
        return (session.stopped - session.held) or session.stopped or session.debugged or session.ranks

    @property
    def prompt(self) -> str:
        focus = self.focus
        running = focus - self.session.stopped
        what = "inspected" if self._looks else "running"
        if running == focus:
            return f"[{focus} {what}] > " if focus else "[nobody] > "
        return f"[{focus}] > " if not running else f"[{focus}; {running} {what}] > "

    def news(self) -> Iterator[Outcome]:
        """What has happened since the last prompt, unasked."""
        self.session.drain()
        self._collect_stops()
        events = self.session.take_events()
        said: dict[int, str] = {}
        for event in events:
            if event.what == "said":
                said[event.rank] = said.get(event.rank, "") + event.text
        if said:
            yield fold(RankAnswer(rank=rank, text=text) for rank, text in said.items())
        last: dict[int, SessionEvent] = {event.rank: event for event in events if event.what != "said"}
        stopped = tuple(event.state for event in last.values() if event.what == "stopped")
        gone = RankSet(event.rank for event in events if event.what == "gone" and event.rank not in self.session.ranks)
        if gone:
            yield Notice(text=f"{ranks_text(gone)} {'has' if len(gone) == 1 else 'have'} ended", style="warn")
        if stopped:
            yield RanksStopped(states=stopped)

    def _collect_stops(self) -> None:
        """Ranks come to the same place a moment apart: wait for those that follow a rank that has stopped."""
        session, until = self.session, time.monotonic() + _FOLD_SECONDS_MOST
        pause = min(_FOLD_SECONDS, self._patience)
        if not any(event.what == "stopped" for event in session.events):
            return
        while time.monotonic() < until:
            if not session.wait(self._another_stop(), pause) or session.ranks <= session.stopped:
                return

    def _another_stop(self) -> Callable[[], bool]:
        """Whether others have stopped than those that have now, or all."""
        session, stopped = self.session, self.session.stopped
        return lambda: session.stopped != stopped or session.ranks <= session.stopped

    # ---- one line

    def expect(self, line: str) -> Iterator[Outcome]:
        """In a script, before a line: wait for those that it is meant for. A person types slower than ranks arrive."""
        word = parse(line, self.focus)
        if word.name == "pdb" and self._looks:
            self._await_breakpoint(word.rest)
        elif word.name == "pdb":
            yield from self._gather(word)

    def execute(self, line: str) -> Iterator[Outcome]:
        """Do one line. Raises UsageError for what makes no sense."""
        self.session.drain()
        word = parse(line, self.focus)
        if word.name == "pdb":
            self.repeated = line
        action = getattr(self, f"_do_{word.name}")
        yield from action(word)

    def _do_nothing(self, word: CommandWord) -> Iterator[Outcome]:
        yield from ()

    def _do_help(self, word: CommandWord) -> Iterator[Outcome]:
        if word.rest and self.session.stopped:
            yield from self._run(f"help {word.rest}", RankSet([self.session.stopped.first]))
        else:
            yield Notice(text=HELP)

    def _do_focus(self, word: CommandWord) -> Iterator[Outcome]:
        if word.rest in ("", "auto"):
            self._chosen = None
            yield Notice(text=f"the focus is {self.focus or 'nobody'}", style="dim")
            return
        wanted = self._known(self._named(word.rest))
        self._chosen = wanted
        running = wanted - self.session.stopped
        if running:
            yield Notice(text=f"{are(running, 'running')}: `interrupt {running}` stops {them(running)}", style="dim")

    def _do_pdb(self, word: CommandWord) -> Iterator[Outcome]:
        ranks = word.ranks if word.ranks is not None else self.focus
        if word.everyone:
            ranks = self.session.ranks if self._looks else self.session.stopped
        ranks = self._known(ranks)
        if not word.rest:
            raise UsageError("there is no command for them", "For example: all p loss, rank 3 w")
        if word.ranks is None and word.rest.split()[0] in STEPS:
            ranks = ranks & self.session.stopped or ranks  # those that are only looked at cannot step
        yield from self._run(word.rest, ranks)

    def _do_wait(self, word: CommandWord) -> Iterator[Outcome]:
        """Until somebody stops: for scripts that have set a breakpoint."""
        if word.rest and not word.rest.isdigit():
            raise UsageError(f"{word.rest!r} is no number of seconds", "For example: wait 60")
        came = self.session.wait(lambda: bool(self.session.stopped), float(word.rest or self._patience))
        self.failed = self.failed or not came
        if not came:
            yield Notice(text="no rank has stopped", style="warn")
        self.session.wait(lambda: self.session.debugged <= self.session.stopped, _ARRIVAL_SECONDS)
        self._sent = False
        self._drop_events(self.session.stopped, "stopped")
        yield from self.news()
        if came:
            yield RanksStopped(states=tuple(self.session.state(rank) for rank in self.session.stopped))

    def _do_go(self, word: CommandWord) -> Iterator[Outcome]:
        everyone = not word.rest or word.rest == "all"
        ranks = RankSet.span(0, max(self.session.world, 1)) | self.session.ranks if everyone else self._named(word.rest)
        if not everyone:
            self._known(ranks, remote_ranks=True)
        stopped = ranks & self.session.stopped
        if not stopped and not (ranks - self.session.ranks):
            yield Notice(text="nobody is held", style="dim")
            return
        before = self.session.stops()
        self.session.go(ranks)
        self.session.wait(lambda: not (stopped & self.session.unmoved(before)), min(self._patience, _GO_SECONDS))
        self._drop_events(stopped, "running")
        stuck = stopped & self.session.unmoved(before)
        gone = stopped - stuck
        if gone:
            yield Notice(text=f"{verb(gone, 'goes', 'go')} on")
        if stuck:
            yield Notice(
                text=f"{are(stuck, 'busy')} with what was asked before, and will go on after it; `interrupt` ends it",
                style="warn",
            )

    def _do_hold(self, word: CommandWord) -> Iterator[Outcome]:
        yield from self._halt(word, hold=True)

    def _do_interrupt(self, word: CommandWord) -> Iterator[Outcome]:
        yield from self._halt(word, hold=False)

    def _halt(self, word: CommandWord, *, hold: bool) -> Iterator[Outcome]:
        if word.rest:
            ranks = self._known(self._named(word.rest))
        else:
            ranks = self.session.ranks if hold else self.focus
        if not ranks:
            yield Notice(text="nobody is here any more", style="warn")
            return
        busy = ranks & self.session.in_state("busy")
        running = ranks - self.session.stopped
        if not busy and not running:
            yield Notice(text=f"{are(ranks, 'stopped')} already", style="dim")
            return
        replies = self.session.ask({"do": "interrupt", "hold": hold}, busy | running)
        refused = {rank: str(reply["why"]) for rank, reply in replies.items() if reply.get("why")}
        for rank, why in refused.items():
            yield Notice(text=f"rank {rank} cannot be stopped: {why}", style="warn")
        running -= RankSet(refused)
        patience = min(self._patience, 5.0)

        def settled() -> bool:
            waiting = (running - self.session.stopped) | (busy & self.session.in_state("busy"))
            return not (waiting & self.session.ranks) or self._pressed()

        self.session.wait(settled, patience)
        yield from self.news()
        late = (running - self.session.stopped) & self.session.ranks
        for wait in self._waits(late):
            yield Notice(text=f"{wait.text}; {they_stop(wait.ranks)} when {they_come(wait.ranks)} back to Python")
            late -= wait.ranks
        if late:
            yield Notice(text=f"{are(late, 'in C')}; {they_stop(late)} when {they_come(late)} back to Python")
        still = busy & self.session.in_state("busy")
        if still:
            yield Notice(text=f"{verb(still, 'does', 'do')} not end what was asked: it is in C", style="warn")

    def _do_ranks(self, word: CommandWord) -> Iterator[Outcome]:
        replies = self.session.ask({"do": "where"}, self.session.ranks)
        rows = tuple(
            RankState(
                rank=rank,
                state=replies.get(rank, self.session.state(rank)),
                frames=_frames(replies.get(rank, {})),
            )
            for rank in self.session.ranks
        )
        yield RankStates(rows=rows, absent=RankSet.span(0, self.session.world) - self.session.ranks)

    def _do_stacks(self, word: CommandWord) -> Iterator[Outcome]:
        yield ToolCommand(command="stacks", ranks=self._named(word.rest) if word.rest else RankSet())

    def _do_why(self, word: CommandWord) -> Iterator[Outcome]:
        yield ToolCommand(command="why", ranks=RankSet())

    def _do_quit(self, word: CommandWord) -> Iterator[Outcome]:
        yield LeaveConsole()

    def _do_kill(self, word: CommandWord) -> Iterator[Outcome]:
        yield LeaveConsole(kill=True)

    # ---- lines for pdb

    def _gather(self, word: CommandWord) -> Iterator[Outcome]:
        """Wait for those that a line is meant for to come to their stop."""
        session = self.session
        if word.everyone:
            session.wait(lambda: bool(session.stopped), self._patience)
            session.wait(lambda: session.ranks <= session.stopped, 0.5)
            absent = RankSet.span(0, session.world) - session.ranks
            if absent and not self._told_absent:
                session.wait(
                    lambda: RankSet.span(0, session.world) <= session.ranks & session.stopped, _ARRIVAL_SECONDS
                )
                absent = RankSet.span(0, session.world) - session.ranks
                self._told_absent = bool(absent)
            if absent:
                yield Notice(text=f"without {ranks_text(absent)}, at no breakpoint yet or on other hosts", style="warn")
        elif word.ranks is None and self._chosen is None:
            session.wait(lambda: bool(session.stopped), self._patience)
            # Who held for a rank that has gone on may be gone by now, and on its way to the next stop.
            come = min(self._patience, _COMING_SECONDS)
            session.wait(lambda: not session.ranks or (bool(session.stopped) and not self._expected()), come)

    def _await_breakpoint(self, line: str) -> None:
        """A script has sent ranks to a breakpoint: a line that sets no other is for when they are there."""
        session = self.session
        if line.split()[:1] in ARMING:
            self._sent = True
            return
        if not self._sent or self.failed or session.debugged <= session.stopped:
            return
        self._sent = False
        session.wait(lambda: bool(session.stopped), self._patience)
        session.wait(
            lambda: session.debugged <= session.stopped, _ARRIVAL_SECONDS
        )  # the others come at the same moment

    def _expected(self) -> bool:
        """Whether all that are stopped hold for ranks that may still come here."""
        session = self.session
        if session.stopped != session.held:
            return False
        awaited = RankSet()
        for rank in session.held:
            awaited |= RankSet.parse(str(session.state(rank).get("stoppers", "")))
        return bool((awaited & RankSet.span(0, session.world)) - session.stopped)

    def _run(self, line: str, ranks: RankSet) -> Iterator[Outcome]:
        if not self.interactive and not self._looks and ranks - self.session.stopped:
            self.session.wait(lambda: ranks & self.session.ranks <= self.session.stopped, self._patience)
            self._drop_events(ranks, "stopped")
        running = (ranks - self.session.stopped) & self.session.ranks
        if running and not self._looks and line.split()[:1] not in ARMING:
            self.failed = self.failed or not self.interactive
            yield Notice(text=f"{are(running, 'running')}: `interrupt {running}` stops {them(running)}", style="warn")
        looks = self._looks or line.split()[:1] in ARMING
        taking = ranks & (self.session.ranks if looks else self.session.stopped)
        if not taking:
            return
        before = self.session.stops()
        held = self.session.held
        pending = self.session.start(line, taking, look=looks)
        yield from self._await(pending)
        late = RankSet(pending.awaited)
        answers = list(pending.answers.values())
        self.failed = self.failed or bool(late) or any(one.error for one in answers)
        went = RankSet(pending.went)
        self._drop_events(taking - went, "stopped")
        gone = RankSet(pending.gone)
        self.failed = self.failed or bool(gone)
        self._drop_events(gone, "gone")
        shown = [one for one in answers if one.rank not in went or one.text or one.error]
        if shown:
            yield fold(shown)
        if gone:
            yield Notice(text=f"{verb(gone, 'has', 'have')} ended", style="warn")
        if late:
            yield Notice(text=f"{are(late, 'not back yet')}; `interrupt {late}` stops {them(late)}", style="dim")
        if went:
            yield from self._went(went, RankSet(pending.tracing), held, before)

    def _went(self, went: RankSet, tracing: RankSet, held: RankSet, before: dict[int, float]) -> Iterator[Outcome]:
        """What a `c` led to: the ranks that held for those go on too, unless breakpoints keep them in the debugger."""
        session = self.session
        session.wait(lambda: not (held & session.unmoved(before)), 0.1 if tracing else 1.0)
        if not tracing:  # who held for these alone goes on, however long that takes
            due = RankSet(rank for rank in held & session.ranks if self._holds_for(rank) <= went)
            session.wait(lambda: not (due & session.unmoved(before)), _GO_SECONDS)
        self._drop_events(went | held, "running")
        followed = held - session.unmoved(before) - went
        self._sent = bool(tracing)
        if tracing:
            yield Notice(
                text=f"{verb(tracing, 'runs', 'run')} to {'its' if len(tracing) == 1 else 'their'} breakpoints"
            )
        if went - tracing:
            yield Notice(text=f"{verb(went - tracing, 'goes', 'go')} on")
        if followed:
            yield Notice(text=f"{verb(followed, 'goes', 'go')} on too, held until now", style="dim")
        left = session.unmoved(before) - went
        if left:
            yield Notice(text=f"{are(left, 'still stopped')}: `go` lets all run", style="warn")
        elif self.interactive:
            yield from self._until_next()

    def _holds_for(self, rank: int) -> RankSet:
        """The ranks with which a held one goes on; itself, where it waits for a word."""
        state = self.session.state(rank)
        return RankSet([rank]) if state.get("until_go") else RankSet.parse(str(state.get("stoppers", "")))

    def _until_next(self) -> Iterator[Outcome]:
        """As pdb does: after a `c`, until something stops again, everything has ended, or a person has had enough."""
        session = self.session
        if not session.wait(lambda: bool(session.stopped), 0.2) and session.ranks and self._stays():
            yield Notice(text="running; Ctrl-C gives the prompt back", style="dim")
            try:
                session.wait(lambda: bool(session.stopped) or not session.ranks or self._pressed(), 1e9)
            except KeyboardInterrupt:
                yield NEW_LINE
        yield from self.news()

    def _await(self, pending: PendingCommand) -> Iterator[Outcome]:
        """Until all have answered. What they wait for is said meanwhile, once."""
        waited = looked = 0.0
        last, pause, held = time.monotonic(), _LOOK_SECONDS, RankSet()
        self._shown = ()
        while pending.awaited:
            try:
                if self.session.wait(lambda: not pending.awaited or self._pressed(), _TURN_SECONDS):
                    return
            except KeyboardInterrupt:
                yield NEW_LINE
                return
            last, passed = time.monotonic(), time.monotonic() - last
            waited += passed - stalled(passed, _TURN_SECONDS + _ANSWER_SECONDS)
            if waited - looked < pause:
                continue
            looked, pause = waited, _AGAIN_SECONDS
            waits = tuple(self._waits(RankSet(pending.awaited)))
            before, held = held, RankSet(rank for wait in waits if wait.held for rank in wait.ranks)
            sure = held == before  # one that is just coming out of its collective looks as if it waited for others
            if not sure:
                pause = _LOOK_SECONDS
            elif waits != self._shown:
                self._shown = waits
                for wait in waits:
                    more = "" if wait.held or not self.interactive else "; Ctrl-C gives the prompt back"
                    yield Notice(text=f"{wait.text}{more}", style="warn")
            # Nothing will happen by itself: whoever asked must be able to do something about it.
            if (held and sure) or (not self.interactive and waited > self._patience):
                return

    def _waits(self, ranks: RankSet) -> list[UnansweredRanks]:
        replies = self.session.ask({"do": "where"}, ranks, _ANSWER_SECONDS)
        return waits_of(replies, stopped=self.session.stopped - ranks, here=self.session.ranks)

    # ---- ranks that are named

    def _named(self, text: str) -> RankSet:
        match text.strip():
            case "all":
                return self.session.ranks
            case "stopped":
                return self.session.stopped
            case "held":
                return self.session.held
            case other:
                return RankSet.parse(other)

    def _known(self, ranks: RankSet, *, remote_ranks: bool = False) -> RankSet:
        here = self.session.ranks
        unknown = ranks - here - (RankSet.span(0, self.session.world) if remote_ranks else RankSet())
        if not ranks:
            raise UsageError("nobody is stopped", f"Here: {here or 'nobody'}; `interrupt` stops ranks that run.")
        if unknown:
            is_rank = unknown <= RankSet.span(0, self.session.world)
            why = (
                "It has come to no breakpoint yet, or runs on another host."
                if is_rank
                else f"The job has {self.session.world} ranks."
            )
            raise UsageError(f"{are(unknown, 'not here')}", f"{why} Here: {here or 'nobody'}.")
        return ranks

    def _drop_events(self, ranks: RankSet, what: str) -> None:
        """What an answer has said already is no news."""
        self.session.events = [one for one in self.session.events if one.rank not in ranks or one.what != what]


def _frames(reply: Message) -> tuple[Message, ...]:
    frames = reply.get("frames")
    return tuple(one for one in frames if isinstance(one, dict)) if isinstance(frames, list) else ()
