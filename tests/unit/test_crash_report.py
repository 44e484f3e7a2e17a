"""The first cause of real failures: logs of four NCCL ranks on a GPU, and small ones that are written here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from breakranks.logs.crash_report import CrashReport
from breakranks.logs.job_logs import JobLogs
from breakranks.logs.log_events import ExitEvent, LogLine
from breakranks.logs.log_sources import find_sources
from breakranks.show.crash_json import report_json
from breakranks.show.crash_lines import report_lines
from breakranks.show.json_output import to_text
from breakranks.show.terminal_text import TerminalStyle, render

NCCL = Path(__file__).parents[1] / "data" / "logs" / "nccl"


def report_of(*paths: Path) -> CrashReport:
    logs = JobLogs(find_sources(map(str, paths)))
    logs.read()
    return logs.report()


def written(folder: Path, text: str, name: str = "all.log") -> CrashReport:
    path = folder / name
    path.write_text(text)
    return report_of(path)


def shown(report: CrashReport) -> str:
    return render(report_lines(report, TerminalStyle(width=120)), TerminalStyle(width=120))


# Torch 2.11, NCCL 2.28.9: rank 2 of four sleeps, handles an exception, fails; the process group's timeout is 15 s.
# By log: kind, exception, function of the cause.
NCCL_CASES = {
    "missing.log": ("timeout", "", None),
    "swallow.log": ("exception", "KeyError: 'shard-0007'", "load_batch"),
    "oom.log": ("out-of-memory", "torch.OutOfMemoryError: CUDA out of memory.", "load_batch"),
    "assert.log": ("exception", "torch.AcceleratorError: CUDA error: device-side assert triggered", "<module>"),
    "redirected": ("timeout", "", None),
}


@pytest.mark.parametrize("name", NCCL_CASES)
def test_the_rank_that_failed_first_is_the_cause_whichever_watchdog_fired(name: str) -> None:
    kind, exception, function = NCCL_CASES[name]
    report = report_of(NCCL / name)
    found = report_json(report)
    cause = found["cause"]
    assert isinstance(cause, dict), shown(report)
    assert (cause["ranks"], cause["kind"], found["victims"]) == ("2", kind, "0-1,3"), shown(report)
    assert cause["exception"].startswith(exception), shown(report)
    assert (cause["where"] or {}).get("function") == function, shown(report)


def test_the_numbers_of_the_watchdogs_name_the_call() -> None:
    cause = report_of(NCCL / "missing.log").cause
    assert cause is not None and cause.stuck is not None
    assert (cause.stuck.operation, cause.stuck.sequence, str(cause.stuck.waiting)) == ("ALLREDUCE", 4, "0-1,3")
    assert cause.confidence == "certain"


def test_a_cuda_error_is_said_to_be_on_the_wrong_line() -> None:
    assert "breakranks run --sync-cuda" in shown(report_of(NCCL / "assert.log"))


def traceback(exception: str, line: int, prefix: str = "") -> str:
    rows = [
        "Traceback (most recent call last):",
        f'  File "/job/train.py", line {line}, in step',
        "    go()",
        exception,
    ]
    return "".join(f"{prefix}{row}\n" for row in rows)


CLOSED = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:1234"


def test_an_exception_of_one_rank_is_the_cause_of_lost_connections(tmp_path: Path) -> None:
    text = traceback(CLOSED, 9, "[rank0]: ") + traceback("ValueError: bad batch", 7, "[rank1]: ")
    report = written(tmp_path, text + traceback(CLOSED, 9, "[rank2]: "))
    cause = report.cause
    assert cause is not None and cause.raised is not None
    assert (str(cause.ranks), cause.raised.text, str(report.last.victims)) == ("1", "ValueError: bad batch", "0,2")
    assert cause.confidence == "certain"


def test_equal_exceptions_of_all_ranks_are_one_group(tmp_path: Path) -> None:
    text = "".join(traceback(f"AssertionError: loss of {rank} is nan", 7, f"[rank{rank}]: ") for rank in range(8))
    report = written(tmp_path, text)
    assert [(str(group.ranks), group.count) for group in report.last.groups] == [("0-7", 8)]
    assert str(report.last.victims) == ""


def test_only_effects_name_no_rank(tmp_path: Path) -> None:
    report = written(tmp_path, traceback(CLOSED, 9, "[rank0]: ") + traceback(CLOSED, 9, "[rank1]: "))
    cause = report.cause
    assert cause is not None and not cause.ranks and cause.confidence == "guess", shown(report)


def test_a_rank_that_is_gone_without_a_word_is_named(tmp_path: Path) -> None:
    report = written(tmp_path, traceback(CLOSED, 9, "[rank0]: ") + traceback(CLOSED, 9, "[rank2]: "))
    cause = report.cause
    assert cause is not None and (str(cause.ranks), cause.kind) == ("1", "exit"), shown(report)


def test_gloo_ranks_that_timed_out_are_victims_of_the_silent_one(tmp_path: Path) -> None:
    late = "RuntimeError: [/x/gloo/unbound_buffer.cc:78] Timed out waiting 60000ms for recv operation to complete"
    text = "".join(traceback(late, 9, f"[rank{rank}]: ") for rank in (0, 1, 3))
    report = written(tmp_path, text)
    cause = report.cause
    assert cause is not None and (str(cause.ranks), cause.kind) == ("2", "timeout"), shown(report)
    assert cause.stuck is not None and cause.stuck.timeout_ms == 60000


def test_attempts_are_told_apart_by_their_files(tmp_path: Path) -> None:
    (tmp_path / "rank-0.err").write_text(traceback("ValueError: first", 3))
    (tmp_path / "rank-0.attempt-1.err").write_text(traceback("KeyError: 'second'", 4))
    report = report_of(tmp_path)
    texts = [attempt.cause.raised.text for attempt in report.attempts if attempt.cause and attempt.cause.raised]
    assert texts == ["ValueError: first", "KeyError: 'second'"]
    assert "2 times" in shown(report)


def test_the_kernel_proves_that_memory_ran_out(tmp_path: Path) -> None:
    (tmp_path / "rank-0.err").write_text("")
    (tmp_path / "rank-1.err").write_text(traceback(CLOSED, 9))
    logs = JobLogs(find_sources([str(tmp_path)]), world=2)
    logs.read()
    before = logs.report().cause
    assert before is not None and before.kind != "out-of-memory"
    line = LogLine("the kernel killed process 42 (python3) 3 s ago: out of memory", rank=0)
    logs.add(ExitEvent(reporter="kernel", line=line, rank=0, pid=42, signal=9))
    cause = logs.report().cause
    assert cause is not None
    assert (str(cause.ranks), cause.kind, cause.confidence) == ("0", "out-of-memory", "certain")


def test_a_rank_that_ended_in_the_regular_way_has_handled_its_exceptions(tmp_path: Path) -> None:
    (tmp_path / "rank-0.err").write_text(traceback("OSError: retry", 5))
    logs = JobLogs(find_sources([str(tmp_path)]), world=1)
    logs.read()
    assert logs.report().cause is not None
    logs.add_regular_end(0, 0)
    assert logs.report().cause is None


def test_json_has_the_documented_fields() -> None:
    found = json.loads(to_text(report_json(report_of(NCCL / "swallow.log"))))
    assert found["schema"] == 1
    assert {"ranks", "kind", "exception", "where", "confidence", "summary"} <= found["cause"].keys()
    assert {"ranks", "count", "exception", "frames"} <= found["groups"][0].keys()
    assert {"function", "file", "line"} <= found["groups"][0]["frames"][0].keys()
    assert {"ranks", "code", "signal", "meaning"} <= found["exits"][0].keys()
    assert found["last_step"] == "step 2 done"


def test_an_empty_log_has_no_failure(tmp_path: Path) -> None:
    report = written(tmp_path, "")
    assert report.cause is None
    assert "No failure was found" in shown(report)


def test_a_syntax_error_of_the_script_has_no_header(tmp_path: Path) -> None:
    error = '  File "/job/train.py", line 2\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
    cause = written(tmp_path, "step 1\n" + error + error + "E1119 22:00:38.523000 x\n").cause
    assert cause is not None and cause.raised is not None and cause.where is not None
    assert (cause.raised.text, cause.where.file, cause.where.line) == (
        "SyntaxError: invalid syntax",
        "/job/train.py",
        2,
    )


LATE = "RuntimeError: [/x/gloo/unbound_buffer.cc:78] Timed out waiting 60000ms for recv operation to complete"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def test_what_a_program_raises_after_a_timeout_is_an_effect_of_it(tmp_path: Path) -> None:
    for rank in (0, 2):
        text = traceback(LATE, 9) + HANDLING + traceback("TrainingError: step 7 failed", 12)
        (tmp_path / f"rank-{rank}.err").write_text(text)
    (tmp_path / "rank-1.err").write_text("")
    report = report_of(tmp_path)
    cause = report.cause
    assert cause is not None and (str(cause.ranks), cause.kind) == ("1", "timeout"), shown(report)
