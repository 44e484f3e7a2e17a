"""Logs of real broken jobs, each with its answer. tests/data/logs/jobs has what launchers and ranks printed (gloo, 2 to
4 ranks; the folders of the machine are replaced)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from breakranks.logs.crash_report import CrashReport
from breakranks.logs.job_logs import JobLogs
from breakranks.logs.log_sources import find_sources

JOBS = Path(__file__).parents[1] / "data" / "logs" / "jobs"


class Answer(NamedTuple):
    """What a report must say. ``cause``: its ranks; ``where``: function of the cause; ``error``: how its exception
    begins."""

    kind: str | None
    cause: str = ""
    error: str = ""
    where: str = ""
    victims: str = ""


NAN = Answer("exception", "1", "ValueError: loss is nan at step 7 on rank 1", "forward", "0,2")
NO_SPACE = "OSError: [Errno 28] No space left on device"
SWALLOWED = Answer("exception", "1", NO_SPACE, "checkpoint", "0,2")
KEY_OF_ALL = Answer("exception", "0-2", "KeyError: 'batch_size'", "parse")
SECOND = Answer("exception", "1", "KeyError: 'second attempt'", "parse", "0,2")
EXIT_3 = Answer("exit", "1", victims="0,2")
KILLED = Answer("signal", "1", victims="0,2")

ANSWERS = {
    # torchrun, all output in one file
    "torchrun-assert-all.log": Answer("exception", "0-2", "AssertionError: bad shape (2, 2)", "forward"),
    "torchrun-assert-one.log": NAN,
    "torchrun-before-init.log": KEY_OF_ALL,
    "torchrun-import-error.log": Answer("exception", "0-2", "ModuleNotFoundError: No module named 'not_", "<module>"),
    "torchrun-exit3.log": EXIT_3,
    "torchrun-os-exit.log": EXIT_3,
    "torchrun-exit0.log": EXIT_3,
    "torchrun-swallow-print.log": EXIT_3,
    "torchrun-sigkill.log": KILLED,
    "torchrun-segv.log": KILLED,
    "torchrun-abort.log": KILLED,
    "torchrun-term.log": KILLED,
    "torchrun-segv-fh.log": Answer("signal", "1", "Fatal Python error: Segmentation fault", "step", "0,2"),
    "torchrun-chained.log": Answer("exception", "1", NO_SPACE, "checkpoint", "0,2"),
    "torchrun-context.log": Answer("exception", "1", "NameError: name 'undefined_name'", "step", "0,2"),
    "torchrun-group.log": Answer("exception", "1", "ExceptionGroup: two failed", "step", "0,2"),
    "torchrun-loader.log": Answer("exception", "1", "IndexError", victims="0,2"),
    "torchrun-handled.log": Answer(None),
    "torchrun-cuda-assert.log": Answer("exception", "1", "RuntimeError: CUDA error: device-side", "forward", "0,2"),
    "torchrun-cuda-oom.log": Answer("out-of-memory", "2", "torch.OutOfMemoryError: CUDA out", "forward", "0-1"),
    "torchrun-bars.log": Answer("exception", "1", "ValueError: in the middle of a bar", "main", "0,2"),
    "torchrun-mismatch.log": Answer("timeout", "1", victims="0,2"),
    "torchrun-hang.log": Answer("timeout", "1", victims="0,2"),
    "torchrun-thread.log": Answer("exception", "1", "KeyError: 'queue'", "work", "0,2"),
    "torchrun-late.log": Answer("exception", "1", "RuntimeError: at the end", "main", "0"),
    "torchrun-swallow.log": SWALLOWED,
    "torchrun-swallow-log.log": SWALLOWED,
    "torchrun-no-script.log": Answer("exit", "0-1"),
    "torchrun-port.log": Answer("launcher", "", "torch.distributed.DistNetworkError", "<module>"),
    "torchrun-never-joins.log": Answer("timeout", "1", victims="0,2"),
    "torchrun-extint.log": Answer("exit", "0-1", "KeyboardInterrupt", "main"),
    "torchrun-extterm.log": Answer("launcher", "", "torch.distributed.elastic.multiprocessing.api.Signal", "<module>"),
    "spawn.log": Answer("exception", "1", "ValueError: worker failed", "work", "0"),
    # torchrun, other shapes
    "tee.log": NAN,
    "role-swallow.log": SWALLOWED,
    "redirects": NAN,
    "record": NAN,
    "crlf.log": NAN,
    "restart.log": SECOND,
    "restart-tee.log": SECOND,
    "restart-dir": SECOND,
    "two-runs.log": NAN,
    "two-nodes/nn-node0.log two-nodes/nn-node1.log": NAN._replace(victims="0,2-3"),
    "two-nodes/nb-node0.log two-nodes/nb-node1.log": KEY_OF_ALL._replace(cause="0-3"),
    "two-nodes/ns-node0.log two-nodes/ns-node1.log": SWALLOWED._replace(victims="0,2-3"),
    # other launchers
    "accelerate.log": NAN,
    "deepspeed-assert.log": NAN,
    "deepspeed.log": EXIT_3,
    "mpi.log": NAN,
    "mpi-tag.log": KILLED,
    "mpi-kill.log": KILLED,
    "mpi-of.log": KILLED,
    "mpi-files": EXIT_3,
    "mpi-files mpi-of.log": KILLED,
    "srun-label.log": NAN,
    "srun-kill.log": KILLED,
    "srun-files": EXIT_3,
    "slurm-4.out": Answer("exception", "1", NO_SPACE, "checkpoint", "0,2"),
    "msrun": Answer("exception", "1", "ValueError: bad sample", "<module>", "0"),
    "msrun.log": Answer("exception", "", "ValueError: bad sample", "<module>"),
    # log collectors
    "collectors/kubectl-ts.log": NAN,
    "collectors/kubectl-prefix-ts.log": NAN,
    "collectors/compose.log": NAN,
    "collectors/docker-json.log": NAN,
    "collectors/cloud.log": NAN,
    "collectors/github.log": NAN,
    "collectors/ts-bracket.log": NAN,
    "collectors/ts-syslog.log": NAN,
    "collectors/pods.log": Answer("exception", "", "KeyError: 'batch_size'", "parse"),
    "collectors/srun-label-ts.log": KEY_OF_ALL._replace(cause="0-3"),
}
SIGNALS = {"torchrun-sigkill.log": 9, "torchrun-segv.log": 11, "torchrun-abort.log": 6, "torchrun-term.log": 15,
           "torchrun-segv-fh.log": 11, "mpi-tag.log": 6, "mpi-kill.log": 9, "mpi-of.log": 11,
           "mpi-files mpi-of.log": 11, "srun-kill.log": 9}  # fmt: skip
CODES = {"torchrun-exit3.log": 3, "torchrun-os-exit.log": 7}
SWALLOWING = ("torchrun-swallow.log", "torchrun-swallow-log.log", "torchrun-thread.log")


def report_of(*names: str) -> CrashReport:
    logs = JobLogs(find_sources([str(JOBS / name) for name in names]))
    logs.read()
    return logs.report()


def answer_of(report: CrashReport) -> Answer:
    cause = report.cause
    if cause is None:
        return Answer(None, victims=str(report.last.victims))
    return Answer(
        cause.kind,
        str(cause.ranks),
        cause.raised.text if cause.raised is not None else "",
        cause.where.function if cause.where is not None else "",
        str(report.last.victims),
    )


@pytest.mark.parametrize("names", ANSWERS)
def test_the_first_cause_of_a_recorded_job(names: str) -> None:
    expected = ANSWERS[names]
    report = report_of(*names.split())
    found = answer_of(report)
    if names != "torchrun-loader.log":  # of the worker or of the rank that got it from the worker
        assert found.where == expected.where, report
    assert found.error.startswith(expected.error), report
    assert bool(found.error) == bool(expected.error), report
    assert found._replace(error="", where="") == expected._replace(error="", where=""), report


@pytest.mark.parametrize("names", SIGNALS)
def test_the_signal_of_a_recorded_job(names: str) -> None:
    cause = report_of(*names.split()).cause
    assert cause is not None
    assert cause.signal == SIGNALS[names]


@pytest.mark.parametrize("name", CODES)
def test_the_exit_code_of_a_recorded_job(name: str) -> None:
    cause = report_of(name).cause
    assert cause is not None
    assert cause.code == CODES[name]


@pytest.mark.parametrize("name", SWALLOWING)
def test_an_exception_that_a_rank_handled_is_told_apart(name: str) -> None:
    """GIVEN a rank that printed an exception and went on THEN the cause says that it handled it."""
    cause = report_of(name).cause
    assert cause is not None
    assert cause.swallowed


@pytest.mark.parametrize("name", ["torchrun-assert-one.log", "torchrun-chained.log", "slurm-4.out", "redirects"])
def test_an_exception_that_ended_its_rank_was_not_handled(name: str) -> None:
    cause = report_of(name).cause
    assert cause is not None
    assert not cause.swallowed


@pytest.mark.parametrize("name", ["restart.log", "restart-tee.log", "restart-dir"])
def test_two_attempts_are_told_apart(name: str) -> None:
    """GIVEN a job that torchrun started twice, without a line about it THEN each start has its own cause."""
    first, second = report_of(name).attempts
    assert first.cause is not None and first.cause.raised is not None
    assert second.cause is not None and second.cause.raised is not None
    assert (str(first.cause.ranks), first.cause.raised.text) == ("0", "ValueError: first attempt: bad data")
    assert (str(second.cause.ranks), second.cause.raised.text) == ("1", "KeyError: 'second attempt'")
    assert [len(attempt.groups) for attempt in (first, second)] in ([1, 1], [1, 2])  # with torchrun's own


def test_of_two_runs_in_one_log_the_last_is_reported() -> None:
    report = report_of("two-runs.log")
    assert report.earlier_runs == 1
    assert len(report.attempts) == 1
    assert not any(row.code == 3 for row in report.last.exits)


def test_a_run_that_ended_well_after_one_that_failed(tmp_path: Path) -> None:
    """GIVEN a log to which a second run was appended, with what torchrun prints first THEN nothing has failed."""
    start = (
        "W1119 22:10:00.000000 99 torch/distributed/run.py:851] Setting OMP_NUM_THREADS environment variable for each "
        "process to be 1 in default, to avoid your system being overloaded\n"
    )
    log = tmp_path / "train.log"
    log.write_text((JOBS / "torchrun-assert-one.log").read_text() + start + "step 1 done\nstep 2 done\n")
    logs = JobLogs(find_sources([str(log)]))
    logs.read()
    report = logs.report()
    assert (report.cause, report.earlier_runs, report.progress) == (None, 1, "step 2 done")


def test_two_runs_in_the_log_of_each_node(tmp_path: Path) -> None:
    """GIVEN the logs of two nodes, each with two runs one after the other THEN the last run of both is reported."""
    paths = []
    for node in range(2):
        # The first run has other pids, as it would have.
        last = (JOBS / f"two-nodes/nn-node{node}.log").read_text()
        first = re.sub(r"pid: (\d+)", r"pid: 7\1", last.replace("loss is nan at step 7", "loss is nan at step 1"))
        first = re.sub(r"^(E\d{4} \S+ )", r"\g<1>7", first, flags=re.MULTILINE)
        paths.append(tmp_path / f"node{node}.log")
        paths[node].write_text(first + last)
    logs = JobLogs(find_sources([str(path) for path in paths]))
    logs.read()
    report = logs.report()
    assert answer_of(report) == NAN._replace(victims="0,2-3"), report
    assert report.earlier_runs == 1
    cascades = [group for group in report.last.groups if group.role == "cascade"]
    assert sum(group.count for group in cascades) == 3, cascades


def test_logs_of_two_nodes_in_one_call_are_one_run() -> None:
    report = report_of("two-nodes/nn-node0.log", "two-nodes/nn-node1.log")
    assert (report.earlier_runs, str(report.ranks), report.files) == (0, "0-3", 2)


def test_copies_of_one_traceback_are_counted() -> None:
    groups = [group for group in report_of("torchrun-before-init.log").last.groups if group.role == "initiating"]
    assert [(group.count, group.raised.text) for group in groups] == [(3, "KeyError: 'batch_size'")]


def test_an_error_file_does_not_repeat_what_its_rank_printed() -> None:
    """GIVEN torchrun's error.json beside stderr.log with the same exception THEN it is one group."""
    groups = report_of("record").last.groups
    assert sorted(str(group.ranks) for group in groups) == ["0,2", "1"], groups


def test_the_last_completed_step_is_told() -> None:
    assert report_of("torchrun-sigkill.log").progress.startswith("step 2 loss 0.3333")
    assert report_of("msrun").progress == "step 1 loss 0.3"


def test_a_job_that_ended_well_has_no_failure_and_its_last_step() -> None:
    report = report_of("torchrun-handled.log")
    assert report.cause is None
    assert report.progress == "step 5 loss 0.1667"
    assert [(group.count, group.handled) for group in report.last.groups] == [(3, True)]
