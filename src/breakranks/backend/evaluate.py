"""Evaluating one expression in ranks, without an agent: nothing stays in them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from breakranks.backend.agent_payloads import ask_many
from breakranks.backend.rank_decoder import REMEDY, EvalFields, read_answer
from breakranks.errors import UsageError
from breakranks.inject.inject_errors import InjectError
from breakranks.inject.rank_agent_modules import bundle
from breakranks.jobs.found_jobs import FoundJob
from breakranks.observe.sigcont_guard import Watchdog
from breakranks.rankset import RankSet
from breakranks.snapshot.rank_answer import RankAnswer

_MODULES = (
    "eval_entry",
    "unload",
    "thread_names",
    "collective_guard",
    "fsdp",
    "value_summary",
    "thread_location",
    "thread_states",
    "stuck_device",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalQuestion:
    """``frame``: the name of a function, or a number from the innermost frame. ``effects``: allow side effects."""

    source: str
    frame: str | None = None
    thread: str | None = None
    effects: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalAnswer:
    """The answer of one rank. ``effect``: the side effect for which it was not evaluated. ``help``: the remedy if the
    rank could not be queried (``asked`` is False)."""

    rank: int
    answer: RankAnswer
    where: dict[str, str | int | None] = field(default_factory=dict)
    thread: str = ""
    effect: str = ""
    collective: str = ""  # that it would start
    thread_name: str = ""
    help: str = ""
    asked: bool = True


def effect_of(source: str) -> str:
    """Return the side effect that the text of a source shows, or ""; raise UsageError if it is not Python."""
    try:
        tree = ast.parse(source.strip())
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"{source!r} is not Python: {error}", "Write an expression: loss, self.path, len(queue)"
        ) from None
    if not tree.body:
        raise UsageError("there is no expression", "For example: breakranks eval 'loss'")
    for node in ast.walk(tree):
        if type(node) in _STATEMENTS:
            return _STATEMENTS[type(node)]
        if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom)):
            raise UsageError(
                f"{source!r} cannot be evaluated outside of its function", "Give an expression that has a value."
            )
    return "" if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr) else "a statement"


def ask(
    job: FoundJob, ranks: RankSet | None, question: EvalQuestion, *, deadline: float, takers: RankSet | None = None
) -> list[EvalAnswer]:
    """Return the answers of the ranks on this host, or of some of them, in the order of the ranks.

    ``takers``: every rank that is queried, including those on other hosts.
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
        answers = ask_many([rank.pid for rank in chosen], "load_modules", arguments, deadline=deadline, dog=dog)
    return [_answer(rank.rank, answers[rank.pid]) for rank in chosen]


def _answer(rank: int, answer: bytes | InjectError) -> EvalAnswer:
    if isinstance(answer, InjectError):
        return EvalAnswer(
            rank=rank, answer=RankAnswer(rank=rank, text=answer.message, error=True), help=answer.help, asked=False
        )
    found = read_answer(answer, EvalFields)
    if found is None:
        text = "its answer cannot be read"
        return EvalAnswer(rank=rank, answer=RankAnswer(rank=rank, text=text, error=True), help=REMEDY, asked=False)
    if found.refused is not None:
        return EvalAnswer(rank=rank, answer=RankAnswer(rank=rank, text=found.refused, error=True), asked=False)
    effect = found.effect or ""
    return EvalAnswer(
        rank=rank,
        answer=RankAnswer(
            rank=rank,
            text=found.printed + (found.error or effect or found.value),
            value=found.described,
            error=bool(found.error or effect),
            cut=found.cut,
        ),
        where=dict(found.where),
        thread=found.thread,
        effect=effect,
        collective=found.collective,
        thread_name=found.thread_name,
    )
