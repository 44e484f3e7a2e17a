"""What a line at the console led to, as plain values; ``cli/console_view`` shows them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from breakranks.rank_messages import RankState, WhereEvent
from breakranks.rankset import RankSet
from breakranks.snapshot.answer_groups import FoldedAnswers


class Notice(Struct, frozen=True, kw_only=True):
    """A sentence about the job. ``style`` as in show: "", "warn", "bad", "dim"."""

    text: str
    style: str = ""


NEW_LINE = Notice(text="\n")  # the terminal has shown ^C, and its cursor is behind it


class RankStates(Struct, frozen=True, kw_only=True):
    """Where all ranks are. ``absent``: ranks of the job that are not connected."""

    states: tuple[RankState, ...]
    absent: RankSet


class RanksStopped(Struct, frozen=True, kw_only=True):
    """Ranks that have stopped."""

    states: tuple[RankState, ...]


class RanksInspected(Struct, frozen=True, kw_only=True):
    """Ranks that are not stopped, and can only be inspected."""

    states: tuple[WhereEvent, ...]


class ToolCommand(Struct, frozen=True, kw_only=True):
    """A command of breakranks that the console runs on its job."""

    command: Literal["why", "stacks"]
    ranks: RankSet


class LeaveConsole(Struct, frozen=True, kw_only=True):
    """The console is to end; ``kill``: after the job has been ended. ``sure``: the user has confirmed that."""

    kill: bool = False
    sure: bool = False


Outcome = Notice | RankStates | RanksStopped | RanksInspected | ToolCommand | LeaveConsole | FoldedAnswers
