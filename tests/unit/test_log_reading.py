"""Logs as they are found: files and folders, compressed, torn, growing, with prefixes of every kind, and bad ones."""

from __future__ import annotations

import gzip
import lzma
import os
import random
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakranks.errors import BreakranksError
from breakranks.logs import log_blocks, log_sources
from breakranks.logs.crash_report import CrashReport
from breakranks.logs.job_logs import GrowingLogs, JobLogs, ReadOptions
from breakranks.logs.line_prefixes import PrefixReader, StampMemory, time_of
from breakranks.logs.line_search import LineFilter, found_lines
from breakranks.logs.log_blocks import GrowingFile, LogFile
from breakranks.logs.log_events import LogLine
from breakranks.logs.log_sources import LAUNCHER, MIXED, RANK, RECORD, LogSource, find_sources, source_of
from breakranks.logs.training_progress import last_step
from breakranks.rankset import RankSet
from support.waiting import wait_for

JOBS = Path(__file__).parents[1] / "data" / "logs" / "jobs"
FAILED = (JOBS / "torchrun-assert-one.log").read_bytes()
NAN = "ValueError: loss is nan at step 7 on rank 1"
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nKeyError: {key!r}\n'


def read(*paths: Path, options: ReadOptions | None = None) -> CrashReport:
    logs = JobLogs(find_sources([str(path) for path in paths]), options)
    logs.read()
    return logs.report()


def written(folder: Path, data: bytes, name: str = "train.log") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def error_of(report: CrashReport) -> tuple[str, str] | None:
    cause = report.cause
    return None if cause is None or cause.raised is None else (str(cause.ranks), cause.raised.text)


def lines_of(text: str, source: LogSource | None = None) -> list[LogLine]:
    reader = PrefixReader(source or LogSource("x", "x"))
    reader.learn(text.encode())
    return [line for raw in text.encode().split(b"\n")[:-1] for line in reader.lines(raw, 0)]


# ---- what paths tell


@pytest.mark.parametrize(
    ("path", "kind", "rank", "local", "attempt", "stream"),
    [
        ("none_ab12/attempt_1/3/stderr.log", RANK, -1, 3, 1, "err"),
        ("none_ab12/attempt_0/2/error.json", RECORD, -1, 2, 0, ""),
        ("logs/worker_7.log", RANK, 7, -1, 0, ""),
        ("logs/scheduler.log", LAUNCHER, -1, -1, -1, ""),
        ("out/1/rank.5/stderr", RANK, 5, -1, 0, "err"),
        ("rank3.log", RANK, 3, -1, 0, ""),
        ("rank3.log.gz", RANK, 3, -1, 0, ""),
        ("train.rank-12.err", RANK, 12, -1, 0, "err"),
        ("stderr.4", RANK, 4, -1, 0, "err"),
        ("job_rank_0.out", RANK, 0, -1, 0, "out"),
        ("local_rank2.log", RANK, -1, 2, 0, ""),
        ("train.log", MIXED, -1, -1, -1, ""),
        ("slurm-2180718.out", MIXED, -1, -1, -1, ""),
        ("crank3000.log", MIXED, -1, -1, -1, ""),
    ],
)
def test_what_a_path_tells(path: str, kind: str, rank: int, local: int, attempt: int, stream: str) -> None:
    source = source_of(path, path)
    assert (source.kind, source.rank, source.local_rank, source.attempt, source.stream) == (
        kind, rank, local, attempt, stream,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["job.0.out", "job.1.out", "job.2.out"], [0, 1, 2]),
        (["0.err", "1.err", "0.out", "1.out"], [0, 0, 1, 1]),
        (["0.log.gz", "1.log.gz"], [0, 1]),
        (["slurm.2180718.out", "slurm.2180719.out"], [-1, -1]),
        (["job.1.out", "job.2.out"], [-1, -1]),
        (["job.0.out"], [-1]),
        (["node0.log", "node1.log"], [-1, -1]),
    ],
)
def test_files_that_are_numbered_by_task(names: list[str], ranks: list[int], tmp_path: Path) -> None:
    """GIVEN files with numbers in their names THEN these are ranks if all from 0 are there."""
    for name in names:
        written(tmp_path, b"x\n", name)
    assert sorted(source.rank for source in find_sources([str(tmp_path)]).sources) == ranks


