"""One question to many ranks, without an agent: evaluated there, and gone."""

from __future__ import annotations

import ast
from typing import Any

from msgspec import Struct

from breakranks.backend import agent_messages
from breakranks.errors import UsageError
from breakranks.inject.agent_modules import bundle
from breakranks.inject.inject_errors import InjectError
from breakranks.inject.run_in_process import ask_many
from breakranks.jobs.found_jobs import FoundJob
from breakranks.observe.watchdog import Watchdog
from breakranks.rankset import RankSet
from breakranks.snapshot.answer_groups import RankAnswer

_MODULES = (
    "eval_entry",
    "unload",
    "inspector",
    "collective_guard",
    "fsdp",
    "value_summary",
    "thread_location",
    "thread_states",
    "device_sync",
    "captured_output",
    "fork_hooks",
)
_STATEMENTS = {
    ast.Assign: "an assignment",
    ast.AugAssign: "an assignment",
    ast.AnnAssign: "an assignment",
    ast.Delete: "a deletion",
    ast.NamedExpr: "an assignment",
    ast.Import: "an import",
    ast.ImportFrom: "an import",
}


class EvalQuestion(Struct, frozen=True, kw_only=True):
    """``frame``: a function's name or a number from the innermost; ``effects``: it may change things."""

    source: str
    frame: str | None = None
    thread: str | None = None
    effects: bool = False


class EvalAnswer(Struct, frozen=True, kw_only=True):
    """What one rank said. ``effect``: why it was not done, as nobody has allowed it; ``help``: why it was not asked."""

    rank: int
    answer: RankAnswer
    where: dict[str, Any] = {}
    thread: str = ""
    effect: str = ""
    help: str = ""
    asked: bool = True


def effect_of(source: str) -> str:
    """What a source does besides telling a value, as far as its text says; raises UsageError where it is no Python."""
    try:
        tree = ast.parse(source.strip())
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"{source!r} is not Python: {error}", "Write an expression: loss, self.path, len(queue)"
        ) from None
    if not tree.body:
        raise UsageError("there is no expression", "Write one: breakranks eval 'loss'")
    for node in ast.walk(tree):
        if type(node) in _STATEMENTS:
            return _STATEMENTS[type(node)]
        if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom)):
            raise UsageError(f"{source!r} cannot be evaluated outside of its function", "Ask for a value instead.")
    return "" if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr) else "a statement"


def ask(
    job: FoundJob, ranks: RankSet | None, question: EvalQuestion, *, deadline: float, takers: RankSet | None = None
) -> list[EvalAnswer]:
    """The answers of a job's ranks on this host, or of some of them, in the order of the ranks.

    ``takers``: all that are asked, where those of other hosts are, too.
    """
    chosen = [rank for rank in job.ranks if ranks is None or rank.rank in ranks]
    arguments = {
        **bundle(_MODULES),
        "module": "breakranks.rank.eval_entry",
        "given": {
            "source": question.source,
            "frame": question.frame,
            "thread": question.thread,
            "effects": question.effects,
            "takers": list(takers) if takers is not None else [rank.rank for rank in chosen],
        },
    }
    with Watchdog() as dog:
        found = ask_many([rank.pid for rank in chosen], "load_modules", arguments, deadline=deadline, dog=dog)
    return [_told(rank.rank, found[rank.pid]) for rank in chosen]


def _told(rank: int, answer: bytes | InjectError) -> EvalAnswer:
    if isinstance(answer, InjectError):
        return EvalAnswer(
            rank=rank, answer=RankAnswer(rank=rank, text=answer.message, error=True), help=answer.help, asked=False
        )
    said = agent_messages.read(answer)
    if said is None:
        text = "what it answered is not understood"
        return EvalAnswer(
            rank=rank, answer=RankAnswer(rank=rank, text=text, error=True), help=agent_messages.REMEDY, asked=False
        )
    if "refused" in said:
        text = str(said["refused"])
        return EvalAnswer(rank=rank, answer=RankAnswer(rank=rank, text=text, error=True), asked=False)
    error = said.get("error")
    effect = str(said.get("effect") or "")
    described = said.get("described")
    text = str(said.get("printed") or "") + str(error or effect or said.get("value") or "")
    return EvalAnswer(
        rank=rank,
        answer=RankAnswer(
            rank=rank,
            text=text,
            value=described if isinstance(described, dict) else None,
            error=bool(error or effect),
            cut=int(said.get("cut") or 0),
        ),
        where=said.get("where") or {},
        thread=str(said.get("thread") or ""),
        effect=effect,
    )
