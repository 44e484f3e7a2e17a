"""Inspect, stop and step the ranks of a running job that was not prepared.

A rank in Python is stopped at its next line. A rank that is blocked in C (a barrier, a sleep, a lock) can only be
inspected: where, up, down, list, args, locals, p, pp, whatis, threads, everything but stepping. `interrupt` stops it
when it returns to Python. The prompt shows which ranks are stopped and which are inspected. When the console quits, or
is killed, every rank resumes, and the code of breakranks is removed from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from breakranks.backend.attach_agents import AttachResult, UnreachedRank, wait_for_leave
from breakranks.backend.job_backend import Backend, RunningJob
from breakranks.cli import console as prompt
from breakranks.cli import dap_options, job_selection, target_args
from breakranks.cli.main import main
from breakranks.console.begin_attach import AttachOptions, begin_attach, connect
from breakranks.console.command_results import Notice, Outcome
from breakranks.console.commands import Console
from breakranks.console.console_loop import Begin
from breakranks.console.debug_session import DebugSession
from breakranks.errors import BreakranksError, UsageError
from breakranks.rankset import RankSet, ranks_text

EXAMPLES = """
breakranks attach                                                   the job on this machine, all its ranks
breakranks attach --rank 3                                          stop rank 3 only; the others keep running
breakranks attach mpi:hostfile --rank 13                            the job on the hosts of an MPI hostfile
breakranks attach -c w -c 'p self.path'                             print, and resume
breakranks attach -c 'tbreak train.py:30' -c c -c 'p loss' -c go    stop at that line, print, resume
breakranks attach --no-stop pid:4242                                only inspect, any Python process
breakranks attach --thread loader                                   another thread than the main one
breakranks attach --dap --launch-json .vscode/launch.json           for VS Code and other DAP clients
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help=target_args.LIVE)
    parser.add_argument("--job", metavar="KEY", help="the job, if there are several: its key or the start of its key")
    target_args.add_rank(parser, "stop and inspect only these ranks: 3, 0-7, 0,4-6, 0-31/8")
    parser.add_argument(
        "--thread", metavar="NAME", help="inspect this thread, given by name or number (default: the main thread)"
    )
    parser.add_argument("--no-stop", action="store_true", help="stop no rank: only inspect, while the job runs")
    prompt.add_script(parser)
    dap_options.add_options(parser)
    target_args.add_reach(parser)
    target_args.add_output(parser, full="cut nothing")


def run(args: argparse.Namespace) -> int:
    commands = prompt.commands_of(args)
    prompt.check_times(args)
    clients = dap_options.options_of(args)
    with job_selection.live(args) as (backend, job):
        if clients is not None and not backend.is_local:
            raise UsageError(
                "--dap serves only ranks of this machine",
                "Run it on the host of the ranks, or omit --dap to use the console.",
            )
        return _attach(backend, job, commands, clients, args)


def _attach(
    backend: Backend,
    job: RunningJob,
    commands: list[str] | None,
    clients: dap_options.DapOptions | None,
    args: argparse.Namespace,
) -> int:
    chosen = job_selection.living_ranks_of(job, args.rank)
    # An agent in every rank, also of those that keep running: their timeouts are long while another is stopped.
    attached = job.attach(None)
    unreached = [rank for rank in attached.unreached if chosen is None or rank.rank in chosen]
    if len(unreached) == (len(job.ranks) if chosen is None else len(chosen)):
        _show_native(backend, unreached)
        raise BreakranksError(f"cannot attach to any rank: {unreached[0].what}", unreached[0].help)
    session = DebugSession(agents=attached.agents, backend=backend)
    if clients is not None:
        return _serve(session, chosen, clients)
    options = AttachOptions(ranks=chosen, thread=args.thread, stop=not args.no_stop)

    def begin(console: Console) -> Iterator[Outcome]:
        yield from begin_attach(console, options)
        yield from _unreached_notices(unreached)
        if not args.json:
            _show_native(backend, unreached)

    return _run(session, attached, commands, begin, args)


def _run(
    session: DebugSession,
    attached: AttachResult,
    commands: list[str] | None,
    begin: Begin,
    args: argparse.Namespace,
) -> int:
    try:
        return prompt.run_loop(session, commands, args, begin=begin)
    finally:
        wait_for_leave(attached.agents)


def _serve(session: DebugSession, chosen: RankSet | None, clients: dap_options.DapOptions) -> int:
    from breakranks.cli import dap_server  # asyncio takes longer to import than an agent to start

    try:
        connect(session)
        return dap_server.serve(session, session.ranks if chosen is None else chosen, clients)
    finally:
        session.close(armed=False)


def _unreached_notices(unreached: Sequence[UnreachedRank]) -> Iterator[Outcome]:
    groups: dict[tuple[str, str], list[int]] = {}
    for rank in unreached:
        groups.setdefault((rank.what, rank.help), []).append(rank.rank)
    for (what, help), ranks in groups.items():
        yield Notice(text=f"cannot attach to {ranks_text(RankSet(ranks))}: {what}", style="warn")
        yield Notice(text=help, style="dim")


def _show_native(backend: Backend, unreached: Sequence[UnreachedRank]) -> None:
    """Where no Python can run, the C frames can still be shown from outside."""
    if any(rank.gil_held for rank in unreached):
        main(["stacks", "--native", *backend.words_for_ranks((rank.rank, rank.pid) for rank in unreached)])
