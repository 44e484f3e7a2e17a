"""How the outcomes of a console look: as text, or as JSON."""

from __future__ import annotations

import json
import sys

from breakranks.cli.main import main
from breakranks.cli.terminal_output import show
from breakranks.console.command_results import (
    Notice,
    Outcome,
    RanksInspected,
    RanksStopped,
    RankStates,
    ToolCommand,
)
from breakranks.console.debug_session import DebugSession
from breakranks.errors import UsageError
from breakranks.rank_messages import RankState, WhereEvent
from breakranks.rankset import RankSet
from breakranks.show import answer_lines
from breakranks.show.answers_json import as_json
from breakranks.show.stop_lines import inspected_lines, standing_lines, stopped_lines
from breakranks.show.terminal_text import TerminalStyle
from breakranks.snapshot.answer_groups import FoldedAnswers


class TextView:
    """Outcomes as text on standard output."""

    def __init__(self, session: DebugSession, look: TerminalStyle) -> None:
        self._session = session
        self._look = look

    def introduce(self, outcome: Outcome) -> None:
        self.show(outcome, "", RankSet())

    def show(self, outcome: Outcome, line: str, focus: RankSet) -> None:
        look = self._look
        match outcome:
            case Notice(text=text, style=style):
                show([[(part, style)] if style else [part] for part in text.splitlines()], look)
            case RanksStopped(states=states):
                show(stopped_lines(states, look), look)
            case RanksInspected(states=inspected):
                show(inspected_lines(inspected, look), look)
            case RankStates(states=states, absent=absent):
                show(standing_lines(states, absent, look), look)
            case ToolCommand():
                _run_tool(outcome, self._session)
            case FoldedAnswers():
                show(answer_lines.lines(outcome, look), look)
        sys.stdout.flush()

    def echo(self, prompt: str, line: str) -> None:
        if line.strip():
            show([[(f"{prompt}{line}", "dim")]], self._look)
            sys.stdout.flush()

    def say(self, text: str) -> None:
        show([[(text, "dim")]], self._look)
        sys.stdout.flush()

    def confirm_kill(self) -> bool:
        return _confirm_kill()


class JsonView:
    """Outcomes as JSON on standard output, one line each."""

    def introduce(self, outcome: Outcome) -> None:
        pass

    def show(self, outcome: Outcome, line: str, focus: RankSet) -> None:
        found: dict[str, object] = {"schema": 1, "command": line, "focus": str(focus)}
        match outcome:
            case FoldedAnswers():
                found |= as_json(outcome)
            case Notice(text=text):
                found["notice"] = text
            case RanksStopped(states=states):
                found["stopped"] = [_state_json(state) for state in states]
            case RankStates(states=states, absent=absent):
                found["ranks"] = [{"frames": [], **_state_json(state)} for state in states]
                found["absent"] = str(absent)
            case ToolCommand(command=command):
                found["notice"] = f"use breakranks {command} --json"
        print(json.dumps(found), flush=True)

    def echo(self, prompt: str, line: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def confirm_kill(self) -> bool:
        return _confirm_kill()


def _state_json(state: RankState) -> dict[str, object]:
    """The state as its message has it; what can be unknown is null."""
    found: dict[str, object] = dict(state.plain())
    if state.is_stopped:
        found.setdefault("inside", None)
    if isinstance(state, WhereEvent):
        found.setdefault("collective", None)
    return found


def _confirm_kill() -> bool:
    if not sys.stdin.isatty():
        raise UsageError("kill-job needs confirmation", "In a script: kill-job yes")
    return False


def _run_tool(wanted: ToolCommand, session: DebugSession) -> None:
    """`why` or `stacks` of the console's job, as on the command line. Its exit status is not the console's."""
    target = session.backend.words_for(link.found for link in session.links.values())
    main([wanted.command, *target, *(["--rank", str(wanted.ranks)] if wanted.ranks else [])])