def test_a_folder_is_read_without_what_is_no_log(tmp_path: Path) -> None:
    for name in ("rank0.log", "rank1.log", "model.pt", "train.py", "core.123", "sub/notes.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    names = [source.name for source in find_sources([str(tmp_path)]).sources]
    assert sorted(names) == ["rank0.log", "rank1.log", "sub/notes.log"]


def test_of_several_runs_in_a_folder_the_newest_is_read(tmp_path: Path) -> None:
    """GIVEN a --log-dir that two jobs of torchrun used THEN the newest is read and the other is named."""
    for index, run in enumerate(["none_old", "none_new"]):
        stderr = tmp_path / run / "attempt_0" / "0" / "stderr.log"
        stderr.parent.mkdir(parents=True)
        stderr.write_text(TRACEBACK.format(key=run))
        os.utime(tmp_path / run, (1000 + index, 1000 + index))
    report = read(tmp_path)
    assert error_of(report) == ("0", "KeyError: 'none_new'")
    assert [os.path.basename(path) for path in report.older] == ["none_old"]


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_cannot_be_read_is_a_mistake_of_the_user(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BreakranksError, match=r"does not exist|has no log files"):
        find_sources([str(tmp_path / name)])


def test_a_file_without_permission_is_a_mistake_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a log that open() refuses (root may read everything, so the refusal is made)."""
    path = written(tmp_path, FAILED)

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("breakranks.logs.log_blocks.io.FileIO", refused)
    with pytest.raises(BreakranksError, match="cannot be read: Permission denied"):
        read(path)


def test_of_several_files_one_that_cannot_be_read_is_left_out_with_a_note(tmp_path: Path) -> None:
    """GIVEN two files, of which one vanishes before it is read THEN the other is reported."""
    paths = [written(tmp_path, TRACEBACK.format(key="k").encode(), f"rank{rank}.log") for rank in range(2)]
    logs = JobLogs(find_sources([str(path) for path in paths]))
    paths[0].unlink()
    logs.read()
    report = logs.report()
    assert error_of(report) == ("1", "KeyError: 'k'")
    assert report.problems == (f"{paths[0]} cannot be read: No such file or directory",)


def test_error_files_alone_are_a_report(tmp_path: Path) -> None:
    """GIVEN the error files of torchrun's @record, and no output of the ranks THEN the exceptions are known."""
    for record in (JOBS / "record").rglob("error.json"):
        copy = tmp_path / "attempt_0" / record.parent.name / "error.json"
        copy.parent.mkdir(parents=True)
        copy.write_bytes(record.read_bytes())
    report = read(tmp_path)
    assert error_of(report) == ("1", NAN), report
    assert sum(group.count for group in report.last.groups) == 3


# ---- blocks


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=30),
    size=st.integers(1, 50),
    ends=st.booleans(),
)
def test_blocks_are_the_file_in_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int, ends: bool
) -> None:
    """GIVEN any bytes and any size of a block THEN the blocks are the file, each ends with a line, at its offset."""
    # Not the first bytes of a compressed file: Hypothesis finds them in the module that knows them.
    data = b"." + b"\n".join(lines) + (b"\n" if ends and lines else b"")
    path = tmp_path_factory.mktemp("blocks") / "x.log"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_blocks, "BLOCK_BYTES", size)
        with closing(LogFile(str(path))) as log:
            blocks = list(log.blocks())
    assert b"".join(block.data for block in blocks) == data
    assert all(block.data.endswith(b"\n") for block in blocks[:-1])
    at = 0
    for block in blocks:
        assert block.position == at
        at += len(block.data)


def test_a_line_without_end_is_read_in_pieces(tmp_path: Path) -> None:
    """GIVEN 20 MB without a newline, then a failure THEN no block is much larger than a piece, and it is found."""
    path = written(tmp_path, b"x" * 20_000_000 + b"\n" + FAILED)
    with closing(LogFile(str(path))) as log:
        assert max(len(block.data) for block in log.blocks()) <= log_blocks.BLOCK_BYTES + log_blocks.MAX_LINE_BYTES
    assert error_of(read(path)) == ("1", NAN)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gzip", "xz"])
