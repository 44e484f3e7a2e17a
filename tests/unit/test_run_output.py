"""From bytes to lines of ranks: whole lines, in order, folded, with a prefix, and harmless to a terminal."""

from __future__ import annotations

import importlib
import json
import os
import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.cli import main
from breakranks.cli import run as run_command
from breakranks.errors import BreakranksError, UsageError
from breakranks.run.file_tail import READ_BYTES, FileTail
from breakranks.run.job_output import JobOutput, OutputOptions
from breakranks.run.output_fold import FOLD_SECONDS, OutputFold, Speaker
from breakranks.run.output_lines import (
    MAX_LINE_BYTES,
    PARTIAL_SECONDS,
    PROGRESS_SECONDS,
    LineAssembler,
    terminal_safe,
    whole_characters,
)
from breakranks.run.output_prefix import LinePrefix, short_names
from breakranks.run.output_printer import MAX_PENDING_BYTES, OutputPrinter
from breakranks.run.rank_registry import RankRegistry
from breakranks.run.relayed_lines import RelayedLines, RelayedStream
from breakranks.run.run_folder import RunFolder, create_run_folder

# Bytes that have a meaning are frequent.
PIECES = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", "é€😀".encode(), b"\xe2\x82", b"\xff", b"\0"]))
CHUNKS = st.lists(PIECES.map(b"".join), max_size=12)


def shown_in_the_end(data: bytes) -> bytes:
    """What a terminal shows of the lines of a text: one line at a time, without any code of the module."""
    shown = []
    for line in data.split(b"\n"):
        states = [state for state in line.split(b"\r") if state]
        ends_blank = re.search(rb"[^\r]", line) is None
        shown.append(b"" if ends_blank else states[-1])
    return b"\n".join(shown)


@given(CHUNKS)
def test_the_chunks_do_not_change_the_lines(chunks: list[bytes]) -> None:
    assembler = LineAssembler()
    found = [assembler.feed(chunk, 0.0) for chunk in chunks] + [assembler.close()]
    assert all(part.endswith(b"\n") for part in found if part)
    whole = b"".join(chunks)
    cut = whole.rfind(b"\n") + 1
    rest = shown_in_the_end(whole[cut:])
    assert b"".join(found) == shown_in_the_end(whole[:cut]) + (rest + b"\n" if rest else b"")


def test_a_line_without_its_end_is_shown_after_a_second() -> None:
    assembler = LineAssembler()
    assert assembler.feed(b"whole\nName: ", 10.0) == b"whole\n"
    assert assembler.overdue(10.0 + PARTIAL_SECONDS / 2) == b""
    assert assembler.overdue(10.0 + PARTIAL_SECONDS) == b"Name: \n"
    assert assembler.overdue(20.0) == b""
    assert assembler.feed(b"rest\n", 20.0) == b"rest\n"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_end_of_a_line_that_was_shown_is_not_an_empty_line(end: bytes) -> None:
    assembler = LineAssembler()
    assembler.feed(b"Name: ", 0.0)
    assert assembler.overdue(9.0) == b"Name: \n"
    assert assembler.feed(end + b"\nnext\n", 9.0) == b"\nnext\n"


def test_a_progress_bar_is_shown_in_its_last_state() -> None:
    assembler = LineAssembler()
    for percent in range(50):
        assert assembler.feed(f"\r{percent}%".encode(), percent / 100) == b""
    assert assembler.overdue(PARTIAL_SECONDS) == assembler.overdue(PROGRESS_SECONDS - 0.1) == b""
    assert assembler.overdue(PROGRESS_SECONDS) == b"49%\n"
    assert assembler.feed(b"\r99%\r100%\r\nnext\n", 6.0) == b"100%\nnext\n"


