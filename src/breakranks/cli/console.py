"""One prompt over the ranks that stopped at `breakranks.breakpoint()`: pdb in all of them, answers folded.

Lines go to pdb in every rank of the focus, [0-3] in the prompt. `help` there lists what else it knows: focus, all,
rank, ranks, go, hold, interrupt, stacks, why. When it quits, or is killed, every held rank goes on; a script (-c,
--batch) leaves ranks as it found them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator

from breakranks.cli import job_commands, job_selection, target_args, terminal_output
from breakranks.cli.terminal import ConsoleTerminal
from breakranks.console.command_parser import NAMES
from breakranks.console.command_results import LeaveConsole, Notice, Outcome, RanksStopped, RankStates, ToolCommand
from breakranks.console.commands import Console
from breakranks.console.debug_session import DebugSession, nobody
from breakranks.errors import BreakranksError, UsageError
from breakranks.jobs.targets import Pids, parse_target
from breakranks.rankset import RankSet
from breakranks.show import answer_lines
from breakranks.show.answers_json import as_json
from breakranks.show.stop_lines import inspected_lines, standing_lines, stopped_lines
from breakranks.snapshot.answer_groups import FoldedAnswers

Begin = Callable[[DebugSession, Console], bool]

_HELLO = 5.0  # seconds in which a rank that is connected says what it is at
_COMPLETION = 2.0  # seconds in which a rank tells the words that it would complete

EXAMPLES = """
breakranks console                          the job on this machine that has stopped
breakranks console -c w -c 'all p loss'     ask, show, and leave everything as it was
breakranks console -c 'p loss' -c go        ask, then let the job run on
breakranks console --batch ask.txt --json   commands from a file, a line of JSON for each
breakranks console pid:4242                 the job of this process
breakranks console ssh:n[1-4]               the job on these hosts
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help=target_args.LIVE)
    parser.add_argument("--job", metavar="KEY", help="which job, when there are several: its name or its port")
    add_script(parser)
    parser.add_argument(
        "--wait",
        metavar="S",
        type=float,
        default=None,
        help="how long to wait for a first rank to stop (scripts: 60)",
    )
    parser.add_argument("--opened-by", metavar="PID", type=int, default=0, help=argparse.SUPPRESS)
    target_args.add_reach(parser)
    target_args.add_output(parser, full="cut nothing")


def add_script(parser: argparse.ArgumentParser) -> None:
    """``-c``, ``--batch`` and how long they wait."""
    parser.add_argument(
        "-c", "--command", metavar="CMD", action="append", help="a command, as typed at the prompt; may be repeated"
    )
    parser.add_argument("--batch", metavar="FILE", help="commands from a file, a line each; - is standard input")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=60.0,
        help="how long a script waits for a rank's answer (60)",
    )


def run(args: argparse.Namespace) -> int:
    commands = commands_of(args)
    check_times(args)
    with job_selection.live_backend(args, "a console needs a job that runs") as backend:
        return _run(DebugSession(args.job, _pids(args), backend=backend), commands, args)


def _run(session: DebugSession, commands: list[str] | None, args: argparse.Namespace) -> int:
    if commands is None and not args.json and sys.stdin.isatty():
        return talk(session, args)
    if commands is None:
        commands = [line.rstrip("\n") for line in sys.stdin]
    return script(session, commands, args)


def check_times(args: argparse.Namespace) -> None:
    for name in ("timeout", "wait"):
        value = getattr(args, name, None)
        if value is not None and not 0 <= value < 1e9:
            raise UsageError(f"--{name} must be a positive number of seconds", f"For example: --{name} 60")


def commands_of(args: argparse.Namespace) -> list[str] | None:
    """The commands of a script; None where it is not one."""
    if args.command and args.batch:
        raise UsageError("-c and --batch together", "Put the commands into the file, or all of them into -c.")
    if args.command:
        return list(args.command)
    if args.batch is None:
        return None
    if args.batch == "-":
        return [line.rstrip("\n") for line in sys.stdin]
    try:
        with open(args.batch, encoding="utf-8") as file:
            return file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BreakranksError(f"cannot read {args.batch}: {error}", "It should have a command a line.") from error


def _pids(args: argparse.Namespace) -> list[int] | None:
    """The processes that the target names; None: any of its place."""
    target = parse_target(args.target)
    return list(target.pids) if isinstance(target, Pids) else None


# ---- scripts


