"""The arguments that commands share: the target, how its hosts are reached, and how to print."""

from __future__ import annotations

import argparse

DEADLINE_SECONDS = 10.0
COLORS = ("auto", "always", "never")
LIVE = (
    "local (the default), pid:123,124, or hosts: ssh:n[1-4], pdsh:n[1-4], slurm:JOBID, mpi:HOSTFILE, exec:COMMAND@HOSTS"
)


def add_target(parser: argparse.ArgumentParser) -> None:
    """TARGET, ``--job`` and ``--rank``: what to look at."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help=f"{LIVE}; a file made with `breakranks snapshot`, or a folder of dumps",
    )
    parser.add_argument("--job", metavar="KEY", help="which job, when there are several: its key or the start of it")
    add_rank(parser)
    add_reach(parser)


def add_rank(parser: argparse.ArgumentParser, help: str = "only these ranks: 3, 0-7, 0,4-6, 0-31/8") -> None:
    """``--rank``; the older ``--ranks`` is understood, too."""
    parser.add_argument("--rank", metavar="SET", help=help)
    parser.add_argument("--ranks", dest="rank", help=argparse.SUPPRESS)


def add_reach(parser: argparse.ArgumentParser) -> None:
    """How the hosts of a target are reached. Defaults: the environment and a file, see ``cli.config``."""
    parser.add_argument("--ssh-config", metavar="FILE", help="for ssh, pdsh and mpirun: read this file, as ssh -F does")
    parser.add_argument("--ssh-options", metavar="TEXT", help="more options for ssh: '-p 2222 -i key'")
    parser.add_argument("--python", metavar="PATH", help="the Python to use on the hosts (default: one that is there)")
    parser.add_argument("--setup", metavar="TEXT", help="run this in a shell there first: 'conda activate x'")
    parser.add_argument("--sudo", action="store_true", help="look as root there, by sudo -n")
    parser.add_argument("--deadline", metavar="S", type=float, help="seconds that a host has to answer (default: 10)")


def add_output(parser: argparse.ArgumentParser, *, json: bool = True, full: str = "") -> None:
    """``--json``, ``--full`` and ``--color``: how to say it."""
    if json:
        parser.add_argument("--json", action="store_true", help="the same as JSON, for programs")
    if full:
        parser.add_argument("--full", action="store_true", help=full)
    parser.add_argument(
        "--color",
        metavar="WHEN",
        choices=COLORS,
        default="auto",
        help="auto (the default: on a terminal, unless NO_COLOR is set), always, never",
    )


def add_no_inject(parser: argparse.ArgumentParser) -> None:
    """``--no-inject``: stay outside of the processes."""
    parser.add_argument(
        "--no-inject",
        action="store_true",
        help="run nothing inside the ranks: then calls by number, groups, owners of locks and steps are not known",
    )


def reach_words(args: argparse.Namespace) -> list[str]:
    """The options of :func:`add_reach` as they were given, for another command."""
    words = ["--sudo"] if args.sudo else []
    for name in ("ssh_config", "ssh_options", "python", "setup", "deadline"):
        value = getattr(args, name)
        if value is not None and (name, value) != ("deadline", DEADLINE_SECONDS):
            words.append(f"--{name.replace('_', '-')}={value}")
    return words
