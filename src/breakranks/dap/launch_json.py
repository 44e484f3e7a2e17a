"""The launch.json of VS Code for a job: one entry per rank, and a compound that attaches to all of them."""

from __future__ import annotations

import json
import os
from typing import Any

from breakranks.rankset import RankSet, ranks_text

_MARK = "breakranksToken"
_ALL = "breakranks: "
LaunchConfig = dict[str, Any]  # the part of a file that may have been written by its user


def config_of(ranks: RankSet, host: str, port: int, token: str) -> LaunchConfig:
    """The content of launch.json. VS Code passes on the keys that it does not know: the rank and the token."""
    entries = [_entry(rank, host, port, token) for rank in ranks]
    compound = {
        "name": f"{_ALL}{ranks_text(ranks)}",
        "configurations": [entry["name"] for entry in entries],
        "stopAll": True,
    }
    return {"version": "0.2.0", "configurations": entries, "compounds": [compound]}


def _entry(rank: int, host: str, port: int, token: str) -> LaunchConfig:
    return {
        "name": f"rank {rank} (breakranks)",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": host, "port": port},
        "breakranksRank": rank,
        _MARK: token,
        "justMyCode": False,
    }


def merged(there: LaunchConfig, added: LaunchConfig) -> LaunchConfig:
    """``added`` merged into a launch.json: the entries of an earlier attach are replaced, all else stays."""
    configurations = [entry for entry in there.get("configurations") or [] if not _is_added(entry)]
    compounds = [entry for entry in there.get("compounds") or [] if not _is_added(entry)]
    return {
        **there,
        "version": there.get("version", added["version"]),
        "configurations": [*configurations, *added["configurations"]],
        "compounds": [*compounds, *added["compounds"]],
    }


def _is_added(entry: object) -> bool:
    """Whether an entry of the file is one of breakranks."""
    return isinstance(entry, dict) and (_MARK in entry or str(entry.get("name", "")).startswith(_ALL))


def write(path: str, added: LaunchConfig) -> str:
    """Merge ``added`` into the file at ``path``. Return why the file was left as it is, or "" if it was written."""
    real = os.path.realpath(path)
    try:
        there = _read(real)
        if isinstance(there, str):
            return there
        os.makedirs(os.path.dirname(real), exist_ok=True)
        _replace(real, json.dumps(merged(there, added), indent=4) + "\n")
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""


def _read(path: str) -> LaunchConfig | str:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        return f"{path} is not plain JSON (comments?) and is left as it is"
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key, []), list) for key in ("configurations", "compounds")
    ):
        return f"{path} does not look like a launch.json and is left as it is"
    return found


def _replace(path: str, text: str) -> None:
    """Replace the file atomically. It contains a token, so a new file is readable by this user alone; an old one keeps
    its mode."""
    try:
        mode = os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        mode = 0o600
    beside = f"{path}.{os.getpid()}"
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(beside, mode)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
