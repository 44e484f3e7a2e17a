"""The pages keep their word: links lead somewhere, and commands that they show exist."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakranks.cli.main import COMMANDS, parser_of

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

# A line with this mark speaks of a command that is not there yet, and says so to the reader.
NOT_YET = "comes next"

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|<(?:img|a)\s[^>]*(?:src|href)=\"([^\"]+)\"")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^(?: {4}|\t).*$", re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*$", re.MULTILINE)
_COMMAND = re.compile(r"(?:^|[\s`/(\"])breakranks ([a-z][a-z-]*)")


def anchors(text: str) -> set[str]:
    """The names that headings can be linked by, as GitHub makes them."""
    plain = (re.sub(r"[`*_]|\[([^\]]*)\]\([^)]*\)", r"\1", h) for h in _HEADING.findall(_FENCE.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def broken_links(page: Path) -> Iterator[str]:
    for match in _LINK.finditer(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        link = match[1] or match[2]
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8"))
        ):
            yield link


def commands_shown(text: str) -> Iterator[tuple[str, str]]:
    """Every ``breakranks WORD`` in code, fenced, indented or in a span: (word, its line)."""
    lines = [line for block in _FENCE.finditer(text) for line in block[0].splitlines()]
    rest = _FENCE.sub("", text)
    lines += _INDENTED.findall(rest)
    lines += [line for line in rest.splitlines() if _SPAN.search(line)]
    for line in lines:
        code = " ".join(_SPAN.findall(line)) if _SPAN.search(line) else line
        for word in _COMMAND.findall(code):
            yield word, line


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_that_are_shown_exist(page: Path) -> None:
    shown = commands_shown(page.read_text(encoding="utf-8"))
    assert [line for word, line in shown if word not in COMMANDS and NOT_YET not in line] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_options_that_are_shown_exist(page: Path) -> None:
    unknown = []
    for word, line in commands_shown(page.read_text(encoding="utf-8")):
        # The rest of the line up to another command, a pipe or the remark after it.
        for rest in re.findall(rf"breakranks {word}\b(.*?)(?=\bbreakranks\b|[|`]|\s{{2,}}|$)", line):
            own = rest.partition(" -- ")[0]  # what follows is the command of a user
            options = re.findall(r"(?<=\s)--?[a-z][a-z-]*", own)
            if word in COMMANDS and options:
                module = importlib.import_module(COMMANDS[word][0])
                known = parser_of(word, module).format_help()
                unknown += [f"{word} {option}" for option in options if not re.search(rf"{option}\b", known)]
    assert unknown == []


def test_every_command_is_in_the_pages() -> None:
    shown = {word for page in PAGES for word, _ in commands_shown(page.read_text(encoding="utf-8"))}
    assert set(COMMANDS) <= shown


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_page_names_one_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    # Spelled so that this file does not name them either.
    machine = r"/(wor[k]|roo[t]|opt)/(main|shared|wheels|pypi)"
    registry = r"\bpyp[i]\.org|pythonhos[t]ed|deb\.debia[n]\.org"
    assert not re.search(f"{machine}|{registry}", text)


@pytest.mark.parametrize("page", ["architecture", "development", "walks"])
def test_modules_that_are_named_exist(page: str) -> None:
    source = ROOT / "src" / "breakranks"
    rooms = {path.name for path in source.iterdir() if path.is_dir()}
    named = re.findall(r"`([a-z_]+)((?:/[a-z_0-9]+)+)`", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    paths = [f"{room}{rest}" for room, rest in named if room in rooms]
    assert paths
    assert [path for path in paths if not (source / path).is_dir() and not (source / f"{path}.py").exists()] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Type `breakranks why`.", ["why"]),
        ("```\n$ breakranks ps --json\n```", ["ps"]),
        ("    .venv/bin/breakranks demo", ["demo"]),
        ("breakranks is a debugger", []),
        ("with `breakranks --help`", []),
        ("`breakranks stacks` and `breakranks top`", ["stacks", "top"]),
    ],
)
def test_the_search_sees_commands_in_code_only(text: str, words: list[str]) -> None:
    assert [word for word, _ in commands_shown(text)] == words