def test_a_compressed_log(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """The format is told by the data, not by the name."""
    assert error_of(read(written(tmp_path, pack(FAILED)))) == ("1", NAN)


def test_of_a_truncated_gzip_what_can_be_read_is_reported(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(200_000).hex().encode()
    packed = gzip.compress(FAILED + b"\n" + noise)
    report = read(written(tmp_path, packed[: len(packed) // 2], "x.log.gz"))
    assert error_of(report) == ("1", NAN)
    assert len(report.problems) == 1
    assert re.search(r"could be read only up to byte [\d,]{6,}", report.problems[0]), report.problems


def test_a_zstd_log_is_refused_with_the_command_to_unpack_it(tmp_path: Path) -> None:
    with pytest.raises(BreakranksError, match="zstd") as raised:
        read(written(tmp_path, b"\x28\xb5\x2f\xfd" + bytes(20)))
    assert "zstd -dc" in (raised.value.help or "")


@pytest.mark.parametrize("packed", [False, True])
def test_a_pipe_is_read_once(packed: bool, tmp_path: Path) -> None:
    """GIVEN a FIFO, whose bytes are gone when they were read THEN it is read to its end, also a compressed one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=lambda: pipe.write_bytes(gzip.compress(FAILED) if packed else FAILED))
    writer.start()
    report = read(pipe)
    writer.join()
    assert error_of(report) == ("1", NAN)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n" * 1000,
        random.Random(2).randbytes(1_000_000),
        b"\x00" * 100_000,
        "é".encode()[:1] * 10,
        b"\r" * 10_000,
        b"step 1\n" * 5000,
        b"[rank",
        b'{"log":"' * 3 + b"\n",
        b"0 errors, 0 warnings\nError handling is on\nException: none\n",
    ],
    ids=["empty", "newlines", "noise", "zeros", "half", "returns", "healthy", "prefix", "json", "words"],
)
def test_a_file_without_a_failure(data: bytes, tmp_path: Path) -> None:
    report = read(written(tmp_path, data))
    assert report.cause is None, report
    assert report.bytes_read == len(data)


def test_half_a_character_at_the_end_of_a_block(tmp_path: Path) -> None:
    size = log_blocks.BLOCK_BYTES
    report = read(written(tmp_path, b"x" * (size - 1) + "é\n".encode() + FAILED))
    assert error_of(report) == ("1", NAN)


def test_a_failure_at_every_place_of_a_block_border(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN blocks of sizes that end at different places within the tracebacks THEN the answer is the same."""
    path = written(tmp_path, FAILED)
    for size in (64, 100, 333, 1021, 4096):
        monkeypatch.setattr(log_blocks, "BLOCK_BYTES", size)
        assert error_of(read(path)) == ("1", NAN), size


def test_a_record_that_is_no_json_is_passed_over(tmp_path: Path) -> None:
    for rank, data in enumerate([b"", b"{", b"[1]", b'{"message": 5}', b"[" * 100_000]):
        record = tmp_path / "attempt_0" / str(rank) / "error.json"
        record.parent.mkdir(parents=True)
        record.write_bytes(data)
    assert read(tmp_path).cause is None


# ---- prefixes

PREFIXES = {
    "[rank3]: ": (3, -1),
    "[default2]:": (-1, 2),
    "[trainer0]:": (-1, 0),
    "[default2]:[rank6]: ": (6, 2),
    "[1,3]<stderr>:": (3, -1),
    "[prterun-n1-42@1,7]<stdout>: ": (7, -1),
    "[n1:5] ": (5, -1),
    "\x1b[36m[rank1]: \x1b[0m": (1, -1),
    "[pod/train-0/pytorch] [rank2]: ": (2, -1),
    "2026-11-19T21:00:00.123456789Z [rank2]: ": (2, -1),
    "[pod/train-0/pytorch] 2026-11-19T21:00:00Z [rank2]: ": (2, -1),
    "2026-11-19T21:00:00.1Z stderr F [rank4]: ": (4, -1),
    "[2026-11-19 21:00:00,123] [default1]:[rank5]: ": (5, 1),
    "trainer-1  | [rank0]: ": (0, -1),
    "train\tRun\t2026-11-19T21:00:00.1Z [rank8]: ": (8, -1),
    "Nov 19 21:00:05 n1 train[123]: [rank1]: ": (1, -1),
    "2026-11-19T21:00:00.123 3: ": (3, -1),
    "3: ": (3, -1),
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_tells_the_rank_and_is_no_text(prefix: str) -> None:
    body = [*TRACEBACK.format(key="k").splitlines(), "", "step 3 loss 0.1"]
    lines = lines_of("".join(f"{prefix}{line}\n" for line in body))
    assert [line.text for line in lines] == body
    assert {(line.rank, line.local_rank) for line in lines} == {PREFIXES[prefix]}


@pytest.mark.parametrize(
    "prefix", ["2026-11-19T21:00:00Z ", "[2026-11-19 21:00:00] ", "2026-11-19T21:00:00.1Z stderr F "]
)
def test_the_time_stamp_of_a_collector_is_the_time_of_its_line(prefix: str) -> None:
    lines = lines_of(f"{prefix}a\n{prefix}b\n")
    assert [line.time for line in lines] == [time_of(prefix)] * 2
    assert time_of(prefix) > 0


def test_docker_json_is_unpacked() -> None:
    text = '{"log":"[rank3]: KeyError: \\"a\\"\\n","stream":"stderr","time":"2026-11-19T21:00:00.5Z"}\n'
    line = lines_of(text * 2)[0]
    assert (line.rank, line.text, line.time) == (3, 'KeyError: "a"', time_of("2026-11-19T21:00:00.5Z"))


@pytest.mark.parametrize(
    "text",
    [
        "1: first of a list\nsome text\nmore text\n",
        "2026-11-19 21:00:00 INFO a\nsome text\nmore text\n",
        "loss | 0.1\nsome text\nmore text\n",
        "error: x\nerror: y\nerror: z\n",
    ],
)
def test_text_that_looks_like_a_prefix_stays(text: str) -> None:
    assert [line.text for line in lines_of(text)] == text.splitlines()
    assert {line.rank for line in lines_of(text)} == {-1}


def test_a_tag_of_open_mpi_within_a_line() -> None:
    """Open MPI puts a tag before each piece that it reads, so also in mid-line: the pieces of a rank are one line."""
    text = "[1,0]<stdout>:step 1[1,0]<stdout>: do[1,1]<stderr>:Traceback (most recent call last):\n[1,0]<stdout>:ne\n"
    assert [(line.rank, line.text) for line in lines_of(text)] == [
        (1, "Traceback (most recent call last):"),
        (0, "step 1 done"),
    ]


def test_a_rank_that_begins_within_the_line_of_another() -> None:
    text = "\rtrain: 40%|###  | 4/10 [00:00<00:01][rank1]: Traceback (most recent call last):\n"
    assert [(line.rank, line.text) for line in lines_of(text)] == [
        (-1, "train: 40%|###  | 4/10 [00:00<00:01]"),
        (1, "Traceback (most recent call last):"),
    ]
    outer = lines_of("[default1]:step 3 done[rank1]: KeyError: 3\n" * 2)
    assert [(line.local_rank, line.text) for line in outer[:2]] == [(1, "step 3 done"), (1, "KeyError: 3")]


def test_a_rank_that_text_mentions_is_no_prefix() -> None:
    line = "sent to [rank1]:[rank2] and (see [rank3]:x)"
    assert [found.text for found in lines_of(line + "\n")] == [line]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_gives_lines(text: str) -> None:
    lines = lines_of(text + "\n")
    assert all("\n" not in line.text for line in lines)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-19T21:00:00Z x", 1795122000.0),
        ("2026-11-19T21:00:00.5Z x", 1795122000.5),
        ("2026-11-19T22:00:00+01:00 x", 1795122000.0),
        ("2026-13-39T21:00:00Z x", 0.0),
        ("no time", 0.0),
    ],
)
def test_time_stamps(text: str, moment: float) -> None:
    assert time_of(text) == moment


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from([b"2026-11-19T21:00:0%dZ " % n for n in range(9)] + [b"x" * 3000, b"line\n"]), max_size=12
    ),
    cut=st.integers(0, 12),
)
def test_a_line_without_a_time_has_that_of_the_newest_stamp_before_it(parts: list[bytes], cut: int) -> None:
    """GIVEN stamps and other bytes in two blocks THEN the newest within a window counts, whatever was asked before."""
    memory, position = StampMemory(), 0
    for block in (b"".join(parts[:cut]), b"".join(parts[cut:])):
        for at in range(0, len(block) + 1, 500):
            found = memory.before(block, position, at)
            stamps = re.findall(rb"2026\S+Z", block[max(0, at - 8192) : at])
            if stamps:
                assert found == time_of(stamps[-1].decode())
        position += len(block)


def test_a_time_stamp_that_is_far_away_does_not_count() -> None:
    data = b"2026-11-19T21:00:00Z" + b"x" * 10_000
    memory = StampMemory()
    assert memory.before(data, 0, 100) > 0
    assert memory.before(data, 0, 10_000) == 0


# ---- steps


@pytest.mark.parametrize(
    ("lines", "step"),
    [
        (["step 1 loss 2", "step 2 loss 1", "Traceback"], "step 2 loss 1"),
        (["iteration 7/100 | loss 1"], "iteration 7/100 | loss 1"),
        (["Epoch 3 done"], "Epoch 3 done"),
        (["Epoch 3: step 5", "starting step 6"], "Epoch 3: step 5"),
        (["train:  40%|####  | 4/10 [00:00<00:01]"], "train:  40%|####  | 4/10 [00:00<00:01]"),
        (["    step = 3", "ValueError: step 7 is bad"], ""),
        ([], ""),
    ],
)
def test_the_last_step(lines: list[str], step: str) -> None:
    assert last_step(lines) == step


# ---- --rank, --since, --grep


def found(paths: Sequence[Path], pattern: str, *, ranks: str = "", since: float = 0.0) -> list[tuple[str, str]]:
    wanted = LineFilter(pattern=re.compile(pattern), ranks=RankSet.parse(ranks) if ranks else None, since=since)
    return list(found_lines(find_sources([str(path) for path in paths]), wanted))


def test_lines_that_match_are_found_with_their_ranks(tmp_path: Path) -> None:
    path = written(tmp_path, b"[rank0]: loss 1\n[rank1]: loss 2\nother\n[rank1]: lo\x1b[0mss 3\n")
    assert found([path], r"^loss \d$") == [("0", "loss 1"), ("1", "loss 2"), ("1", "loss 3")]
    assert found([path], "loss", ranks="1")[0] == ("1", "loss 2")
    assert found([path], "[rank1]: loss") == []
    assert found([path], "lo[^x]*2") == [("1", "loss 2")]


def test_a_file_of_another_rank_is_not_searched(tmp_path: Path) -> None:
    paths = [written(tmp_path, b"loss 1\n", f"rank{rank}.log") for rank in range(3)]
    assert found(paths, "loss", ranks="1-2") == [("1", "loss 1"), ("2", "loss 1")]


def test_lines_since_a_moment(tmp_path: Path) -> None:
    """Lines without a time have that of the line before."""
    path = written(tmp_path, b"2026-11-19T21:00:00Z INFO a1\na2\n2026-11-19T22:00:00Z INFO a3\na4\nb\n")
    texts = [text for _, text in found([path], "a", since=time_of("2026-11-19T21:30:00Z"))]
    assert [text[-2:] for text in texts] == ["a3", "a4"]


def test_found_lines_keep_the_time_stamps_of_a_collector(tmp_path: Path) -> None:
    path = written(tmp_path, b"2026-11-19T21:00:00Z [rank1]: loss 1\n" * 3)
    assert found([path], "loss")[0] == ("1", "2026-11-19T21:00:00Z loss 1")


@settings(max_examples=100, deadline=None)
@given(
    pattern=st.sampled_from(
        ["loss", "a+b", "x|y", "[ab]c", r"a\.b", "a.b", "^a", "b$", r"\d\d", "(ab)+", "é", "a?b", "(?i)LOSS"]
    ),
    lines=st.lists(st.text(alphabet="abcxy. é12losS", max_size=12), max_size=12),
)
def test_the_fast_search_finds_what_the_pattern_finds(
    tmp_path_factory: pytest.TempPathFactory, pattern: str, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("search") / "rank0.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    expected = [line.text for line in lines_of(path.read_text(), source_of("rank0.log", "rank0.log"))]
    assert [text for _, text in found([path], pattern)] == [
        text for text in expected if text and re.search(pattern, text)
    ]


def test_only_some_ranks_are_reported(tmp_path: Path) -> None:
    report = read(written(tmp_path, FAILED), options=ReadOptions(ranks=RankSet.parse("0")))
    assert {str(group.ranks) for group in report.last.groups} == {"0"}


def test_failures_before_a_moment_are_left_out(tmp_path: Path) -> None:
    early = "2026-11-19T21:00:00Z ERROR failed\n" + TRACEBACK.format(key="early")
    late = "2026-11-19T23:00:00Z ERROR failed\n" + TRACEBACK.format(key="late")
    path = written(tmp_path, (early + late).encode(), "rank0.log")
    report = read(path, options=ReadOptions(since=time_of("2026-11-19T22:00:00Z")))
    assert [group.raised.text for group in report.last.groups] == ["KeyError: 'late'"]


# ---- --follow


def test_a_log_that_grows_is_reported_as_soon_as_it_fails(tmp_path: Path) -> None:
    """GIVEN a log that is written in pieces which end anywhere THEN each poll reads what was added."""
    path = written(tmp_path, b"")
    with closing(GrowingLogs(find_sources([str(path)]))) as logs, open(path, "ab", buffering=0) as file:
        assert not logs.poll()
        for at in range(0, len(FAILED), 997):
            file.write(FAILED[at : at + 997])
            logs.poll()
        assert error_of(logs.report()) == ("1", NAN)
        logs.finish()
        assert error_of(logs.report()) == ("1", NAN)
        assert logs.report().bytes_read == len(FAILED)


def test_a_log_that_is_created_later_and_new_files_of_a_folder(tmp_path: Path) -> None:
    later = tmp_path / "later.log"
    folder = tmp_path / "logs"
    folder.mkdir()
    with closing(GrowingLogs(find_sources([str(later), str(folder)], expected=True))) as logs:
        assert not logs.poll()
        later.write_bytes(b"step 1\n")
        (folder / "rank5.log").write_text(TRACEBACK.format(key="x"))
        wait_for("both files", lambda: (logs.poll(), logs.report().bytes_read > 7)[1])
        logs.finish()
        assert error_of(logs.report()) == ("5", "KeyError: 'x'")
        assert logs.report().bytes_read == 7 + len(TRACEBACK.format(key="x"))


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_a_log_that_is_rotated_is_read_on(how: str, tmp_path: Path) -> None:
    path = written(tmp_path, b"one\ntwo\nhalf")
    with closing(GrowingFile(str(path))) as file:
        blocks = list(file.growth())
        if how == "truncated":
            path.write_bytes(b"new\n")
        else:
            path.rename(tmp_path / "train.log.1")
            path.write_bytes(b"new\nand longer than the old one\n")
        blocks += file.growth()
        with open(path, "ab") as log:
            log.write(b"end\n")
        blocks += file.growth()
    lines = b"".join(block.data for block in blocks).splitlines()
    more = [b"and longer than the old one"] if how == "replaced" else []
    assert lines == [b"one", b"two", b"halfnew", *more, b"end"]
    positions = [block.position for block in blocks]
    assert positions == sorted(set(positions))


def test_a_report_in_between_changes_nothing(tmp_path: Path) -> None:
    """GIVEN a log with two runs WHEN a report is made after each piece THEN the last one is as that of the whole."""
    data = (JOBS / "two-runs.log").read_bytes()
    path = written(tmp_path, b"")
    with closing(GrowingLogs(find_sources([str(path)]))) as logs, open(path, "ab", buffering=0) as file:
        for at in range(0, len(data), 1500):
            file.write(data[at : at + 1500])
            logs.poll()
            logs.report()
        logs.finish()
        report = logs.report()
    assert (error_of(report), report.earlier_runs) == (("1", NAN), 1)
    assert report.last.exits == read(path).last.exits


def test_a_log_that_vanishes_is_what_was_read(tmp_path: Path) -> None:
    path = written(tmp_path, FAILED)
    with closing(GrowingLogs(find_sources([str(path)]))) as logs:
        logs.poll()
        path.unlink()
        logs.poll()
        logs.finish()
        assert error_of(logs.report()) == ("1", NAN)


def test_at_most_so_many_files_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sources, "MAX_FILES", 3)
    for rank in range(4):
        written(tmp_path, b"x\n", f"rank{rank}.log")
    with pytest.raises(BreakranksError, match="more than 3 files"):
        find_sources([str(tmp_path)])