def test_half_a_character_waits_for_its_other_half() -> None:
    assembler = LineAssembler()
    euro = "2 €".encode()
    assembler.feed(euro[:-1], 0.0)
    assert assembler.overdue(2.0) == b"2 \n"
    assert assembler.feed(euro[-1:] + b"\n", 2.0) == "€\n".encode()


@given(st.text(), st.text(min_size=1, max_size=1))
def test_a_cut_character_is_found(text: str, last: str) -> None:
    begin, end = text.encode("utf-8", "replace"), last.encode("utf-8", "replace")
    for cut in range(1, len(end)):
        # Alone in its line, it is shown: nothing else may follow.
        assert whole_characters(begin + end[:cut]) == (len(begin) or cut)
    assert whole_characters(begin + end) == len(begin + end)


def test_100_mb_without_a_newline_are_never_kept_in_memory() -> None:
    assembler, count, most = LineAssembler(), 0, 0
    for _ in range(400):
        part = assembler.feed(b"x" * 262_144, 0.0)
        most = max(most, len(part))
        count += part.count(b"x")
    count += assembler.close().count(b"x")
    assert count == 400 * 262_144
    assert most <= MAX_LINE_BYTES + 262_144


def of(rank: int, host: str = "n1") -> Speaker:
    return Speaker(rank, host, rank)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([b"a", b"b", b"c"]), st.floats(0, 1)), max_size=40))
def test_folded_lines_of_a_rank_stay_in_order(printed: list[tuple[int, bytes, float]]) -> None:
    """GIVEN any lines of four ranks WHEN they are folded THEN each rank has its own, all of them, in order."""
    folding, now, found = OutputFold(), 0.0, []
    for rank, text, passed in printed:
        now += passed
        folding.add(of(rank), "out", text, now)
        found += folding.ready(now, 4)
    found += folding.close()
    for rank in range(4):
        assert [line.text for line in found if rank in line.ranks] == [text for r, text, _ in printed if r == rank]
    assert all(len(set(line.speakers)) == len(line.speakers) for line in found)


def test_equal_lines_of_all_ranks_are_one_line_at_once() -> None:
    folding = OutputFold()
    for rank in (1, 0, 2):
        assert folding.ready(0.0, 3) == []
        folding.add(of(rank), "out", b"step 1", 0.0)
    [line] = folding.ready(0.0, 3)
    assert (str(line.ranks), line.text) == ("0-2", b"step 1")


def test_a_line_waits_for_its_copies_for_a_moment_only() -> None:
    folding = OutputFold()
    folding.add(of(0), "out", b"a", 0.0)
    folding.add(of(0), "out", b"b", FOLD_SECONDS / 2)
    assert folding.ready(FOLD_SECONDS * 0.9, 2) == []
    assert [line.text for line in folding.ready(FOLD_SECONDS, 2)] == [b"a"]
    assert [line.text for line in folding.ready(FOLD_SECONDS * 2, 2)] == [b"b"]


def test_streams_are_not_folded_into_each_other() -> None:
    folding = OutputFold()
    folding.add(of(0), "out", b"a", 0.0)
    folding.add(of(1), "err", b"a", 0.0)
    assert [(line.stream, str(line.ranks)) for line in folding.close()] == [("out", "0"), ("err", "1")]


def test_one_line_a_hundred_thousand_times() -> None:
    folding, count = OutputFold(), 0
    for number in range(100_000):
        folding.add(of(number % 2), "out", b"same", 0.0)
        count += sum(len(line.speakers) for line in folding.ready(0.0, 2))
    assert count + sum(len(line.speakers) for line in folding.close()) == 100_000


@pytest.mark.parametrize("tag", [b"", b"[1,3]<stdout>:", b"[n1-7@1,3]<stderr>:", b"3: ", b" 13: "])
def test_lines_of_relays_are_recognised(tag: bytes) -> None:
    own = tag + b"launcher: starting\n"
    lines = own + tag + b"[n1:3] a: b\n" + tag + b"[n1:3] \n" + tag + b"[n2:4] c\n" + tag + b"[n9:9] d\n"
    found = list(RelayedStream().split(lines, lambda host, rank: (host, rank) in {("n1", 3), ("n2", 4)}))
    assert found == [
        RelayedLines("", -1, own),
        RelayedLines("n1", 3, b"a: b\n\n"),
        RelayedLines("n2", 4, b"c\n"),
        RelayedLines("", -1, tag + b"[n9:9] d\n"),
    ]


