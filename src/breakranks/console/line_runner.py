"""Running a line of pdb in ranks: waiting for the ranks, for their answers, and for what follows a `c`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from breakranks.console.command_parser import CommandWord, is_arming
from breakranks.console.command_results import NEW_LINE, Notice, Outcome
from breakranks.console.console_options import ConsoleOptions
from breakranks.console.debug_session import DebugSession, PendingCommand
from breakranks.console.news import news
from breakranks.console.rank_phrases import are, them, verb
from breakranks.console.unanswered import UnansweredRanks, waits_of
from breakranks.console.wait_times import (
    ANSWER_CHECK_SECONDS,
    ARRIVAL_SECONDS,
    FIRST_WHERE_SECONDS,
    FOLLOW_SECONDS,
    FOLLOW_TRACED_SECONDS,
    GATHER_SECONDS,
    GO_SECONDS,
    HELD_FOR_SECONDS,
    NEXT_STOP_SECONDS,
    NEXT_WHERE_SECONDS,
    WHERE_SECONDS,
)
from breakranks.machine_suspension import stalled
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.answer_groups import fold


class LineRunner:
    """``failed``: a line had an error, or no answer. ``sent``: ranks run to a breakpoint, which a script waits for."""

    def __init__(self, session: DebugSession, options: ConsoleOptions) -> None:
        self._session = session
        self._options = options
        self.failed = False
        self.sent = False
        self._absent_shown = False

    # ---- before a line

    def gather(self, word: CommandWord, *, any_focus: bool) -> Iterator[Outcome]:
        """In a script, wait for the ranks that a line is for. ``any_focus``: no focus was chosen."""
        session, patience = self._session, self._options.patience
        if word.everyone:
            session.wait(lambda: bool(session.stopped), patience)
            session.wait(lambda: session.ranks <= session.stopped, GATHER_SECONDS)
            if session.absent and not self._absent_shown:
                session.wait(lambda: not session.absent and session.ranks <= session.stopped, ARRIVAL_SECONDS)
                self._absent_shown = bool(session.absent)
            if session.absent:
                text = f"not included: {ranks_text(session.absent)}, at no breakpoint yet or on other hosts"
                yield Notice(text=text, style="warn")
        elif word.ranks is None and any_focus:
            session.wait(lambda: bool(session.stopped), patience)
            # A rank that was held may have resumed by now, and be on its way to its next stop.
            session.wait(
                lambda: not session.ranks or (bool(session.stopped) and not self._is_more_expected()),
                min(patience, HELD_FOR_SECONDS),
            )

    def await_breakpoint(self, line: str) -> None:
        """In a script that has sent ranks to a breakpoint, wait until they reach it, unless the line sets another."""
        session = self._session
        if is_arming(line):
            self.sent = True
            return
        if not self.sent or self.failed or session.debugged <= session.stopped:
            return
        self.sent = False
        session.wait(lambda: bool(session.stopped), self._options.patience)
        session.wait(lambda: session.debugged <= session.stopped, ARRIVAL_SECONDS)

    def _is_more_expected(self) -> bool:
        """Whether all stopped ranks hold for ranks that may still stop here."""
        session = self._session
        if session.stopped != session.held:
            return False
        awaited = RankSet()
        for rank in session.held:
            awaited |= session.state(rank).awaited
        return bool((awaited & RankSet.span(0, session.world)) - session.stopped)

    # ---- a line

    def run(self, line: str, ranks: RankSet) -> Iterator[Outcome]:
        """Run a line in ranks, and wait for the answers."""
        session, options = self._session, self._options
        if not options.interactive and not options.inspects and ranks - session.stopped:
            session.wait(lambda: ranks & session.ranks <= session.stopped, options.patience)
            session.drop_events(ranks, "stopped")
        looks = options.inspects or is_arming(line)
        running = (ranks - session.stopped) & session.ranks
        if running and not looks:
            self.failed = self.failed or not options.interactive
            yield Notice(text=f"{are(running, 'running')}: `interrupt {running}` stops {them(running)}", style="warn")
        taking = ranks & (session.ranks if looks else session.stopped)
        if not taking:
            return
        before, held = session.stops(), session.held
        pending = session.start(line, taking, look=looks)
        yield from self._await(pending)
        late, went, gone = RankSet(pending.awaited), RankSet(pending.went), RankSet(pending.gone)
        answers = list(pending.answers.values())
        self.failed = self.failed or bool(late) or bool(gone) or any(answer.error for answer in answers)
        session.drop_events(taking - went, "stopped")
        session.drop_events(gone, "gone")
        shown = [answer for answer in answers if answer.rank not in went or answer.text or answer.error]
        if shown:
            yield fold(shown)
        if gone:
            yield Notice(text=verb(gone, "has ended", "have ended"), style="warn")
        if late:
            text = f"{verb(late, 'has', 'have')} not answered yet; `interrupt {late}` stops {them(late)}"
            yield Notice(text=text, style="dim")
        if went:
            yield from self._resumed(went, RankSet(pending.tracing), held, before)

    def _await(self, pending: PendingCommand) -> Iterator[Outcome]:
        """Wait until all have answered. What they wait for is yielded once."""
        session, options = self._session, self._options
        waited = asked = 0.0
        last, pause, held = time.monotonic(), FIRST_WHERE_SECONDS, RankSet()
        shown: list[UnansweredRanks] = []
        while pending.awaited:
            try:
                if session.wait(lambda: not pending.awaited or options.pressed(), ANSWER_CHECK_SECONDS):
                    return
            except KeyboardInterrupt:
                yield NEW_LINE
                return
            last, passed = time.monotonic(), time.monotonic() - last
            waited += passed - stalled(passed, ANSWER_CHECK_SECONDS + WHERE_SECONDS)
            if waited - asked < pause:
                continue
            asked, pause = waited, NEXT_WHERE_SECONDS
            waits = self.waits(RankSet(pending.awaited))
            before, held = held, RankSet(rank for wait in waits if wait.held for rank in wait.ranks)
            sure = held == before  # a rank that just leaves its collective looks as if it waited for others
            if not sure:
                pause = FIRST_WHERE_SECONDS
            elif waits != shown:
                shown = waits
                for wait in waits:
                    hint = "" if wait.held or not options.interactive else "; Ctrl-C returns to the prompt"
                    yield Notice(text=f"{wait.text}{hint}", style="warn")
            # A rank that waits for held ranks makes no progress: the user must be able to resume those.
            if (held and sure) or (not options.interactive and waited > options.patience):
                return

    def waits(self, ranks: RankSet) -> list[UnansweredRanks]:
        """What ranks wait for that have not answered."""
        session = self._session
        replies = session.ask_where(ranks, WHERE_SECONDS)
        return waits_of(replies, stopped=session.stopped - ranks, here=session.ranks)

    # ---- after a `c`

    def _resumed(self, went: RankSet, tracing: RankSet, held: RankSet, before: dict[int, float]) -> Iterator[Outcome]:
        """Ranks that held for those that went resume as well, unless breakpoints keep these in the debugger."""
        session = self._session
        session.wait(lambda: not (held & session.unmoved(before)), FOLLOW_TRACED_SECONDS if tracing else FOLLOW_SECONDS)
        if not tracing:  # a rank that held for these alone resumes, however long that takes
            due = RankSet(rank for rank in held & session.ranks if self._holds_for(rank) <= went)
            session.wait(lambda: not (due & session.unmoved(before)), GO_SECONDS)
        session.drop_events(went | held, "running")
        followed = held - session.unmoved(before) - went
        self.sent = bool(tracing)
        if tracing:
            yield Notice(text=verb(tracing, "runs to its breakpoints", "run to their breakpoints"))
        if went - tracing:
            yield Notice(text=verb(went - tracing, "resumes", "resume"))
        if followed:
            yield Notice(text=f"{verb(followed, 'resumes', 'resume')}, held until now", style="dim")
        left = session.unmoved(before) - went
        if left:
            yield Notice(text=f"{are(left, 'still stopped')}: `go` resumes all", style="warn")
        elif self._options.interactive:
            yield from self._until_next()

    def _holds_for(self, rank: int) -> RankSet:
        """The ranks with which a held one resumes; itself, where it waits for a `go`."""
        state = self._session.state(rank)
        return RankSet([rank]) if state.until_go else state.awaited

    def _until_next(self) -> Iterator[Outcome]:
        """As pdb does after a `c`, wait until a rank stops, all have ended, or the user presses Ctrl-C."""
        session, options = self._session, self._options
        stopped = session.wait(lambda: bool(session.stopped), NEXT_STOP_SECONDS)
        if not stopped and session.ranks and options.stays:
            yield Notice(text="running; Ctrl-C returns to the prompt", style="dim")
            try:
                session.wait(lambda: bool(session.stopped) or not session.ranks or options.pressed())
            except KeyboardInterrupt:
                yield NEW_LINE
        yield from news(session, options.patience)
