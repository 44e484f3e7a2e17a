"""The launch.json of VS Code for a job: an entry a rank, and a compound that attaches to all of them."""

from __future__ import annotations

import json
import os
from typing import Any

from breakranks.rankset import RankSet, ranks_text

DEFAULT = ".vscode/launch.json"
_MARK = "breakranksToken"
_ALL = "breakranks: "
Config = dict[str, Any]


def config_of(ranks: RankSet, host: str, port: int, token: str) -> Config:
    """What launch.json has to say. Keys that VS Code does not know it passes on: the rank and the token."""
    entries = [_entry(rank, host, port, token) for rank in ranks]
    compound = {
        "name": f"{_ALL}{ranks_text(ranks)}",
        "configurations": [entry["name"] for entry in entries],
        "stopAll": True,
    }
    return {"version": "0.2.0", "configurations": entries, "compounds": [compound]}


def _entry(rank: int, host: str, port: int, token: str) -> Config:
    return {
        "name": f"rank {rank} (breakranks)",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": host, "port": port},
        "breakranksRank": rank,
        _MARK: token,
        "justMyCode": False,
    }


def merged(there: Config, ours: Config) -> Config:
    """``ours`` in a launch.json that is there: what an earlier run of ours has put in goes, all else stays."""
    configurations = [one for one in there.get("configurations") or [] if not _is_ours(one)]
    compounds = [one for one in there.get("compounds") or [] if not _is_ours(one)]
    return {
        **there,
        "version": there.get("version", ours["version"]),
        "configurations": [*configurations, *ours["configurations"]],
        "compounds": [*compounds, *ours["compounds"]],
    }


def _is_ours(one: object) -> bool:
    return isinstance(one, dict) and (_MARK in one or str(one.get("name", "")).startswith(_ALL))


def write(path: str, ours: Config) -> str:
    """Put ``ours`` into the file at ``path``. Why it was left alone, in words, or nothing if it is done."""
    real = os.path.realpath(path)
    try:
        there = _read(real)
        if isinstance(there, str):
            return there
        os.makedirs(os.path.dirname(real), exist_ok=True)
        _replace(real, json.dumps(merged(there, ours), indent=4) + "\n")
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""


def _read(path: str) -> Config | str:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        return f"{path} is no plain JSON (comments?), so it is left as it is"
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key, []), list) for key in ("configurations", "compounds")
    ):
        return f"{path} is not what a launch.json looks like, so it is left as it is"
    return found


def _replace(path: str, text: str) -> None:
    """At once: an editor that has it open sees the old one or the new one. It has a token in it, so a new one is ours
    alone; one that was there keeps its mode."""
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
