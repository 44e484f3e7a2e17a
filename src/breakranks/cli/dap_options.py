"""The options of `breakranks attach` for clients of the Debug Adapter Protocol."""

from __future__ import annotations

import argparse

from msgspec import Struct

from breakranks.errors import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `breakranks attach` for DAP."""
    parser.add_argument(
        "--dap", action="store_true", help="serve VS Code and other DAP clients on a loopback port, with a token"
    )
    parser.add_argument("--dap-unix", action="store_true", help="serve DAP clients on UNIX sockets only; opens no port")
    parser.add_argument(
        "--dap-port", metavar="PORT", type=int, default=0, help="port for --dap (default: any free port)"
    )
    parser.add_argument(
        "--launch-json",
        metavar="FILE",
        help="write one entry per rank to this launch.json; with -, print the entries",
    )


class DapOptions(Struct, frozen=True, kw_only=True):
    """``port``: of the loopback device, 0 for any, None for UNIX sockets only. ``launch_json``: a file, or "-"."""

    port: int | None
    launch_json: str | None = None


def options_of(args: argparse.Namespace) -> DapOptions | None:
    """The options, or None where a command line does not ask for DAP. Raises UsageError before anything is attached."""
    asked = bool(args.dap or args.dap_unix)
    if not asked and (args.dap_port or args.launch_json):
        raise UsageError("--dap-port and --launch-json need --dap", "Add --dap.")
    if args.dap_unix and (args.dap_port or args.launch_json):
        raise UsageError("--dap-unix opens no port, and VS Code needs one", "Use --dap instead.")
    if not 0 <= args.dap_port < 65536:
        raise UsageError(
            f"--dap-port {args.dap_port} is not a port", "Give one from 1024 to 65535, or leave the option out."
        )
    if not asked:
        return None
    return DapOptions(port=None if args.dap_unix else args.dap_port, launch_json=args.launch_json)
