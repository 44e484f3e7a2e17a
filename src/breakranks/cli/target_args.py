"""The arguments that commands share: the target, how its hosts are reached, and how output is printed."""

from __future__ import annotations

import argparse

DEADLINE_SECONDS = 10.0
COLORS = ("auto", "always", "never")
LIVE = (
    "local (the default), pid:123,124, or hosts: ssh:n[1-4], pdsh:n[1-4], slurm:JOBID, mpi:HOSTFILE, exec:COMMAND@HOSTS"
)
HOSTS = "hosts: ssh:n[1-4], pdsh:n[1-4], slurm:JOBID, mpi:HOSTFILE, exec:COMMAND@HOSTS"
SAVED = "a file made with `breakranks snapshot`"
DUMPS = "a folder of flight recorder dumps"


def add_target(parser: argparse.ArgumentParser, *, files: str = f"{SAVED}, or {DUMPS}") -> None:
    """Add TARGET, ``--job`` and ``--rank``, and the options of :func:`add_reach`. ``files``: what else it may be."""
    parser.add_argument("target", metavar="TARGET", nargs="?", help=f"{LIVE}; {files}")
    parser.add_argument("--job", metavar="KEY", help="the job, if there are several: its key or the start of its key")
    add_rank(parser)
    add_reach(parser)


def add_rank(parser: argparse.ArgumentParser, help: str = "only these ranks: 3, 0-7, 0,4-6, 0-31/8") -> None:
    """Add ``--rank``, and its older spelling ``--ranks``."""
    parser.add_argument("--rank", metavar="SET", help=help)
    parser.add_argument("--ranks", dest="rank", help=argparse.SUPPRESS)


def add_reach(parser: argparse.ArgumentParser) -> None:
    """Add the options of reaching hosts. ``cli.config`` reads their defaults from the environment and a file."""
    parser.add_argument("--ssh-config", metavar="FILE", help="configuration file of ssh, for ssh, pdsh and mpirun")
    parser.add_argument("--ssh-options", metavar="TEXT", help="more options for ssh, for example '-p 2222 -i key'")
    parser.add_argument("--python", metavar="PATH", help="Python to use on the hosts (default: found automatically)")
    parser.add_argument(
        "--setup", metavar="TEXT", help="shell command to run first on each host, for example 'conda activate x'"
    )
    parser.add_argument("--sudo", action="store_true", help="run as root on the hosts, with sudo -n")
    parser.add_argument(
        "--deadline",
        metavar="S",
        type=float,
        help=f"seconds to wait for a host to answer (default: {DEADLINE_SECONDS:g})",
    )


def add_output(parser: argparse.ArgumentParser, *, json: bool = True, full: str = "") -> None:
    """Add ``--json``, ``--full`` and ``--color``."""
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    if full:
        parser.add_argument("--full", action="store_true", help=full)
    parser.add_argument(
        "--color",
        metavar="WHEN",
        choices=COLORS,
        default="auto",
        help="when to print colors: auto (on a terminal, unless NO_COLOR is set), always, never (default: auto)",
    )


def add_no_inject(
    parser: argparse.ArgumentParser,
    help: str = "do not run code inside the ranks; call numbers, groups, lock owners and steps are then unknown",
) -> None:
    """Add ``--no-inject``."""
    parser.add_argument("--no-inject", action="store_true", help=help)


def reach_words(args: argparse.Namespace) -> list[str]:
    """Return the given options of :func:`add_reach` as words of a command line."""
    words = ["--sudo"] if args.sudo else []
    for name in ("ssh_config", "ssh_options", "python", "setup", "deadline"):
        value = getattr(args, name)
        if value is not None and (name, value) != ("deadline", DEADLINE_SECONDS):
            words.append(f"--{name.replace('_', '-')}={value}")
    return words