@given(CHUNKS)
def test_nothing_is_lost_between_relays(chunks: list[bytes]) -> None:
    lines = b"".join(chunk + b"\n" for chunk in [b"first", *chunks])
    assert b"".join(part.lines for part in RelayedStream().split(lines, lambda host, rank: True)) == lines


@pytest.mark.parametrize("tag", [b"", b"3: "])
def test_pieces_of_a_line_that_a_relay_cut_are_joined(tag: bytes) -> None:
    long, other = b"x" * 10_000, b"[n1:4] y\n"
    room = 4096 - len(b"[n1:3]  \\\n")
    parts = [long[:room] + b" \\", long[room : 2 * room] + b" \\", long[2 * room :]]
    first, second, third = (tag + b"[n1:3] " + part + b"\n" for part in parts)
    assert len(first) == len(tag) + 4096
    stream = RelayedStream()
    assert list(stream.split(first + tag + other, always)) == [RelayedLines("n1", 4, b"y\n")]
    assert list(stream.split(second, always)) == []
    assert list(stream.split(third, always)) == [RelayedLines("n1", 3, long + b"\n")]
    short = b"[n1:3] of a shell script \\\n"
    assert list(stream.split(short, always)) == [RelayedLines("n1", 3, b"of a shell script \\\n")]
    assert list(stream.split(first, always)) == []
    assert list(stream.close(always)) == [RelayedLines("n1", 3, long[:room] + b"\n")]


def always(host: str, rank: int) -> bool:
    return True


def joined(parts: Iterable[RelayedLines]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for part in parts:
        found[part.rank] = found.get(part.rank, b"") + part.lines
    return found


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), max_size=30))
def test_tags_of_mpirun_in_mid_line(pieces: list[tuple[int, int]]) -> None:
    """GIVEN two ranks whose output mpirun reads in pieces of any length THEN the lines of each are whole."""
    said = {rank: b"".join(b"[n1:%d] %d.%d\n" % (rank, rank, number) for number in range(9)) for rank in (0, 1)}
    left, written = dict(said), b""
    for rank, length in [*pieces, (0, 999), (1, 999)]:
        piece, left[rank] = left[rank][:length], left[rank][length:]
        tag = b"[1,%d]<stdout>:" % rank
        # A tag at the beginning of each piece, and after each newline in it.
        written += b"".join(tag + line for line in piece.splitlines(keepends=True))
    found = joined(RelayedStream().split(written, always))
    assert found == {rank: b"".join(b"%d.%d\n" % (rank, number) for number in range(9)) for rank in (0, 1)}


@pytest.mark.parametrize("length", [1015, 1016, 1017, 1018, 2041, 3000])
def test_lines_that_srun_has_cut_are_joined(length: int) -> None:
    line = b"[n1:3] " + b"x" * length
    pieces = [line[at : at + 1024] for at in range(0, len(line) + 1, 1024)]  # the newline is in the last
    written = b"".join(b"3: " + piece + b"\n" for piece in pieces) + b"3: [n1:3] next\n"
    assert joined(RelayedStream().split(written, always)) == {3: b"x" * length + b"\nnext\n"}


DANGEROUS = st.sampled_from(["\x1b[2J", "\x1b]0;title\x07", "\x1b[31m", "\x1b", "\x9b2J", "\b", "\a", "\x1bP1$q\x1b\\"])


