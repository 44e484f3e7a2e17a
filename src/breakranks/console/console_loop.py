"""A console from its first line to its last: the commands of a script, or the prompt of a user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from msgspec import Struct

from breakranks.console.command_results import NEW_LINE, LeaveConsole, Notice, Outcome, RanksStopped
from breakranks.console.commands import Console
from breakranks.console.first_stop import await_first_stop, offer_first_stop
from breakranks.errors import BreakranksError
from breakranks.rankset import RankSet

Begin = Callable[[Console], Iterator[Outcome]]


class ConsoleView(Protocol):
    """Where a console shows its outcomes."""

    def introduce(self, outcome: Outcome) -> None:
        """Show an outcome that is before the first line."""

    def show(self, outcome: Outcome, line: str, focus: RankSet) -> None:
        """Show an outcome of a line, or of none."""

    def echo(self, prompt: str, line: str) -> None:
        """Show a line of a script."""

    def say(self, text: str) -> None:
        """Show a remark on the console itself."""

    def confirm_kill(self) -> bool:
        """Whether the user of a script confirms the end of the job. Raises UsageError where there is no user."""


class LineReader(Protocol):
    """A terminal."""

    def line(self, prompt: str, idle: Callable[[], bool] = ...) -> str | None: ...


class LoopResult(Struct, frozen=True, kw_only=True):
    """``failed``: a line had an error, or no answer. ``left``: processes that are left of a job that was to end."""

    failed: bool = False
    left: tuple[str, ...] = ()


class ConsoleLoop:
    """``begin`` stops the ranks of an attach; without it, the console waits for a first stop up to ``wait`` seconds."""

    def __init__(
        self, console: Console, view: ConsoleView, *, begin: Begin | None = None, wait: float | None = None
    ) -> None:
        self._console = console
        self._session = console.session
        self._view = view
        self._begin = begin
        self._wait = wait

    # ---- a script

    def run_script(self, lines: Iterable[str]) -> LoopResult:
        """Do commands one after the other. Stops of the job itself are left as they are."""
        console, session = self._console, self._session
        armed = self._begin is None
        try:
            if self._begin is None:
                await_first_stop(session, self._wait)
            else:
                self._introduce(self._begin(console))
            for line in lines:
                for outcome in console.expect(line):
                    self._show(outcome, line)
                self._view.echo(console.prompt, line)
                for outcome in console.execute(line):
                    if not isinstance(outcome, LeaveConsole):
                        self._show(outcome, line)
                    elif outcome.kill:
                        return self._kill(sure=outcome.sure or self._view.confirm_kill())
                    else:
                        armed = False
                        return LoopResult(failed=console.failed)
        finally:
            session.close(armed=armed)
        return LoopResult(failed=console.failed)

    # ---- a user

    def run_prompt(self, terminal: LineReader, *, opened: bool = False) -> None:
        """Read lines until the user leaves or the job ends. ``opened``: in the terminal of a rank, which gets it back
        when no rank is debugged."""
        session = self._session
        armed = False
        try:
            if self._begin is not None:
                self._introduce(self._begin(self._console))
            elif offer_first_stop(session, self._wait, self._view.say):
                states = tuple(session.state(rank) for rank in session.stopped)
                self._view.introduce(RanksStopped(states=states))
            else:
                return
            self._say_others()
            while True:
                if opened and not session.debugged:
                    armed = True  # the terminal is the job's again until the next stop
                    return
                if not session.ranks:
                    self._view.say("the job has ended")
                    return
                try:
                    if not self._turn(terminal):
                        return
                except KeyboardInterrupt:  # while something was shown
                    self._show(NEW_LINE)
        finally:
            session.close(armed=armed)

    def _turn(self, terminal: LineReader) -> bool:
        """One prompt and its line; False when the console is to end."""
        console = self._console
        for outcome in console.news():
            self._show(outcome)
        line = terminal.line(console.prompt, self._has_news)
        if line is None:
            return False
        if line == "\n":
            line = console.repeated
        for outcome in self._execute(line):
            if not isinstance(outcome, LeaveConsole):
                self._show(outcome, line)
            elif not outcome.kill:
                self._view.say("the job keeps running")
                return False
            else:
                ended = self._kill(sure=terminal.line("end the job? yes/no > ") == "yes")
                if not ended.failed and not ended.left:
                    return False
        return True

    def _execute(self, line: str) -> Iterator[Outcome]:
        """The outcomes of a line; an error is one of them."""
        try:
            yield from self._console.execute(line)
        except BreakranksError as error:
            yield Notice(text=f"{error.message}. {error.help}".replace("\n", " "), style="bad")

    def _has_news(self) -> bool:
        """Whether something should be shown before a line is typed."""
        session, prompt = self._session, self._console.prompt
        session.drain()
        session.rescan()
        return bool(session.events) or not session.ranks or self._console.prompt != prompt

    def _say_others(self) -> None:
        """Other consoles of the same ranks: all see what one does, and ranks resume when all have left."""
        others = max((self._session.state(rank).consoles for rank in self._session.ranks), default=1) - 1
        if others > 0:
            are = "consoles are" if others > 1 else "console is"
            self._view.say(f"{others} other {are} connected: ranks stay stopped until all have left")

    # ---- both

    def _introduce(self, outcomes: Iterator[Outcome]) -> None:
        for outcome in outcomes:
            self._view.introduce(outcome)

    def _show(self, outcome: Outcome, line: str = "") -> None:
        self._view.show(outcome, line, self._console.focus)

    def _kill(self, *, sure: bool) -> LoopResult:
        """End the job: its launcher first, which ends the ranks as it always does, then the processes that are left."""
        if not sure:
            self._view.say("not ended")
            return LoopResult(failed=True)
        left = self._session.backend.end(link.found for link in self._session.links.values())
        self._view.say("the job has ended" if not left else f"still running: {', '.join(left)}")
        return LoopResult(left=tuple(left))
