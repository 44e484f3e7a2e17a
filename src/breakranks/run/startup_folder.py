"""Writes the folder that the Pythons of a job find through PYTHONPATH: it makes ranks write into files of the run."""

from __future__ import annotations

import importlib.util
import io
import json
import marshal
import os
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader

from breakranks import __version__
from breakranks.jobs.launchers import LAUNCHERS
from breakranks.rank.launch.launch_config import CONFIG, LAUNCH, STARTUP, host_key
from breakranks.rank.launch.launched_rank import started
from breakranks.rank.launch.output_files import RELAY_SCRIPT

HOOK = "sitecustomize.py"
TEMPLATE = "startup_template.txt"
ZIP = "breakranks.zip"
_PLAIN_PATH = re.compile(r"[\w./+,@%-]+\Z", re.ASCII)  # needs no quotes in any shell
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ALONE = ("__init__.py", "errors.py", "rankset.py", "rank_messages.py", "jobs/__init__.py", "jobs/launchers.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupOptions:
    """What the ranks of a run are to do. ``token`` tells this run from others.

    ``debug_rank`` gets the terminal ``terminal``. ``on_crash``: a rank that raises ends (""), waits ("keep"), or opens
    a prompt ("post-mortem"). ``keep_free_bytes``: with less free space, ranks no longer write into the run's folder.
    """

    token: str
    run_folder: str
    debug_rank: int = -1
    terminal: str = ""
    on_crash: str = ""
    preload_agent: bool = True
    keep_free_bytes: int = 64 << 20


def write_startup_folder(options: StartupOptions) -> str:
    """Make the folder ``startup`` in the folder of the run, and return its path."""
    run_folder = os.path.abspath(options.run_folder)
    startup = f"{run_folder}/{STARTUP}"
    os.makedirs(startup, exist_ok=True)
    os.makedirs(f"{run_folder}/ranks", exist_ok=True)
    _write(f"{startup}/{CONFIG}", json.dumps(_config(options, run_folder), indent=1).encode())
    _write(f"{startup}/{RELAY_SCRIPT}", _read(f"{_ROOT}/rank/launch/{RELAY_SCRIPT}"))
    _write(f"{startup}/{ZIP}", _zipped())
    _write(f"{startup}/{HOOK}", _hook(options.token).encode())
    return startup


def launch_environment(startup: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the launcher: in it, Python finds the startup folder before all others."""
    folders = [folder for folder in environ.get("PYTHONPATH", "").split(":") if not _is_startup(folder)]
    path = ":".join([startup, *folders]).rstrip(":")
    kept = {name: value for name, value in environ.items() if name != LAUNCH}
    return {**_for_open_mpi(startup, environ), **kept, "PYTHONPATH": path}


def _for_open_mpi(startup: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Open MPI does not pass PYTHONPATH on to other hosts. `-x` would, but excludes its counterpart in the environment.

    So its daemon there starts with it. The shell of that host, which is most likely of the same kind as the one here,
    adds what that host has in PYTHONPATH; a C shell would refuse a variable that is not set.
    """
    if environ.get("SHELL", "").endswith("csh") or not _PLAIN_PATH.match(startup):
        return {}
    return {"OMPI_MCA_orte_launch_agent": f"env PYTHONPATH={startup}:$PYTHONPATH orted"}


def _is_startup(folder: str) -> bool:
    """Whether it is the folder of another run, around this one: this one's takes its place."""
    return os.path.basename(folder.rstrip("/")) == STARTUP and all(
        os.path.exists(f"{folder}/{name}") for name in (CONFIG, HOOK, RELAY_SCRIPT)
    )


def _config(options: StartupOptions, run_folder: str) -> dict[str, object]:
    return {
        "token": options.token,
        "run_folder": run_folder,
        "host_key": host_key(),
        "run_pid": os.getpid(),
        "run_start": started(os.getpid()),
        "names": rank_variables(),
        "debug_rank": options.debug_rank,
        "terminal": options.terminal,
        "on_crash": options.on_crash,
        "preload_agent": options.preload_agent,
        "keep_free_bytes": options.keep_free_bytes,
    }


def rank_variables() -> tuple[str, ...]:
    """The variables from which a launcher's ranks know their numbers. A process without any of them is no rank."""
    return tuple(dict.fromkeys(name for row in LAUNCHERS for name in (*row.rank, *row.local_rank)))


def _hook(token: str) -> str:
    values = {
        "TOKEN": token,
        "NAMES": rank_variables(),
        "ROOT": os.path.dirname(_ROOT),
        "VERSION": __version__,
    }
    text = _read(f"{_ROOT}/run/{TEMPLATE}").decode()
    for name, value in values.items():
        text = text.replace(f"@{name}@", ascii(value))
    return text


def _zipped() -> bytes:
    """The modules that a rank needs, for hosts where breakranks is not installed at the same place."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in _files():
            path = f"{_ROOT}/{name}"
            archive.writestr(zipfile.ZipInfo(f"breakranks/{name}"), _read(path))
            archive.writestr(zipfile.ZipInfo(f"breakranks/{name}c"), _code(path))
    return packed.getvalue()


def _files() -> Iterator[str]:
    yield from _ALONE
    for folder in ("rank", "rank/launch"):
        yield from (f"{folder}/{name}" for name in sorted(os.listdir(f"{_ROOT}/{folder}")) if name.endswith(".py"))


def _code(path: str) -> bytes:
    """The content of a .pyc file, which another version of Python ignores."""
    loader = SourceFileLoader("breakranks", path)
    unchecked = struct.pack("<L8x", 0b01)
    return importlib.util.MAGIC_NUMBER + unchecked + marshal.dumps(loader.get_code("breakranks"))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