@given(st.lists(st.one_of(st.text(max_size=5), DANGEROUS, st.just("\n"))))
def test_a_terminal_gets_colours_and_no_other_control_character(parts: Sequence[str]) -> None:
    lines = "".join(parts).encode("utf-8", "replace") + b"\n"
    safe = terminal_safe(lines)
    assert safe.count(b"\n") == lines.count(b"\n")
    without_colours = re.sub(rb"\x1b\[[0-9;:]*m", b"", safe).decode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", without_colours)


@given(st.binary(max_size=60))
def test_noise_is_harmless(data: bytes) -> None:
    safe = terminal_safe(data + b"\n").decode()
    assert not re.search(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]", safe)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain \xc3\xa9\t1\n", "plain é\t1\n"),
        (b"\x1b[1;31mred\x1b[0m\n", "\x1b[1;31mred\x1b[0m\x1b[0m\n"),
        (b"\x1b[32mgreen\nnext\n", "\x1b[32mgreen\x1b[0m\nnext\n"),
        (b"\x1b[Aup\x1b[2K\x1b]52;c;aGk=\x07\x1bc\n", "up\n"),
        (b"\x9b2J\n", "\ufffd2J\n"),
    ],
)
def test_sequences_of_a_terminal(line: bytes, shown: str) -> None:
    assert terminal_safe(line) == shown.encode()


def prefix_of(prefix: LinePrefix, *speakers: Speaker, stream: str = "out") -> str:
    return prefix.of(speakers, stream, 0.0).decode()


def test_the_host_is_in_the_prefix_if_there_are_several() -> None:
    prefix = LinePrefix()
    prefix.set_hosts(["node-5"])
    assert prefix_of(prefix, of(3, "node-5")) == "[3] "
    prefix.set_hosts(["node-5", "node-12"])
    assert prefix_of(prefix, of(3, "node-5")) == "[5:3] "
    assert prefix_of(prefix, of(3, "node-5"), of(4, "node-12")) == "[5,12:3-4] "


def test_a_prefix_of_the_user() -> None:
    prefix = LinePrefix("{host}/{rank:>3}/{local_rank}/{stream} {{}} {time}|")
    prefix.set_hosts(["n1"])
    shown = prefix_of(prefix, Speaker(7, "n1", 1), stream="err")
    assert re.fullmatch(r"n1/  7/1/stderr \{\} \d\d:\d\d:\d\d\.\d{3}\|", shown)
    assert prefix_of(LinePrefix("{local_rank}"), Speaker(7)) == "-"
    assert prefix_of(LinePrefix(""), of(7)) == ""


def test_each_rank_has_a_colour_of_its_own() -> None:
    prefix = LinePrefix(color=True)
    first, second = (prefix_of(prefix, of(rank)) for rank in (0, 1))
    assert first == "\x1b[36m[0]\x1b[0m "
    assert second != first.replace("[0]", "[1]")


@pytest.mark.parametrize(
    "template",
    [
        "{x}",
        "{rank.real}",
        "{rank!x}",
        "{",
        "{0}",
        "{}",
        "{rank:d}",
        "\x1b[2J{rank}",
        "{rank:9999999}",
        "{rank:{host}}",
    ],
)
def test_an_invalid_prefix_is_refused(template: str) -> None:
    with pytest.raises(UsageError, match="--prefix") as caught:
        LinePrefix(template)
    assert "{rank}" in caught.value.help


@pytest.mark.parametrize(
    ("hosts", "short"),
    [
        (["node-5", "node-15"], ["5", "15"]),
        (["gpu01.a.org", "gpu02.a.org"], ["01", "02"]),
        (["r1n1", "r1n2"], ["1", "2"]),
        (["r1n1", "r2n1"], ["1", "2"]),
        (["login", "n1"], ["login", "n1"]),
        (["n", "n1"], ["n", "n1"]),
        (["n-", "n1"], ["n-", "n1"]),
        (["solo7"], ["solo7"]),
        ([], []),
    ],
)
def test_hosts_are_shortened_to_what_differs(hosts: list[str], short: list[str]) -> None:
    assert short_names(hosts) == dict(zip(hosts, short, strict=True))


