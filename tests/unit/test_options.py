"""The options of every command: one word a thing, older spellings, exit statuses."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from breakranks.cli import main
from breakranks.cli.exit_status import MEANINGS


def test_the_docs_have_the_exit_status_of_every_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "exit-status.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", page, re.M)
    assert {name: tuple("" if text == "–" else text for text in told) for name, *told in rows} == MEANINGS
    assert MEANINGS.keys() == main.COMMANDS.keys()


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        *((name, "--ranks=3", "--rank=3") for name in ("why", "stacks", "attach", "eval", "probe")),
        ("probe", "--for=7", "--seconds=7"),
    ],
)
def test_older_spellings_are_understood_and_not_shown(command: str, old: str, new: str) -> None:
    parser = main.parser_of(command, importlib.import_module(main.COMMANDS[command][0]))
    rest = {"eval": ["x"], "probe": ["a.py:1"]}.get(command, [])
    assert parser.parse_intermixed_args([old, *rest]) == parser.parse_intermixed_args([new, *rest])
    shown = parser.format_help()
    assert new.partition("=")[0] in shown and f"{old.partition('=')[0]} " not in shown
