"""The console without its terminal: a line goes in, and its outcomes come out as plain values.

A line is a command of the console (``focus``, ``go``, ``ranks`` …), or goes to pdb in every rank of the focus.
"""

from __future__ import annotations

from collections.abc import Iterator

from breakranks.console.command_parser import HELP, NAMES, STEPS, CommandWord, parse
from breakranks.console.command_results import (
    LeaveConsole,
    Notice,
    Outcome,
    RanksStopped,
    RankStates,
    ToolCommand,
)
from breakranks.console.console_options import ConsoleOptions
from breakranks.console.debug_session import DebugSession
from breakranks.console.line_runner import LineRunner
from breakranks.console.news import news
from breakranks.console.rank_phrases import are, them, they_return, they_stop, verb
from breakranks.console.wait_times import ARRIVAL_SECONDS, GO_SECONDS, HALT_SECONDS, REPLY_SECONDS
from breakranks.errors import UsageError
from breakranks.rank_messages import CompleteRequest, CompletionsEvent, InterruptRequest
from breakranks.rankset import RankSet, ranks_text


class Console:
    """``repeated`` is the last line for pdb, which an empty line repeats."""

    def __init__(self, session: DebugSession, options: ConsoleOptions) -> None:
        self.session = session
        self.options = options
        self._runner = LineRunner(session, options)
        self._chosen: RankSet | None = None
        self._failed = False
        self.repeated = ""

    @property
    def failed(self) -> bool:
        """Whether a line had an error, or no answer."""
        return self._failed or self._runner.failed

    # ---- the focus

    @property
    def focus(self) -> RankSet:
        """The ranks that get a line: those that were chosen, else those at a prompt, else all that are stopped."""
        session = self.session
        if self._chosen is not None:
            return self._chosen
        if self.options.inspects:
            return session.ranks
        return (session.stopped - session.held) or session.stopped or session.debugged or session.ranks

    def choose(self, ranks: RankSet) -> None:
        """Set the focus."""
        self._chosen = ranks

    @property
    def prompt(self) -> str:
        focus = self.focus
        running = focus - self.session.stopped
        how = "inspected" if self.options.inspects else "running"
        if running == focus:
            return f"[{focus} {how}] > " if focus else "[no rank] > "
        return f"[{focus}] > " if not running else f"[{focus}; {running} {how}] > "

    def news(self) -> Iterator[Outcome]:
        """What has happened to ranks since the last prompt."""
        yield from news(self.session, self.options.patience)

    def complete(self, text: str) -> list[str]:
        """The words that complete a text: commands, and names in the first stopped rank of the focus."""
        words = [name for name in NAMES if name.startswith(text)]
        stopped = self.focus & self.session.in_state("stopped")
        if stopped:
            reply = self.session.ask(CompleteRequest(text=text), RankSet([stopped.first]), REPLY_SECONDS)
            completions = reply.get(stopped.first)
            if isinstance(completions, CompletionsEvent):
                words += completions.words
        return words

    # ---- one line

    def expect(self, line: str) -> Iterator[Outcome]:
        """In a script, wait for the ranks that a line is for. A user types more slowly than ranks arrive."""
        word = parse(line)
        if word.name == "pdb" and self.options.inspects:
            self._runner.await_breakpoint(word.rest)
        elif word.name == "pdb":
            yield from self._runner.gather(word, any_focus=self._chosen is None)

    def execute(self, line: str) -> Iterator[Outcome]:
        """Do one line. Raises UsageError."""
        self.session.drain()
        word = parse(line)
        if word.name == "pdb":
            self.repeated = line
        action = getattr(self, f"_do_{word.name}")
        yield from action(word)

    def _do_nothing(self, word: CommandWord) -> Iterator[Outcome]:
        yield from ()

    def _do_help(self, word: CommandWord) -> Iterator[Outcome]:
        if word.rest and self.session.stopped:
            yield from self._runner.run(f"help {word.rest}", RankSet([self.session.stopped.first]))
        else:
            yield Notice(text=HELP)

    def _do_focus(self, word: CommandWord) -> Iterator[Outcome]:
        if word.rest in ("", "auto"):
            self._chosen = None
            yield Notice(text=f"the focus is {self.focus}" if self.focus else "the focus is empty", style="dim")
            return
        wanted = self._known(self._named(word.rest))
        self._chosen = wanted
        running = wanted - self.session.stopped
        if running:
            yield Notice(text=f"{are(running, 'running')}: `interrupt {running}` stops {them(running)}", style="dim")

    def _do_pdb(self, word: CommandWord) -> Iterator[Outcome]:
        ranks = word.ranks if word.ranks is not None else self.focus
        if word.everyone:
            ranks = self.session.ranks if self.options.inspects else self.session.stopped
        ranks = self._known(ranks)
        if not word.rest:
            raise UsageError("the command is missing", "For example: all p loss, rank 3 w")
        if word.ranks is None and word.rest.split()[0] in STEPS:
            ranks = ranks & self.session.stopped or ranks  # those that are only inspected cannot step
        yield from self._runner.run(word.rest, ranks)

    def _do_wait(self, word: CommandWord) -> Iterator[Outcome]:
        """Wait for a stop, in a script that has set a breakpoint."""
        if word.rest and not word.rest.isdecimal():
            raise UsageError(f"{word.rest!r} is not a number of seconds", "For example: wait 60")
        session = self.session
        stopped = session.wait(lambda: bool(session.stopped), float(word.rest or self.options.patience))
        self._failed = self._failed or not stopped
        if not stopped:
            yield Notice(text="no rank has stopped", style="warn")
        session.wait(lambda: session.debugged <= session.stopped, ARRIVAL_SECONDS)
        self._runner.sent = False
        session.drop_events(session.stopped, "stopped")
        yield from self.news()
        if stopped:
            yield RanksStopped(states=tuple(session.state(rank) for rank in session.stopped))

    def _do_go(self, word: CommandWord) -> Iterator[Outcome]:
        session = self.session
        everyone = not word.rest or word.rest == "all"
        ranks = RankSet.span(0, max(session.world, 1)) | session.ranks if everyone else self._named(word.rest)
        if not everyone:
            self._known(ranks, allow_unconnected=True)
        stopped = ranks & session.stopped
        if not stopped and not (ranks - session.ranks):
            yield Notice(text="no rank is held", style="dim")
            return
        before = session.stops()
        session.go(ranks)
        session.wait(lambda: not (stopped & session.unmoved(before)), min(self.options.patience, GO_SECONDS))
        session.drop_events(stopped, "running")
        stuck = stopped & session.unmoved(before)
        resumed = stopped - stuck
        if resumed:
            yield Notice(text=verb(resumed, "resumes", "resume"))
        if stuck:
            text = (
                f"{are(stuck, 'busy')} with an earlier line, and {'resumes' if len(stuck) == 1 else 'resume'} after it"
            )
            yield Notice(text=f"{text}; `interrupt` ends it", style="warn")

    def _do_hold(self, word: CommandWord) -> Iterator[Outcome]:
        yield from self._halt(word, hold=True)

    def _do_interrupt(self, word: CommandWord) -> Iterator[Outcome]:
        yield from self._halt(word, hold=False)

    def _halt(self, word: CommandWord, *, hold: bool) -> Iterator[Outcome]:
        session = self.session
        if word.rest:
            ranks = self._known(self._named(word.rest))
        else:
            ranks = session.ranks if hold else self.focus
        if not ranks:
            yield Notice(text="no rank is connected any more", style="warn")
            return
        busy = ranks & session.in_state("busy")
        running = ranks - session.stopped
        if not busy and not running:
            yield Notice(text=f"{are(ranks, 'stopped')} already", style="dim")
            return
        replies = session.ask_done(InterruptRequest(hold=hold), busy | running)
        refused = {rank: reply.why for rank, reply in replies.items() if reply.why}
        for rank, why in refused.items():
            yield Notice(text=f"rank {rank} cannot be stopped: {why}", style="warn")
        running -= RankSet(refused)

        def settled() -> bool:
            waiting = (running - session.stopped) | (busy & session.in_state("busy"))
            return not (waiting & session.ranks) or self.options.pressed()

        session.wait(settled, min(self.options.patience, HALT_SECONDS))
        yield from self.news()
        late = (running - session.stopped) & session.ranks
        for wait in self._runner.waits(late):
            yield Notice(text=f"{wait.text}; {they_stop(wait.ranks)} when {they_return(wait.ranks)} to Python")
            late -= wait.ranks
        if late:
            yield Notice(text=f"{are(late, 'in C')}; {they_stop(late)} when {they_return(late)} to Python")
        still = busy & session.in_state("busy")
        if still:
            yield Notice(text=f"{are(still, 'still evaluating')} in C", style="warn")

    def _do_ranks(self, word: CommandWord) -> Iterator[Outcome]:
        session = self.session
        replies = session.ask_where(session.ranks)
        states = tuple(replies.get(rank) or session.state(rank) for rank in session.ranks)
        yield RankStates(states=states, absent=session.absent)

    def _do_stacks(self, word: CommandWord) -> Iterator[Outcome]:
        yield ToolCommand(command="stacks", ranks=self._named(word.rest) if word.rest else RankSet())

    def _do_why(self, word: CommandWord) -> Iterator[Outcome]:
        yield ToolCommand(command="why", ranks=RankSet())

    def _do_quit(self, word: CommandWord) -> Iterator[Outcome]:
        yield LeaveConsole()

    def _do_kill(self, word: CommandWord) -> Iterator[Outcome]:
        yield LeaveConsole(kill=True, sure=word.rest == "yes")

    # ---- ranks by name

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

    def _known(self, ranks: RankSet, *, allow_unconnected: bool = False) -> RankSet:
        """The same ranks, if all of them are connected, or may be on other hosts. Raises UsageError."""
        session = self.session
        job = RankSet.span(0, session.world)
        unknown = ranks - session.ranks - (job if allow_unconnected else RankSet())
        if not ranks:
            raise UsageError(
                "no rank is stopped", f"Connected: {session.ranks or 'none'}; `interrupt` stops ranks that run."
            )
        if unknown:
            why = f"The job has {ranks_text(job)}."
            if unknown <= job:
                why = "A rank connects when it reaches a breakpoint. Ranks of other hosts need that host as the target."
            raise UsageError(are(unknown, "not connected"), f"{why} Connected: {session.ranks or 'none'}.")
        return ranks
