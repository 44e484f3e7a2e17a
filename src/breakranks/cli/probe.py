"""Print expressions each time a rank executes FILE:LINE, without stopping it (a logpoint).

The job needs no preparation. The logpoint is removed after a number of hits (--times) or seconds (--seconds). Hits of
several ranks are shown together, and equal values once.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys

from breakranks.backend.attach_agents import wait_for_leave
from breakranks.backend.job_backend import Backend, RunningJob
from breakranks.cli import job_selection, target_args, terminal_output
from breakranks.cli.exit_status import FOUND, OK
from breakranks.console.begin_attach import connect
from breakranks.console.debug_session import DebugSession
from breakranks.console.logpoints import Logpoint, LogpointError, LogpointHit, hits, set_probe
from breakranks.errors import BreakranksError, UsageError
from breakranks.rankset import RankSet, ranks_text
from breakranks.show import answer_lines, stop_lines
from breakranks.show.answers_json import as_json

EXAMPLES = """
breakranks probe train.py:30 --print loss                                    the next ten times, on all ranks
breakranks probe train.py:30 --when 'loss != loss' --print step --times 1    the first nan of each rank
breakranks probe model.py:88 --print x.shape --rank 0-3 --seconds 5          for five seconds
breakranks probe train.py:30 --print loss --json | jq .values                for programs, one line per hit
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help=target_args.LIVE)
    parser.add_argument(
        "place",
        metavar="FILE:LINE",
        help="the line; a file's base name is enough if only one loaded file has it",
    )
    parser.add_argument("--job", metavar="KEY", help="the job, if there are several: its key or the start of its key")
    target_args.add_rank(parser)
    parser.add_argument("--when", metavar="COND", help="print only when this is true in the frame of that line")
    parser.add_argument(
        "--print", dest="prints", metavar="EXPR", action="append", help="expression to print; may be repeated"
    )
    parser.add_argument("--times", metavar="N", type=int, default=10, help="maximum hits per rank (default: 10)")
    parser.add_argument("--seconds", metavar="S", type=float, default=60.0, help="seconds to run (default: 60)")
    parser.add_argument("--for", dest="seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    target_args.add_reach(parser)
    target_args.add_output(parser, full="cut nothing")


def run(args: argparse.Namespace) -> int:
    probe = Logpoint(place=args.place, when=args.when, prints=tuple(args.prints or ()), times=args.times)
    _check(probe, args)
    with job_selection.live(args) as (backend, job):
        return _probe(backend, job, probe, args)


def _probe(backend: Backend, job: RunningJob, probe: Logpoint, args: argparse.Namespace) -> int:
    attached = job.attach(job_selection.living_ranks_of(job, args.rank))
    if not attached.agents:
        raise BreakranksError(f"cannot attach to any rank: {attached.unreached[0].what}", attached.unreached[0].help)
    for unreached in attached.unreached:
        sys.stderr.write(f"breakranks: cannot attach to rank {unreached.rank}: {unreached.what}\n")
    session = DebugSession(agents=attached.agents, backend=backend)
    try:
        connect(session)
        ranks = session.ranks
        failed = set_probe(session, probe, ranks)
        if len(failed) == len(ranks):
            why = next(iter(failed.values()), "the job has ended")
            raise UsageError(f"no logpoint can be set: {why}", "Name a line that has code: FILE:LINE")
        return _watch(session, probe, ranks, failed, args)
    finally:
        session.close(armed=False)
        wait_for_leave(attached.agents)


def _check(probe: Logpoint, args: argparse.Namespace) -> None:
    file, _, line = probe.place.rpartition(":")
    if not file or not line.isdigit():
        raise UsageError(f"{probe.place!r} is not a line", "Write FILE:LINE, for example train.py:30")
    for source in (probe.when, *probe.prints):
        try:
            if source is not None:
                ast.parse(source.strip(), mode="eval")
        except (SyntaxError, ValueError) as error:
            raise UsageError(
                f"{source!r} is not an expression: {error}", "For example: --when 'loss != loss'"
            ) from None
    if not 0 < args.times <= 1_000_000:
        raise UsageError(f"--times {args.times} is out of range", "Give 1 to 1000000.")
    if not 0 < args.seconds < 1e9:
        raise UsageError("--seconds must be a positive number of seconds", "For example: --seconds 60")


def _watch(
    session: DebugSession, probe: Logpoint, ranks: RankSet, failed: dict[int, str], args: argparse.Namespace
) -> int:
    for rank, why in failed.items():
        sys.stderr.write(f"breakranks: rank {rank} has no logpoint: {why}\n")
    count = 0
    try:
        for hit in hits(session, probe, ranks - RankSet(failed), args.seconds):
            if isinstance(hit, LogpointError):
                sys.stderr.write(f"breakranks: rank {hit.rank}: {hit.text}\n")
                continue
            count += 1
            _show(hit, args)
    except KeyboardInterrupt:
        if not count:
            raise
    if not count:
        sys.stderr.write(
            f"breakranks: no rank reached {probe.place}{' with the condition true' if probe.when else ''}\n"
        )
    return OK if count else FOUND


def _show(hit: LogpointHit, args: argparse.Namespace) -> None:
    if args.json:
        values = [{"expression": name, **as_json(folded)} for name, folded in hit.values]
        where = hit.where.plain()
        plain = {"schema": 1, "hit": hit.number, "ranks": str(hit.ranks), "where": where, "values": values}
        print(json.dumps(plain), flush=True)
        return

    look = terminal_output.look(args)
    terminal_output.show(
        [[(f"hit {hit.number}", "own"), f"  {ranks_text(hit.ranks)}  ", *stop_lines.place(hit.where, look)]], look
    )
    for name, folded in hit.values:
        terminal_output.show([[(f"  {name}", "dim")]], look)
        terminal_output.show(answer_lines.lines(folded, look), look)
    sys.stdout.flush()