@given(st.sets(st.from_regex(r"[a-z0-9.-]{1,6}", fullmatch=True), max_size=5))
def test_short_names_of_hosts_are_unique(hosts: set[str]) -> None:
    found = short_names(sorted(hosts))
    assert found.keys() == hosts and len(set(found.values())) == len(hosts)
    assert all(short and short in host for host, short in found.items())


# ---- the folder and what the ranks write into it


def registration(folder: RunFolder, rank: int, **fields: Any) -> Path:
    attempt = fields.get("attempt", 0)
    shown = fields.get("shown", "tail")
    plain = {"rank": rank, "world": 2, "pid": os.getpid(), "host": "n1", "attempt": attempt, "ready": True}
    plain |= {"shown": shown, "shown_out": shown, "shown_err": shown, **fields}
    path = folder.registrations / f"rank-{rank}.attempt-{attempt}.json"
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(plain))
    temporary.replace(path)
    return path


def test_registrations_are_found_once(tmp_path: Path) -> None:
    folder = create_run_folder(tmp_path)
    registry = RankRegistry(folder)
    registration(folder, 1, attempt=1)
    registration(folder, 0, local_rank=0, unknown={"a": 1})
    (folder.registrations / "rank-0.attempt-0.end.json").write_text('{"time": 5}')
    (folder.registrations / "rank-1.attempt-1.exception.json").write_text('{"type": "ValueError", "time": 1.5}')
    assert [(found.rank, found.attempt) for found in registry.refresh()] == [(0, 0), (1, 1)]
    assert registry.refresh() == []
    first, second = registry.registrations
    assert registry.end(first) is not None and registry.end(second) is None
    raised = registry.exception(second)
    assert raised is not None and raised.type == "ValueError" and registry.exception(first) is None
    latest = registry.latest(1)
    assert latest is not None and latest.attempt == 1 and registry.latest(7) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"rank": "0"},
        {"rank": 1},
        {"attempt": -1},
        {"pid": 0},
        {"pid": -1},
        {"pid": 1 << 40},
        {"host": "a b"},
        {"host": "n1\n"},
        {"host": "\x1b[2J"},
        {"host": None},
    ],
)
def test_an_invalid_registration_is_ignored(tmp_path: Path, fields: dict[str, Any]) -> None:
    folder = create_run_folder(tmp_path)
    plain = {"rank": 0, "world": 2, "pid": 7, "host": "n1", "shown": "tail", "attempt": 0, **fields}
    (folder.registrations / "rank-0.attempt-0.json").write_text(json.dumps(plain))
    assert RankRegistry(folder).refresh() == []


@given(st.one_of(st.binary(max_size=80), st.recursive(st.integers() | st.text(), st.lists).map(json.dumps)))
def test_noise_in_a_registration_is_ignored(tmp_path_factory: pytest.TempPathFactory, noise: bytes | str) -> None:
    folder = create_run_folder(tmp_path_factory.mktemp("run"))
    path = folder.registrations / "rank-0.attempt-0.json"
    path.write_bytes(noise if isinstance(noise, bytes) else noise.encode())
    assert RankRegistry(folder).refresh() == []


def test_a_registration_may_come_in_two_halves(tmp_path: Path) -> None:
    folder = create_run_folder(tmp_path)
    registry = RankRegistry(folder)
    path = registration(folder, 0)
    text = path.read_text()
    path.write_text(text[:20])
    assert registry.refresh() == []
    path.write_text(text)
    assert [found.rank for found in registry.refresh()] == [0]


