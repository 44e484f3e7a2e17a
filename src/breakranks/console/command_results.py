"""What a line at the console led to, as plain values; how they look is ``show``'s."""

from __future__ import annotations

from msgspec import Struct

from breakranks.backend.rank_connection import Message
from breakranks.rankset import RankSet
from breakranks.snapshot.answer_groups import FoldedAnswers


class Notice(Struct, frozen=True, kw_only=True):
    """A sentence about the job. ``style`` as in show: "", "warn", "bad", "dim"."""

    text: str
    style: str = ""


NEW_LINE = Notice(text="\n")  # the terminal has shown ^C, and stands behind it


class RankState(Struct, frozen=True, kw_only=True):
    """Where one rank is, for the table of ``ranks``."""

    rank: int
    state: Message
    frames: tuple[Message, ...] = ()


class RankStates(Struct, frozen=True, kw_only=True):
    """Where everyone is. ``absent``: ranks of the job that cannot be reached from here."""

    rows: tuple[RankState, ...]
    absent: RankSet


class RanksStopped(Struct, frozen=True, kw_only=True):
    """Ranks that have come to a stop, with what each says of it."""

    states: tuple[Message, ...]


class ToolCommand(Struct, frozen=True, kw_only=True):
    """A command of the whole tool that is wanted from inside: ``why`` or ``stacks``."""

    command: str
    ranks: RankSet


class LeaveConsole(Struct, frozen=True, kw_only=True):
    """The console is to end; ``kill``: and the job with it."""

    kill: bool = False


Outcome = Notice | RankStates | RanksStopped | ToolCommand | LeaveConsole | FoldedAnswers
