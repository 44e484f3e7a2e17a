"""Lines of the log: written so that they can be read again, without secrets, whatever is in them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks import log
from breakranks.errors import UsageError
from breakranks.observe.redaction import redact


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(log, "_level", log.OFF)
    monkeypatch.setattr(log, "_redact", list)
    path = tmp_path / "log"
    log.configure(0, str(path), redact)
    yield path
    logging.getLogger("breakranks").handlers.clear()


def last(path: Path) -> str:
    return path.read_text().splitlines()[-1].partition("] ")[2]


def test_values_are_plain_or_quoted(written: Path) -> None:
    log.Log("hosts").info("ran", argv=["ssh", "-o", "A b", "n1"], status=0, ms=1.5, why=None, what="two words", x="")
    assert last(written) == """ran argv="ssh -o 'A b' n1" status=0 ms=1.5 what="two words" x="\""""


def test_secrets_are_hidden_in_words_and_in_texts(written: Path) -> None:
    one = log.Log("hosts")
    one.info("ran", argv=["x", "--hf-token", "abc", "API_KEY=abc"], why="set-up failed: export MY_TOKEN=abc; true")
    assert "abc" not in last(written) and last(written).count("***") == 3


def test_a_long_word_is_cut(written: Path) -> None:
    log.Log("hosts").info("ran", argv=["sh", "-c", "a" * 100_000])
    assert len(last(written)) < 300


@given(st.text())
def test_a_record_is_one_line_of_printable_text(text: str) -> None:
    shown = log._text(text) + log._text([text, text])
    assert shown.isprintable() and "\n" not in shown


def test_what_a_host_tells_is_printed_with_its_name_and_not_trusted(written: Path) -> None:
    log.relay("n1", 0.0, 20, "jobs\x1b[31m evil", 7, "found\n\x1b[2Jforged TOKEN=abc")
    line = written.read_text().splitlines()[-1]
    assert " INFO n1:jobs31mevil[7] found\\n\\x1b[2Jforged TOKEN=***" in line
    assert len(written.read_text().splitlines()) == 1


@pytest.mark.parametrize("created", [1e17, -1e300, float("inf"), float("nan")])
def test_a_host_may_tell_a_time_that_no_calendar_has(written: Path, created: float) -> None:
    log.relay("n1", created, 20, "jobs", 7, "found")
    assert written.read_text().splitlines()[-1].endswith(" INFO n1:jobs[7] found")


def test_it_is_configured_once(written: Path, tmp_path: Path) -> None:
    log.configure(2, str(tmp_path / "other"), redact)
    assert not (tmp_path / "other").exists()


def test_a_folder_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_level", log.OFF)
    with pytest.raises(UsageError, match="Is a directory"):
        log.configure(0, str(tmp_path), redact)
