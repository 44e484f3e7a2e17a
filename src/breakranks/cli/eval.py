"""Evaluate an expression in the ranks of a running job. The job is not stopped. The injected code is removed.

The expression is evaluated in the innermost frame of the main thread that has its names, whether the rank runs or is
blocked. An injected thread does it, so the threads of the job are not disturbed. Equal answers are shown once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from breakranks.backend import evaluate
from breakranks.backend.evaluate import EvalAnswer, EvalQuestion
from breakranks.backend.job_backend import RunningJob
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.exit_status import FOUND, OK
from breakranks.errors import BreakranksError, UsageError
from breakranks.rank_messages import read_place
from breakranks.show import answer_lines, stop_lines
from breakranks.show.answers_json import as_json
from breakranks.snapshot.answer_groups import fold

EXAMPLES = """
breakranks eval step                                 the variable `step` of every rank
breakranks eval --rank 3 self.lock_file_path         what a hung FileBaton.wait waits for
breakranks eval slurm:2180718 --rank 13 step         a rank of a Slurm job, on any host of it
breakranks eval --frame train 'len(batch), loss'     in the frame of the function train
breakranks eval --thread loader 'queue.qsize()'      in another thread
breakranks eval pid:4242 --json 'cfg'                any Python process, for programs
breakranks eval --allow-effects 'cfg.verbose = True' change something, in a script
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help=target_args.LIVE)
    parser.add_argument("expression", metavar="EXPR", help="a Python expression or statement, quoted")
    parser.add_argument("--job", metavar="KEY", help="the job, if there are several: its key or the start of its key")
    target_args.add_rank(parser)
    parser.add_argument(
        "--frame",
        metavar="FUNCTION|N",
        help="evaluate in the frame of this function, or in frame N (0: the innermost)",
    )
    parser.add_argument(
        "--thread", metavar="NAME", help="evaluate in this thread, given by name or number (default: the main thread)"
    )
    parser.add_argument(
        "--allow-effects",
        action="store_true",
        help="evaluate an assignment, or a call that starts a collective, without confirmation",
    )
    parser.add_argument(
        "--timeout", metavar="S", type=float, default=15.0, help="seconds to wait for the answers (default: 15)"
    )
    target_args.add_reach(parser)
    target_args.add_output(parser, full="cut nothing")


def run(args: argparse.Namespace) -> int:
    if not 0 < args.timeout < 1e6:
        raise UsageError("--timeout must be a positive number of seconds", "For example: --timeout 5")
    question = evaluate.EvalQuestion(
        source=args.expression, frame=args.frame, thread=args.thread, effects=args.allow_effects
    )
    effect = evaluate.effect_of(question.source)
    with job_selection.live(args) as (_, job):
        return _show(_answers(job, question, effect, args), args)


def _answers(job: RunningJob, question: EvalQuestion, effect: str, args: argparse.Namespace) -> Sequence[EvalAnswer]:
    """The answers of the ranks; those of a second evaluation, if the user allows what it would change."""
    ranks = job_selection.living_ranks_of(job, args.rank)
    if effect and not question.effects:
        question = _allowed(question, f"{question.source!r} is {effect}, and changes the job")
    answers = job.evaluate(ranks, question, args.timeout)
    refused = [answer for answer in answers if answer.effect]
    if refused and not question.effects:
        question = _allowed(
            question, f"{question.source!r} starts a collective, {refused[0].collective or refused[0].effect}"
        )
        answers = job.evaluate(ranks, question, args.timeout)
    return answers


def _allowed(question: EvalQuestion, why: str) -> EvalQuestion:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(why, "In a script, allow it: --allow-effects")
    sys.stderr.write(f"breakranks: {why}. Do it? yes/no > ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("cancelled", "Nothing was changed.")
    return replace(question, effects=True)


def _show(answers: Sequence[EvalAnswer], args: argparse.Namespace) -> int:
    if answers and not any(answer.asked for answer in answers):
        if args.json:
            _show_json(answers)
        raise BreakranksError(f"no rank could evaluate it: {answers[0].answer.text}", answers[0].help)
    if args.json:
        _show_json(answers)
    else:
        _show_text(answers, args)
    return FOUND if any(answer.answer.error for answer in answers) else OK


def _show_text(answers: Sequence[EvalAnswer], args: argparse.Namespace) -> None:
    look = terminal_output.look(args)
    places = ((answer.rank, read_place(answer.where), answer.thread_name) for answer in answers)
    known = [(rank, place, thread) for rank, place, thread in places if place is not None]
    terminal_output.show(stop_lines.where_lines(known, look), look)
    terminal_output.show(answer_lines.lines(fold(answer.answer for answer in answers), look), look)
    helps = dict.fromkeys(answer.help for answer in answers if answer.help)
    terminal_output.show([[(help, "dim")] for text in helps for help in text.splitlines()], look)


def _show_json(answers: Sequence[EvalAnswer]) -> None:
    by_rank = {answer.rank: answer for answer in answers}
    folded = fold(answer.answer for answer in answers)
    groups = []
    for group, plain in zip(folded.groups, as_json(folded)["answers"], strict=True):
        first = by_rank[group.members[0]]
        groups.append(
            {
                "ranks": plain["ranks"],
                "value": None if plain["error"] else plain["text"],
                "error": plain["text"] if plain["error"] else None,
                "described": plain["value"],
                "cut": plain["cut"],
                "where": first.where or None,
                "thread": first.thread,
            }
        )
    print(json.dumps({"schema": 1, "answers": groups}), flush=True)
