"""Serve VS Code and other clients of the Debug Adapter Protocol on the ranks of a job: `breakranks attach --dap`."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import signal
import sys
from typing import TextIO

from breakranks.cli.dap_options import DapOptions
from breakranks.cli.exit_status import OK
from breakranks.console.debug_session import DebugSession
from breakranks.dap.bridge import LOOPBACK, DapBridge, ranks_without_debugpy
from breakranks.dap.launch_json import LaunchConfig, config_of, write
from breakranks.errors import BreakranksError
from breakranks.rankset import RankSet, ranks_text

_MAX_LINES = 8
REMEDY = "Install it where breakranks runs: pip install 'breakranks[dap]'"


def serve(session: DebugSession, ranks: RankSet, options: DapOptions) -> int:
    """Serve DAP clients on these ranks until Ctrl-C, or until the job has ended. The session is left open."""
    out = sys.stderr if options.launch_json == "-" else sys.stdout
    here = ranks & session.ranks
    if not here:
        raise BreakranksError(f"none of the ranks {ranks} can be reached", "breakranks ps shows the job.")
    folder = _debugpy_folder()
    if not folder:
        without = ranks_without_debugpy(session, here)
        if without:
            raise BreakranksError(
                f"debugpy is missing, both in the environment of breakranks and in {ranks_text(without)}", REMEDY
            )
    bridge = DapBridge(
        session,
        here,
        port=options.port,
        token=secrets.token_urlsafe(24),
        folder=folder,
        say=lambda text: _say(text, out),
    )
    return asyncio.run(_serve(bridge, here, options, out))


async def _serve(bridge: DapBridge, ranks: RankSet, options: DapOptions, out: TextIO) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    try:
        await bridge.open()
        _show_addresses(bridge, ranks, options, out)
        if await bridge.run(stop):
            _say("clients are disconnected, the job keeps running", out)
        else:
            _say("the job has ended", out)
    finally:
        await bridge.close()
    return OK


def _show_addresses(bridge: DapBridge, ranks: RankSet, options: DapOptions, out: TextIO) -> None:
    for rank, socket_path in list(bridge.paths.items())[:_MAX_LINES]:
        _say(f"rank {rank}: {socket_path}", out)
    if len(bridge.paths) > _MAX_LINES:
        _say(f"… and {len(bridge.paths) - _MAX_LINES} more", out)
    if bridge.port:
        _say(f"all ranks: {LOOPBACK}:{bridge.port}, with the token", out)
        config = config_of(ranks, LOOPBACK, bridge.port, bridge.token)
        path = options.launch_json if options.launch_json != "-" else None
        problem = write(path, config) if path is not None else ""
        if path is not None and not problem:
            _say(f"{path} is written: start “{config['compounds'][0]['name']}” in VS Code", out)
        else:
            _print_config(config, problem, out)
    _say("press Ctrl-C to stop serving; the job keeps running", out)


def _print_config(config: LaunchConfig, problem: str, out: TextIO) -> None:
    if problem:
        _say(f"{problem}. Add this to it:", out)
    elif out is sys.stdout:
        _say("for .vscode/launch.json (--launch-json writes it):", out)
    print(json.dumps(config, indent=4), flush=True)


def _debugpy_folder() -> str:
    """The folder of the debugpy in this environment, or nothing."""
    spec = importlib.util.find_spec("debugpy")
    return os.path.dirname(os.path.dirname(spec.origin)) if spec is not None and spec.origin else ""


def _say(text: str, out: TextIO) -> None:
    try:
        print(text, file=out, flush=True)
    except OSError:  # the reader has left, and clients have not
        pass
