"""Defaults for TARGET and the options of reaching hosts, from the environment or a file.

    # ~/.config/breakranks/config.toml (or the file that $BREAKRANKS_CONFIG names)
    target = "ssh:n[1-16]"
    ssh_config = "~/.ssh/cluster"
    deadline = 20

Options override environment variables, which override the file.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping

from breakranks.errors import UsageError

_KINDS = {
    "target": "a string",
    "ssh_config": "a path",
    "ssh_options": "options of ssh, as a string or a list of words",
    "python": "a path",
    "setup": "a command",
    "sudo": "true or false",
    "deadline": "a number of seconds, 0.1 to 3600",
}
_EXAMPLES = {
    "target": "ssh:n[1-16]",
    "ssh_config": "~/.ssh/cluster",
    "ssh_options": "-p 2222",
    "python": "/opt/python/bin/python3",
    "setup": "module load python",
    "sudo": "true",
    "deadline": "20",
}
_MIN_SECONDS, _MAX_SECONDS = 0.1, 3600.0
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def fill(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> None:
    """Set the options that were not given (None, or False for a flag); raise UsageError for an invalid default."""
    wanted = [name for name in _KINDS if getattr(args, name, "") is (False if name == "sudo" else None)]
    if not wanted:
        return
    values = read_file(environ)
    for name in _KINDS:
        variable = f"BREAKRANKS_{name.upper()}"
        if environ.get(variable, "").strip():
            values[name] = checked(name, environ[variable].strip(), variable, typed=False)
    for name in wanted:
        if name in values:
            setattr(args, name, values[name])


def read_file(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Return the values of the configuration file, or none if there is no file."""
    named = environ.get("BREAKRANKS_CONFIG", "")
    folder = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = os.path.expanduser(named) if named else os.path.join(folder, "breakranks", "config.toml")
    try:
        with open(path, "rb") as file:
            data = file.read(1_000_000)
    except (FileNotFoundError, NotADirectoryError) as error:
        if named:
            raise UsageError(
                f"BREAKRANKS_CONFIG names {path}, which does not exist", "Unset it, or create the file."
            ) from error
        return {}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Make it readable, or remove it.") from error
    values = {}
    for key, value in _parsed(data, path).items():
        name = key.replace("-", "_")
        if name not in _KINDS:
            raise UsageError(
                f"{path}: unknown key {key!r}", f"The keys are: {', '.join(name.replace('_', '-') for name in _KINDS)}"
            )
        values[name] = checked(name, value, f"{path}: {key}", typed=True)
    return values


def _parsed(data: bytes, path: str) -> dict[str, object]:
    try:
        import tomllib
    except ImportError as error:  # Python 3.10
        raise UsageError(
            f"{path} can only be read on Python 3.11 or newer",
            "Set the values in the environment, such as BREAKRANKS_TARGET, and remove the file.",
        ) from error
    try:
        return dict(tomllib.loads(data.decode("utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", 'For example: target = "ssh:n[1-16]"') from error


def checked(name: str, value: object, place: str, *, typed: bool) -> object:
    """Return a value as the option has it. ``typed``: it has a type, as in the file; environment variables are text."""
    good: object
    if name == "sudo":
        good = _truth(value, typed)
    elif name == "deadline":
        good = _seconds(value, typed)
    elif name == "ssh_options" and isinstance(value, list) and all(isinstance(word, str) for word in value):
        good = shlex.join(value)
    elif isinstance(value, str) and value.strip() and "\0" not in value:
        good = os.path.expanduser(value) if name == "ssh_config" else value
    else:
        good = None
    if good is None:
        example = _EXAMPLES[name]
        quoted = example if not typed or name in ("sudo", "deadline") else f'"{example}"'
        written = f"{name} = {quoted}" if typed else f"BREAKRANKS_{name.upper()}={quoted!r}"
        raise UsageError(f"{place} is {str(value)[:80]!r}, but must be {_KINDS[name]}", f"For example: {written}")
    return good


def _truth(value: object, typed: bool) -> bool | None:
    if typed:
        return value if isinstance(value, bool) else None
    word = str(value).lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _seconds(value: object, typed: bool) -> float | None:
    if isinstance(value, bool) or (typed and not isinstance(value, int | float)):
        return None
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if _MIN_SECONDS <= number <= _MAX_SECONDS else None
