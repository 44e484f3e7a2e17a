"""VS Code and other clients of the Debug Adapter Protocol on the ranks of a job: `breakranks attach --dap`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import secrets
import signal
import sys
from typing import TextIO

from breakranks.console.debug_session import DebugSession
from breakranks.dap.bridge import LOOPBACK, DapBridge
from breakranks.dap.launch_json import config_of, write
from breakranks.errors import BreakranksError, UsageError
from breakranks.rankset import RankSet, ranks_text

_MOST_LINES = 8
REMEDY = "Install it where breakranks runs: pip install 'breakranks[dap]'"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `breakranks attach` that are about DAP."""
    parser.add_argument(
        "--dap", action="store_true", help="for VS Code and other DAP clients: a loopback port with a token"
    )
    parser.add_argument("--dap-unix", action="store_true", help="the same without any port: UNIX sockets only")
    parser.add_argument("--dap-port", metavar="PORT", type=int, default=0, help="which port (any that is free)")
    parser.add_argument(
        "--launch-json", metavar="FILE", help="write the ranks into this launch.json, .vscode/launch.json say; - prints"
    )


def wanted(args: argparse.Namespace) -> bool:
    """Whether a command line asks for DAP. What cannot be is refused here, before anything is attached to."""
    asked = bool(args.dap or args.dap_unix)
    if not asked and (args.dap_port or args.launch_json):
        raise UsageError("--dap-port and --launch-json are about --dap", "Add --dap.")
    if args.dap_unix and (args.dap_port or args.launch_json):
        raise UsageError("--dap-unix opens no port, and VS Code needs one", "Use --dap instead.")
    if not 0 <= args.dap_port < 65536:
        raise UsageError(f"--dap-port {args.dap_port} is no port", "Give one from 1024 to 65535, or leave it out.")
    return asked


def serve(session: DebugSession, ranks: RankSet, args: argparse.Namespace) -> int:
    """Serve DAP clients on these ranks until Ctrl-C, or until the job has ended. The session is left open."""
    import asyncio

    out = sys.stderr if args.launch_json == "-" else sys.stdout
    here = ranks & session.ranks
    if not here:
        raise BreakranksError(f"none of the ranks {ranks} can be reached", "breakranks ps shows the job.")
    folder = _debugpy_folder()
    if not folder:
        _need_debugpy(session, here)
    bridge = DapBridge(
        session,
        here,
        port=None if args.dap_unix else args.dap_port,
        token=secrets.token_urlsafe(24),
        folder=folder,
        say=lambda text: _say(text, out),
    )
    return asyncio.run(_serve(bridge, here, args, out))


async def _serve(bridge: DapBridge, ranks: RankSet, args: argparse.Namespace, out: TextIO) -> int:
    import asyncio

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    try:
        await bridge.open()
        _tell_where(bridge, ranks, args, out)
        if await bridge.run(stop):
            _say("clients are disconnected, the job runs on", out)
        else:
            _say("the job has ended", out)
    finally:
        await bridge.close()
    return 0


def _tell_where(bridge: DapBridge, ranks: RankSet, args: argparse.Namespace, out: TextIO) -> None:
    for rank, path in list(bridge.paths.items())[:_MOST_LINES]:
        _say(f"rank {rank}: {path}", out)
    if len(bridge.paths) > _MOST_LINES:
        _say(f"… and {len(bridge.paths) - _MOST_LINES} more like it", out)
    if bridge.port:
        _say(f"all of them: {LOOPBACK}:{bridge.port}, with the token", out)
        ours = config_of(ranks, LOOPBACK, bridge.port, bridge.token)
        problem = "" if args.launch_json in (None, "-") else write(args.launch_json, ours)
        if args.launch_json not in (None, "-") and not problem:
            _say(f"{args.launch_json} is written: start “{ours['compounds'][0]['name']}” in VS Code", out)
        else:
            _print_config(ours, problem, out)
    _say("Ctrl-C ends this; the job runs on", out)


def _print_config(ours: dict[str, object], problem: str, out: TextIO) -> None:
    if problem:
        _say(f"{problem}. This belongs into it:", out)
    elif out is sys.stdout:
        _say("for .vscode/launch.json (--launch-json writes it):", out)
    print(json.dumps(ours, indent=4), flush=True)


def _debugpy_folder() -> str:
    """Where the debugpy of our own environment is, or nothing."""
    found = importlib.util.find_spec("debugpy")
    return os.path.dirname(os.path.dirname(found.origin)) if found is not None and found.origin else ""


def _need_debugpy(session: DebugSession, ranks: RankSet) -> None:
    """Without one of ours, every rank must have its own."""
    replies = session.ask({"do": "dap"}, ranks, 5.0)
    without = RankSet(rank for rank in ranks if not replies.get(rank, {}).get("own"))
    if without:
        raise BreakranksError(f"debugpy is neither here nor in {ranks_text(without)}", REMEDY)


def _say(text: str, out: TextIO) -> None:
    try:
        print(text, file=out, flush=True)
    except OSError:  # whoever read it has left; clients have not
        pass