def script(session: DebugSession, commands: list[str], args: argparse.Namespace, begin: Begin | None = None) -> int:
    """Do commands one after the other. ``begin`` stops ranks, or looks at them; without it they have stopped."""
    console = Console(session, interactive=False, patience=args.timeout, looks=begin is not None)
    armed = begin is None  # ranks that somebody else stopped stay so
    try:
        if begin is not None:
            begin(session, console)
        else:
            _wait_for_stop(session, 60.0 if args.wait is None else args.wait)
        for line in commands:
            for outcome in console.expect(line):
                _show(outcome, console, session, line, args)
            _echo(line, console, args)
            for outcome in console.execute(line):
                if isinstance(outcome, LeaveConsole):
                    if outcome.kill:
                        return job_commands.kill(session, line.split()[1:] == ["yes"], args)
                    armed = False
                    return 1 if console.failed else 0
                _show(outcome, console, session, line, args)
    finally:
        session.close(armed=armed)
    return 1 if console.failed else 0


def _wait_for_stop(session: DebugSession, wait: float) -> None:
    session.scan()
    if not session.wait(lambda: bool(session.stopped), wait):
        if not session.ranks:
            raise nobody(session.job)
        raise BreakranksError(f"no rank has stopped in {wait:.0f} s", "`breakranks stacks` shows where the ranks are.")
    _settle(session)
    session.take_events()


def _settle(session: DebugSession) -> None:
    """Ranks come to a stop at nearly the same moment: give the last ones that moment, not more."""
    session.wait(lambda: all(session.state(rank).get("pid") for rank in session.ranks), _HELLO)
    deadline = time.monotonic() + 1.0
    session.wait(lambda: bool(session.world) and len(session.stopped) >= session.world, 0.15)
    while time.monotonic() < deadline:
        held = session.stopped
        session.wait(lambda: len(session.stopped) >= session.world, 0.1)
        if session.stopped == held:
            return


def _echo(line: str, console: Console, args: argparse.Namespace) -> None:
    if not args.json and line.strip():
        terminal_output.show([[(f"{console.prompt}{line}", "dim")]], terminal_output.look(args))
        sys.stdout.flush()


# ---- a person


def talk(session: DebugSession, args: argparse.Namespace, begin: Begin | None = None) -> int:
    """A person at the prompt. ``begin`` stops ranks, or looks at them; without it they have stopped."""
    opened = bool(getattr(args, "opened_by", 0))
    with ConsoleTerminal(opened=opened) as terminal:
        stays = not opened  # in a rank's own terminal we leave when there is nothing to ask
        console = Console(
            session, interactive=True, pressed=terminal.pressed, stays=lambda: stays, looks=begin is not None
        )
        terminal.completing(lambda text: _complete(session, console, text))
        armed = False
        try:
            if not (begin(session, console) if begin is not None else _begin_stopped(session, console, args)):
                return 0
            _say_others(session, args)
            while True:
                if opened and not session.debugged:
                    armed = True  # nothing left to ask: the terminal is the job's again until the next stop
                    return 0
                if not session.ranks:
                    job_commands.say("the job has ended", args)
                    return 0
                try:
                    if not _turn(console, terminal, args):
                        return 0
                except KeyboardInterrupt:  # whatever was being shown: the prompt comes back
                    print()
        finally:
            session.close(armed=armed)


def _begin_stopped(session: DebugSession, console: Console, args: argparse.Namespace) -> bool:
    if not _first_stop(session, args):
        return False
    _settle(session)
    session.take_events()
    states = tuple(session.state(rank) for rank in session.stopped)
    _show(RanksStopped(states=states), console, session, "", args)
    return True


def show_standings(session: DebugSession, ranks: RankSet, args: argparse.Namespace) -> None:
    """Who is stopped, and where those are that are only looked at."""
    look = terminal_output.look(args)
    terminal_output.show(stopped_lines([session.state(rank) for rank in ranks & session.stopped], look), look)
    replies = session.ask({"do": "where"}, ranks - session.stopped)
    terminal_output.show(inspected_lines(replies, look), look)
    sys.stdout.flush()


def do(line: str, console: Console, session: DebugSession, args: argparse.Namespace) -> None:
    """One line, as if typed."""
    for outcome in console.execute(line):
        _show(outcome, console, session, line, args)