def test_a_registration_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = create_run_folder(tmp_path)
    registry = RankRegistry(folder)
    for ready in (False, True):
        registration(folder, 0, ready=ready)
        assert [found.ready for found in registry.refresh()] == [ready]
        assert registry.refresh() == []
    registration(folder, 0, pid=7)
    monkeypatch.setattr(registry, "_next_recheck", 0.0)
    assert [found.pid for found in registry.refresh()] == [7]


def test_the_latest_run_has_a_link(tmp_path: Path) -> None:
    first, second = create_run_folder(tmp_path / "logs"), create_run_folder(tmp_path / "logs")
    assert first.path != second.path
    assert (tmp_path / "logs" / "latest").resolve() == second.path
    (tmp_path / "logs" / "latest").unlink()
    (tmp_path / "logs" / "latest").write_text("mine")
    create_run_folder(tmp_path / "logs")
    assert (tmp_path / "logs" / "latest").read_text() == "mine"


@pytest.mark.parametrize("name", ["file", "file/below", "a:b", "new\nline"])
def test_a_log_folder_that_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BreakranksError) as caught:
        create_run_folder(tmp_path / name)
    assert "--log-dir" in caught.value.help
    assert sorted(os.listdir(tmp_path)) == ["file"]


# ---- the files of a job, shown


class Shown:
    """A job's output, whose screen is two files."""

    def __init__(self, folder: Path, prefix: str | None = None, **options: Any) -> None:
        self.folder = create_run_folder(folder / "logs")
        self._paths = (folder / "shown.out", folder / "shown.err")
        descriptors = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for path in self._paths]
        registry = RankRegistry(self.folder)
        printer = OutputPrinter(*descriptors)
        self.output = JobOutput(self.folder, registry, printer, LinePrefix(prefix), OutputOptions(**options))
        self._descriptors = descriptors

    def add(self, rank: int, data: bytes, stream: str = "out", attempt: int = 0) -> None:
        with open(self.folder.rank_file(rank, attempt, stream), "ab") as file:
            file.write(data)

    def launcher(self, data: bytes) -> None:
        with open(self.folder.launcher_out, "ab") as file:
            file.write(data)

    def end(self) -> tuple[str, str]:
        self.output.finish()
        for descriptor in self._descriptors:
            os.close(descriptor)
        out, err = (path.read_text() for path in self._paths)
        return out, err


