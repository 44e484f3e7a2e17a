"""Defaults of TARGET and of reaching hosts: what wins, and what a mistake in them is answered with."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from breakranks.cli.config import fill
from breakranks.errors import UsageError

TOML = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is of Python 3.11")
NAMES = ("target", "ssh_config", "ssh_options", "python", "setup", "sudo", "deadline")


def typed(**values: object) -> argparse.Namespace:
    return argparse.Namespace(**{**dict.fromkeys(NAMES), "sudo": False, "json": None, **values})


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "breakranks").mkdir()
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def write(home: dict[str, str], text: str | bytes) -> Path:
    path = Path(home["XDG_CONFIG_HOME"], "breakranks", "config.toml")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_without_any_nothing_changes(home: dict[str, str]) -> None:
    args = typed()
    fill(args, home)
    assert args == typed()


def test_the_environment(home: dict[str, str]) -> None:
    args = typed()
    environ = {
        "BREAKRANKS_TARGET": "ssh:n[1-4]",
        "BREAKRANKS_SSH_CONFIG": "~/c",
        "BREAKRANKS_SSH_OPTIONS": "-p 22",
        "BREAKRANKS_SUDO": "yes",
        "BREAKRANKS_DEADLINE": "2.5",
        "BREAKRANKS_SETUP": "  ",
    }
    fill(args, home | environ)
    assert args == typed(
        target="ssh:n[1-4]", ssh_config=os.path.expanduser("~/c"), ssh_options="-p 22", sudo=True, deadline=2.5
    )


def test_only_what_the_command_has_is_filled(home: dict[str, str]) -> None:
    args = argparse.Namespace(target=None)
    fill(args, home | {"BREAKRANKS_TARGET": "local", "BREAKRANKS_PYTHON": "x"})
    assert args == argparse.Namespace(target="local")


def test_what_is_typed_wins(home: dict[str, str]) -> None:
    args = typed(target="local", deadline=1.0, sudo=True)
    fill(args, home | {"BREAKRANKS_TARGET": "ssh:n1", "BREAKRANKS_DEADLINE": "9", "BREAKRANKS_SUDO": "no"})
    assert args == typed(target="local", deadline=1.0, sudo=True)


@TOML
def test_the_file_and_the_environment_over_it(home: dict[str, str]) -> None:
    write(
        home,
        'target = "slurm:"\nssh-config = "/c"\nssh_options = ["-i", "my key"]\npython = "/p"\nsetup = "m"\n'
        "sudo = true\ndeadline = 20\n",
    )
    args = typed()
    fill(args, home | {"BREAKRANKS_TARGET": "ssh:n1", "BREAKRANKS_SUDO": "0"})
    assert args == typed(
        target="ssh:n1", ssh_config="/c", ssh_options="-i 'my key'", python="/p", setup="m", sudo=False, deadline=20.0
    )


@TOML
def test_a_file_that_is_named(home: dict[str, str], tmp_path: Path) -> None:
    write(home, 'target = "ssh:n1"')
    other = tmp_path / "other.toml"
    other.write_text('target = "ssh:n2"')
    args = typed()
    fill(args, home | {"BREAKRANKS_CONFIG": str(other)})
    assert args.target == "ssh:n2"
    with pytest.raises(UsageError) as caught:
        fill(typed(), home | {"BREAKRANKS_CONFIG": str(tmp_path / "none")})
    assert "BREAKRANKS_CONFIG" in caught.value.message and str(tmp_path / "none") in caught.value.message


@TOML
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("targte = 'x'", "unknown key 'targte'"),
        ("[hosts]\na = 1", "unknown key 'hosts'"),
        ("target = 3", "target is '3', but must be a string"),
        ("target = ''", "target is '', but must be a string"),
        ("deadline = '20'", "deadline is '20', but must be a number"),
        ("deadline = true", "must be a number"),
        ("deadline = -1", "must be a number"),
        ("deadline = nan", "must be a number"),
        ("deadline = inf", "must be a number"),
        ("sudo = 1", "sudo is '1', but must be true or false"),
        ("sudo = 'yes'", "must be true or false"),
        ("ssh_options = [1]", "ssh_options is '[1]', but must be options"),
        ("target = 'x", "is not TOML"),
        (b"target = '\xff'", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(home: dict[str, str], text: str | bytes, words: str) -> None:
    path = write(home, text)
    with pytest.raises(UsageError) as caught:
        fill(typed(), home)
    assert str(path) in caught.value.message and words in caught.value.message, caught.value.message
    assert caught.value.help


@pytest.mark.parametrize("value", ["soon", "0", "-3", "nan", "1e9", "٣x"])
def test_a_mistake_in_the_environment_is_named(home: dict[str, str], value: str) -> None:
    with pytest.raises(UsageError) as caught:
        fill(typed(), home | {"BREAKRANKS_DEADLINE": value})
    assert "BREAKRANKS_DEADLINE is" in caught.value.message
    assert caught.value.help == "For example: BREAKRANKS_DEADLINE='20'"


def test_a_bad_default_of_what_was_typed_is_still_said(home: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        fill(typed(sudo=True), home | {"BREAKRANKS_SUDO": "perhaps"})


def test_a_file_that_cannot_be_read(home: dict[str, str]) -> None:
    Path(home["XDG_CONFIG_HOME"], "breakranks", "config.toml").mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        fill(typed(), home)


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="later Pythons read it")
def test_python_310_says_that_it_cannot(home: dict[str, str]) -> None:
    write(home, 'target = "ssh:n1"')
    with pytest.raises(UsageError, match=r"3\.11"):
        fill(typed(), home)


def test_it_costs_nothing_where_there_is_no_file(home: dict[str, str]) -> None:
    source = (
        "import sys, argparse; from breakranks.cli import config; before = set(sys.modules);"
        "config.fill(argparse.Namespace(target=None)); print(*sorted(set(sys.modules) - before))"
    )
    env = {**os.environ, **home, "PYTHONPATH": os.pathsep.join(sys.path)}
    env = {name: value for name, value in env.items() if not name.startswith("BREAKRANKS_")}
    done = subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
