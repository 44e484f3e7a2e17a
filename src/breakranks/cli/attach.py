"""Into a running job that nobody prepared: look at any variable of any rank, stop it, step it, let it go unharmed.

A rank that is in Python is stopped at its next line. A rank that is blocked in C (a barrier, a sleep, a lock) is
inspected: where, up, down, list, args, locals, p, pp, whatis, threads, all but stepping; `interrupt` stops it when it
comes back. The prompt says which of the two it is. When it quits, or is killed, every rank goes on, and nothing of ours
stays in it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from breakranks.backend.attach_agents import UnreachedRank, wait_for_leave
from breakranks.backend.job_backend import Backend, RunningJob
from breakranks.cli import console as prompt
from breakranks.cli import dap, job_selection, target_args, terminal_output
from breakranks.cli.main import main
from breakranks.console.commands import Console
from breakranks.console.debug_session import DebugSession
from breakranks.console.interrupt_ranks import choose_thread, halt, make_patient
from breakranks.errors import BreakranksError, UsageError
from breakranks.rankset import RankSet, ranks_text

EXAMPLES = """
breakranks attach                              the job on this machine, all its ranks
breakranks attach --rank 3                     stop rank 3 only; the others run on
breakranks attach mpi:hostfile --rank 13       the job on the hosts of an MPI hostfile
breakranks attach -c w -c 'p self.path'        ask, show, and go
breakranks attach -c 'b train.py:30' -c 'p loss' -c c    stop at that line, ask, resume
breakranks attach --no-stop pid:4242           only look, in any Python process
breakranks attach --thread loader              another thread than the main one
breakranks attach --dap --launch-json .vscode/launch.json    for VS Code and other DAP clients
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help=target_args.LIVE)
    parser.add_argument("--job", metavar="KEY", help="which job, when there are several: its key or the start of it")
    target_args.add_rank(parser, "stop and ask only these: 3, 0-7, 0,4-6")
    parser.add_argument("--thread", metavar="NAME", help="this thread, by name or number; without it the main thread")
    parser.add_argument("--no-stop", action="store_true", help="stop no rank: only inspect, while the job runs")
    prompt.add_script(parser)
    dap.add_options(parser)
    target_args.add_reach(parser)
    target_args.add_output(parser, full="cut nothing")


def run(args: argparse.Namespace) -> int:
    commands = prompt.commands_of(args)
    prompt.check_times(args)
    for_clients = dap.wanted(args)
    with job_selection.live(args) as (backend, job):
        if for_clients and not backend.is_local:
            raise UsageError(
                "--dap reaches the ranks of its own host", "Log in there, or use the console: leave --dap out."
            )
        return _attach(backend, job, commands, for_clients=for_clients, args=args)


def _attach(
    backend: Backend, job: RunningJob, commands: list[str] | None, *, for_clients: bool, args: argparse.Namespace
) -> int:
    chosen = job_selection.ranks_of(job, args.rank)
    # An agent in every rank, also of those that run on: their timeouts are long while another is stopped.
    attached = job.attach(None)
    missed = [one for one in attached.unreached if chosen is None or one.rank in chosen]
    if len(missed) == (len(job.ranks) if chosen is None else len(chosen)):
        _say_native(backend, missed)
        raise BreakranksError(f"no rank can be entered: {missed[0].what}", missed[0].help)
    session = DebugSession(agents=attached.agents, backend=backend)

    if for_clients:
        return _serve(session, chosen, args)

    def begin(session: DebugSession, console: Console) -> bool:
        _begin(session, console, chosen, args)
        _say_missed(backend, missed, args)
        return True

    try:
        if commands is None and not args.json and sys.stdin.isatty():
            return prompt.talk(session, args, begin)
        if commands is None:
            commands = [line.rstrip("\n") for line in sys.stdin]
        return prompt.script(session, commands, args, begin)
    finally:
        wait_for_leave(attached.agents)


def _serve(session: DebugSession, chosen: RankSet | None, args: argparse.Namespace) -> int:
    try:
        _meet(session)
        return dap.serve(session, session.ranks if chosen is None else chosen, args)
    finally:
        session.close(armed=False)


def _meet(session: DebugSession) -> None:
    session.scan()
    session.wait(lambda: bool(session.ranks) and all(session.state(rank).get("pid") for rank in session.ranks), 2.0)


def _begin(session: DebugSession, console: Console, chosen: RankSet | None, args: argparse.Namespace) -> None:
    _meet(session)
    make_patient(session)
    ranks = session.ranks if chosen is None else chosen & session.ranks
    if chosen is not None:
        for _ in console.execute(f"focus {ranks}"):
            pass
    if args.thread:
        ranks = choose_thread(session, ranks, args.thread)
    refused = {} if args.no_stop else halt(session, ranks)
    session.take_events()
    if not args.json:
        prompt.show_standings(session, ranks, args)
        for rank, why in refused.items():
            terminal_output.show([[(f"rank {rank} cannot be stopped: {why}", "warn")]], terminal_output.look(args))


def _say_missed(backend: Backend, missed: Sequence[UnreachedRank], args: argparse.Namespace) -> None:
    if not missed or args.json:
        return

    groups: dict[tuple[str, str], list[int]] = {}
    for one in missed:
        groups.setdefault((one.what, one.help), []).append(one.rank)
    for (what, help), ranks in groups.items():
        lines = [[(f"{ranks_text(RankSet(ranks))} cannot be entered: {what}", "warn")], [(help, "dim")]]
        terminal_output.show(lines, terminal_output.look(args))
    _say_native(backend, missed)


def _say_native(backend: Backend, missed: Sequence[UnreachedRank]) -> None:
    """Where no Python can run there is still what can be seen from outside, C frames too."""
    if any(one.gil_held for one in missed):
        main(["stacks", "--native", *backend.words_for_ranks((one.rank, one.pid) for one in missed)])