def _turn(console: Console, terminal: ConsoleTerminal, args: argparse.Namespace) -> bool:
    """One prompt and what is typed there; False when the console is to end."""
    session = console.session
    for outcome in console.news():
        _show(outcome, console, session, "", args)
    line = terminal.line(console.prompt, lambda: _happened(console))
    if line is None:
        return False
    if line == "\n":
        line = console.repeated
    for outcome in _do(console, line):
        if isinstance(outcome, LeaveConsole):
            if not outcome.kill:
                job_commands.say("the job runs on", args)
                return False
            if job_commands.kill(session, terminal.line("end the job? yes/no > ") == "yes", args) == 0:
                return False
        else:
            _show(outcome, console, session, line, args)
            sys.stdout.flush()
    return True


def _happened(console: Console) -> bool:
    """Whether there is something to tell before a line is typed."""
    session, prompt = console.session, console.prompt
    session.drain()
    session.rescan()
    return bool(session.events) or not session.ranks or console.prompt != prompt


def _do(console: Console, line: str) -> Iterator[Outcome]:
    """One line of a person's; what they got wrong is said, and the prompt comes back."""
    try:
        yield from console.execute(line)
    except BreakranksError as error:
        yield Notice(text=f"{error.message}. {error.help}".replace("\n", " "), style="bad")


def _first_stop(session: DebugSession, args: argparse.Namespace) -> bool:
    """Wait until somebody stops; False if the person does not want to wait."""
    session.scan()
    if session.wait(lambda: bool(session.stopped), 1.0):
        return True
    if not session.ranks and args.wait is None:
        raise nobody(session.job)
    job_commands.say("no rank has stopped yet; waiting (Ctrl-C leaves)", args)
    came = bool(session.ranks)

    def settled() -> bool:
        nonlocal came
        came = came or bool(session.ranks)
        return bool(session.stopped) or (came and not session.ranks)

    try:
        session.wait(settled, 1e9 if args.wait is None else args.wait)
    except KeyboardInterrupt:
        return False
    if not session.stopped and not came:
        raise nobody(session.job)
    if not session.stopped:
        job_commands.say("the job has ended" if not session.ranks else "no rank has stopped", args)
    return bool(session.stopped)


def _say_others(session: DebugSession, args: argparse.Namespace) -> None:
    """Another console is here too: what it does is seen here, and a rank goes on when both have left."""
    others = max((int(session.state(rank).get("consoles", 1)) for rank in session.ranks), default=1) - 1
    if others > 0:
        job_commands.say(
            f"{others} other console{'s are' if others > 1 else ' is'} here: ranks stay until all have left", args
        )


def _complete(session: DebugSession, console: Console, text: str) -> list[str]:
    stopped = console.focus & session.in_state("stopped")
    words = [name for name in NAMES if name.startswith(text)]
    if stopped:
        first = stopped.first
        reply = session.ask({"do": "complete", "text": text}, RankSet([first]), _COMPLETION).get(first, {})
        words += [str(word) for word in reply.get("words", [])]
    return words


# ---- what came of it


def _show(outcome: Outcome, console: Console, session: DebugSession, line: str, args: argparse.Namespace) -> None:
    if args.json:
        _show_json(outcome, console, line)
        return
    look = terminal_output.look(args)
    match outcome:
        case Notice(text=text, style=style):
            terminal_output.show([[(part, style)] if style else [part] for part in text.splitlines()], look)
        case RanksStopped(states=states):
            terminal_output.show(stopped_lines(states, look), look)
        case RankStates(rows=rows, absent=absent):
            plain = [{"rank": row.rank, "state": row.state, "frames": row.frames} for row in rows]
            terminal_output.show(standing_lines(plain, absent, look), look)
        case ToolCommand(command=command, ranks=ranks):
            job_commands.elsewhere(command, str(ranks), session)
        case FoldedAnswers():
            terminal_output.show(answer_lines.lines(outcome, look), look)


def _show_json(outcome: Outcome, console: Console, line: str) -> None:
    found: dict[str, object] = {"schema": 1, "command": line, "focus": str(console.focus)}
    match outcome:
        case FoldedAnswers():
            found |= as_json(outcome)
        case Notice(text=text):
            found["notice"] = text
        case RanksStopped(states=states):
            found["stopped"] = list(states)
        case RankStates(rows=rows, absent=absent):
            found["ranks"] = [{**row.state, "frames": list(row.frames)} for row in rows]
            found["absent"] = str(absent)
        case ToolCommand(command=command):
            found["notice"] = f"use breakranks {command} --json"
    print(json.dumps(found), flush=True)