def test_files_of_ranks_are_shown_by_rank(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    registration(shown.folder, 0)
    shown.launcher(b"starting\n")
    shown.add(0, b"one\ntw")
    shown.output.turn()
    registration(shown.folder, 1)
    shown.add(0, b"o\nno end")
    shown.add(1, b"error\n", "err")
    assert shown.end() == ("[0] one\nstarting\n[0] two\n[0] no end\n", "[1] error\n")


def test_attempts_of_a_rank_follow_each_other(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    registration(shown.folder, 0)
    shown.add(0, b"first\n")
    registration(shown.folder, 0, attempt=1)
    shown.add(0, b"second\n", attempt=1)
    assert shown.end() == ("[0] first\n[0] second\n", "")


def test_only_some_ranks(tmp_path: Path) -> None:
    shown = Shown(tmp_path, only={1})
    registration(shown.folder, 0)
    registration(shown.folder, 1)
    registration(shown.folder, 2, world=3, shown="relay")
    shown.add(0, b"no\n")
    shown.add(1, b"yes\n")
    shown.launcher(b"launcher\n[n1:2] no\n")
    assert shown.end() == ("[1] yes\nlauncher\n", "")


def test_relays_and_files_look_alike(tmp_path: Path) -> None:
    shown = Shown(tmp_path, prefix="{host}:{rank}:{local_rank}:{stream} ")
    registration(shown.folder, 0, host="n1", local_rank=0)
    registration(shown.folder, 1, host="n2", local_rank=0, shown="relay")
    shown.add(0, b"a\n")
    shown.launcher(b"1: [n2:1] b\n[n3:3] of a user\n")
    assert shown.end() == ("1:0:0:stdout a\n2:1:0:stdout b\n[n3:3] of a user\n", "")


def test_a_rank_is_followed_when_its_output_goes_to_its_file(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    registration(shown.folder, 0, ready=False)
    shown.add(0, b"a\n")
    shown.output.turn()
    registration(shown.folder, 0, shown_err="launcher")
    shown.add(0, b"not its own\n", "err")
    shown.output.refresh()
    assert shown.end() == ("[0] a\n", "")


def test_a_second_program_of_a_rank_is_not_shown_twice(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    for pid in (7, 8):
        registration(shown.folder, 0, pid=pid)
        shown.add(0, b"of %d\n" % pid)
        shown.output._registry._next_recheck = 0.0
        shown.output.refresh()
    assert shown.end() == ("[0] of 7\n[0] of 8\n", "")


def test_a_file_of_both_streams_is_shown_once(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    (tmp_path / "worker_0.log").write_bytes(b"a\n")
    for stream in ("out", "err"):
        shown.folder.rank_file(0, 0, stream).symlink_to(tmp_path / "worker_0.log")
    registration(shown.folder, 0)
    shown.output.refresh()
    assert shown.end() == ("[0] a\n", "")


def test_what_torchrun_prints_of_a_file_is_shown_once(tmp_path: Path) -> None:
    """GIVEN a rank whose file is that of `torchrun --tee 1` WHEN both have a line THEN the rank's is shown."""
    shown = Shown(tmp_path)
    (tmp_path / "stdout.log").write_bytes(b"a\n[x1]:b\n")
    shown.folder.rank_file(1, 0, "out").symlink_to(tmp_path / "stdout.log")
    registration(shown.folder, 1, local_rank=1)
    shown.output.refresh()
    shown.launcher(b"starting\n[default1]:a\n[default1]:[x1]:b\n[default0]:c\n")
    assert shown.end() == ("[1] a\n[1] [x1]:b\nstarting\n[default0]:c\n", "")


@pytest.mark.parametrize(("options", "wanted"), [({}, "[0] a\n[0] b\n"), ({"debug_rank": 1}, ""), ({"only": {1}}, "")])
def test_what_msrun_prints_of_a_file_is_not_shown(tmp_path: Path, options: dict[str, Any], wanted: str) -> None:
    shown = Shown(tmp_path, **options)
    (tmp_path / "worker_0.log").write_bytes(b"a\nb\n")
    shown.folder.rank_file(0, 0, "out").symlink_to(tmp_path / "worker_0.log")
    registration(shown.folder, 0, launcher="msrun")
    shown.launcher(b"starting\na\nb\nb\n")
    assert shown.end() == (wanted + "starting\nb\n", "")


def test_equal_lines_are_folded(tmp_path: Path) -> None:
    shown = Shown(tmp_path, fold=True)
    for rank in range(2):
        registration(shown.folder, rank)
        shown.add(rank, b"both\n%d\n" % rank)
    assert shown.end()[0] in ("[0-1] both\n[0] 0\n[1] 1\n", "[0-1] both\n[1] 1\n[0] 0\n")


def test_quiet_and_a_rank_with_the_terminal_show_nothing_of_others(tmp_path: Path) -> None:
    for number, options in enumerate(({"quiet": True}, {"debug_rank": 1})):
        (tmp_path / str(number)).mkdir()
        shown = Shown(tmp_path / str(number), **options)
        registration(shown.folder, 0)
        registration(shown.folder, 1, shown="terminal")
        shown.add(0, b"a\n")
        assert shown.end() == ("", "")


def test_a_rank_to_debug_that_the_job_does_not_have(tmp_path: Path) -> None:
    shown = Shown(tmp_path, debug_rank=2)
    registration(shown.folder, 0)
    assert shown.end() == ("", "breakranks: the job has no rank 2: its ranks are 0 to 1\n")


def test_a_file_that_is_truncated_is_read_again(tmp_path: Path) -> None:
    tail = FileTail(tmp_path / "log")
    assert tail.read() == b""
    (tmp_path / "log").write_bytes(b"before")
    assert (tail.read(), tail.read()) == (b"before", b"")
    (tmp_path / "log").write_bytes(b"new")
    assert (tail.read(), tail.read()) == (b"new", b"")
    tail.close()


def test_a_file_of_several_reads(tmp_path: Path) -> None:
    content = bytes(range(256)) * (READ_BYTES // 100)
    (tmp_path / "log").write_bytes(content)
    tail = FileTail(tmp_path / "log")
    assert b"".join(iter(tail.read, b"")) == content
    tail.close()


# ---- the screen


def test_a_slow_reader_does_not_hold_run_up() -> None:
    """GIVEN a pipe that nobody reads WHEN much is printed THEN flush returns, and all arrives once it is read."""
    read, write = os.pipe()
    printer = OutputPrinter(write, write)
    line = b"x" * 1023 + b"\n"
    count = 0
    while not printer.is_full:
        printer.write("out", line * 100)
        printer.flush()
        count += 100
    assert count * 1024 > MAX_PENDING_BYTES
    received = bytearray()

    def receive() -> None:
        while len(received) < count * 1024:
            received.extend(os.read(read, 1 << 20))

    reader = threading.Thread(target=receive)
    reader.start()
    printer.drain()
    reader.join(60)
    assert bytes(received) == line * count
    os.close(read)
    os.close(write)


def test_a_reader_that_has_ended_loses_lines_only() -> None:
    read, write = os.pipe()
    printer = OutputPrinter(write, write)
    os.close(read)
    printer.write("out", b"a\n")
    printer.flush()
    printer.write("out", b"b\n" * MAX_PENDING_BYTES)
    assert printer.is_lost and not printer.is_full
    printer.drain()
    os.close(write)


def test_standard_output_and_errors_of_one_file_stay_in_order(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "both", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    printer = OutputPrinter(descriptor, os.dup(descriptor))
    for number in range(4):
        printer.write(("out", "err")[number % 2], b"%d\n" % number)
    printer.flush()
    assert (tmp_path / "both").read_bytes() == b"0\n1\n2\n3\n"


# ---- the command line


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (
            ["--fold", "--", "torchrun", "--nproc-per-node", "2", "x.py", "--fold"],
            "torchrun --nproc-per-node 2 x.py --fold",
        ),
        (["--fold", "torchrun", "--nproc-per-node", "2", "x.py", "--fold"], "torchrun --nproc-per-node 2 x.py --fold"),
        (["--log-dir", "d", "x", "--", "-v", "--", "y"], "x -- -v -- y"),
        (["--", "--odd", "--log-dir=e"], "--odd --log-dir=e"),
        (["--only=0-3", "-v", "./x.sh", "--help", "-h", "@file"], "./x.sh --help -h @file"),
    ],
)
def test_the_words_of_the_command_are_left_alone(words: list[str], command: str) -> None:
    args = main.parser_of("run", importlib.import_module("breakranks.cli.run")).parse_args(words)
    assert " ".join(run_command._command(args)) == command
    assert args.fold is (words[0] == "--fold")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no command to run"),
        (["--"], "no command to run"),
        (["--", ""], "no command to run"),
        (["--only", "x", "--", "true"], "not a rank set"),
        (["--prefix", "{x}", "--", "true"], "no field {x}"),
        (["--keep-free", "much", "--", "true"], "not a size"),
        (["--debug-rank", "0-1", "--", "true"], "not a rank"),
        (["--", "no-such-command-at-all"], "no such command"),
        (["--", "./no-such-command-at-all"], "no such command"),
        (["--", "/dev/null"], "no such command"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["run", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) > 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("512", 512), ("2k", 2048), ("64M", 64 << 20), ("1 GiB", 1 << 30), ("3TB", 3 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert run_command.size_of(text) == size
