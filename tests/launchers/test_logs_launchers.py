"""`breakranks logs` on what real launchers have just printed."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.slurm import Slurm
from support.processes import Processes
from support.waiting import wait_for

from .running import BIN, HERE, TORCHRUN, free_port

BREAKRANKS = str(BIN / "breakranks")
PROGRAM = str(HERE / "failing_program.py")
NAN = "ValueError: loss is nan at step 2"
RECORDED = HERE.parent / "data" / "logs" / "jobs" / "torchrun-assert-one.log"
MEMORY_LIMIT_BYTES = 200 << 20


class JobOutput(NamedTuple):
    """What one job left: the output of its launcher, and the folder of --log-dir."""

    log: Path
    folder: Path


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as running:
        yield running


def run_job(folder: Path, *command: str, environ: dict[str, str] | None = None) -> Path:
    """Run a job that fails to its end; return the log of all that it printed."""
    log = folder / "train.log"
    with Processes(folder) as running, open(log, "wb") as file:
        job = running.start(
            command, {"OMP_NUM_THREADS": "1", **(environ or {})}, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
        job.wait(120)
    assert job.returncode not in (0, None), log.read_text()
    return log


def torchrun(folder: Path, ranks: int, way: str, *options: str) -> Path:
    address = ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    return run_job(folder, TORCHRUN, f"--nproc-per-node={ranks}", *address, *options, PROGRAM, way)


def logs(processes: Processes, *words: str | Path, **how: Any) -> dict[str, Any]:
    """Return the JSON report."""
    done = processes.call([BREAKRANKS, "logs", "--json", *map(str, words)], **how)
    assert done.returncode == 1, (done.stdout, done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def failed_job(tmp_path_factory: pytest.TempPathFactory) -> JobOutput:
    """Three ranks of torchrun, of which rank 1 raises while the others wait in a collective."""
    folder = tmp_path_factory.mktemp("job")
    log = torchrun(folder, 3, "collective", "--tee", "3", "--log-dir", str(folder / "logs"))
    return JobOutput(log, folder / "logs")


@pytest.mark.parametrize("shape", ["console", "folder", "gzip", "pipe", "both"])
def test_a_job_of_torchrun_in_each_shape(
    shape: str, failed_job: JobOutput, processes: Processes, tmp_path: Path
) -> None:
    """GIVEN the output of one job in the shapes that users have THEN the first cause is the same."""
    if shape == "gzip":
        (tmp_path / "train.log.gz").write_bytes(gzip.compress(failed_job.log.read_bytes()))
        report = logs(processes, tmp_path / "train.log.gz")
    elif shape == "pipe":
        with open(failed_job.log, "rb") as file:
            report = logs(processes, "-", stdin=file)
    else:
        paths = {"console": [failed_job.log], "folder": [failed_job.folder], "both": list(failed_job)}[shape]
        report = logs(processes, *paths)
    cause = report["cause"]
    assert (report["schema"], cause["kind"], cause["ranks"], cause["exception"]) == (1, "exception", "1", NAN), report
    assert cause["where"]["function"] == "check_loss"
    assert cause["where"]["file"] == PROGRAM
    assert report["victims"] == "0,2", report
    if shape == "folder":  # in the console, --tee may print a rank's output behind the traceback that came after it
        assert report["last_step"] == "step 1 done", report
    nan = [group for group in report["groups"] if group["exception"] == NAN]
    assert [(group["ranks"], group["count"]) for group in nan] == [("1", 1)]


def test_what_a_user_reads(failed_job: JobOutput, processes: Processes) -> None:
    """GIVEN the log WHEN it is read without --json THEN the cause, its place and the victims are on the first lines."""
    done = processes.call([BREAKRANKS, "logs", str(failed_job.log)])
    lines = done.stdout.splitlines()
    assert lines[0] == f"Rank 1 failed with {NAN}.", done.stdout
    assert "check_loss" in lines[1]
    assert any("victims" in line and "0,2" in line for line in lines[:4]), done.stdout
    assert len(lines) <= 40, done.stdout


def test_lines_of_a_rank(failed_job: JobOutput, processes: Processes) -> None:
    """GIVEN a log with local ranks in its prefixes and global ones in some THEN --grep finds lines without prefixes."""
    done = processes.call([BREAKRANKS, "logs", str(failed_job.log), "--grep", "^ValueError", "--rank", "1"])
    assert done.stdout.splitlines() == [f"[1] {NAN}"], done.stdout


def test_attempts_of_torchrun(processes: Processes, tmp_path: Path) -> None:
    """GIVEN torchrun that starts its ranks again without a word THEN both attempts are reported with their causes."""
    report = logs(processes, torchrun(tmp_path, 2, "restart", "--max-restarts", "1"))
    causes = [(attempt["cause"]["ranks"], attempt["cause"]["exception"]) for attempt in report["attempts"]]
    assert causes == [("0", "ValueError: bad data"), ("1", "KeyError: 'vocabulary'")], report


def test_tags_of_open_mpi_in_mid_line(processes: Processes, tmp_path: Path) -> None:
    """GIVEN mpirun --tag-output and ranks that print lines in pieces THEN the rank that failed is named."""
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed")
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "3", "--tag-output"]
    log = run_job(tmp_path, "mpirun", *options, sys.executable, PROGRAM, "pieces")
    report = logs(processes, log)
    assert (report["cause"]["ranks"], report["cause"]["exception"]) == ("1", "ValueError: loss is nan at step 50")
    assert report["ranks"] == "0-2"


@pytest.mark.parametrize("files", [False, True], ids=["label", "output"])
def test_srun(files: bool, slurm: Slurm, processes: Processes, tmp_path: Path) -> None:
    """GIVEN tasks of srun that all fail alike, in one file with --label or in a file each THEN they are one group."""
    folder = tmp_path / "out"
    folder.mkdir()
    how = f"--output={folder}/job.%t.out" if files else "--label"
    log = run_job(
        tmp_path, "srun", "-n3", "--overcommit", how, sys.executable, PROGRAM, "all", environ=slurm.environment
    )
    report = logs(processes, folder if files else log)
    assert (report["cause"]["ranks"], report["cause"]["exception"]) == ("0-2", "ValueError: loss is nan at step 0")
    assert [(group["ranks"], group["count"]) for group in report["groups"]] == [("0-2", 3)]


def test_a_log_is_followed_until_ctrl_c(processes: Processes, tmp_path: Path) -> None:
    """GIVEN a log that is written while it is followed THEN the failure is reported then, and again at Ctrl-C."""
    log, out = tmp_path / "train.log", tmp_path / "out"
    log.write_text("step 1 loss 0.5\n")
    with open(out, "wb") as file:
        follower = processes.start([BREAKRANKS, "logs", "--follow", str(log)], stdout=file, stderr=file)
    recorded = RECORDED.read_bytes()
    with open(log, "ab", buffering=0) as file:
        for at in range(0, len(recorded), 2000):
            file.write(recorded[at : at + 2000])
    first = "Rank 1 failed with ValueError: loss is nan at step 7 on rank 1."
    wait_for("a report", lambda: first in out.read_text())
    assert follower.poll() is None
    follower.send_signal(signal.SIGINT)
    assert follower.wait(120) == 1, out.read_text()
    text = out.read_text()
    assert text.count(first) >= 2, text
    assert "Traceback (most recent call last)" not in text, text


MEASURED = """\
import os, subprocess, sys
child = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(child.pid, 0)
open(sys.argv[1], "w").write(str(usage.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))
"""
LONG_SECONDS = 120.0


def test_a_large_log_is_read_in_constant_memory(tmp_path: Path) -> None:
    """GIVEN 300 MB through a pipe, with a failure at its end and handled ones in between THEN memory stays small."""
    line = b"2026-11-19 21:00:00,123 INFO train: step %d loss 0.123 " + b"x" * 900 + b"\n"
    handled = b'Traceback (most recent call last):\n  File "a.py", line %d, in f\n    g()\nKeyError: %d\nstep 1 done\n'
    # Through a small process: a child of this one has at least the memory of this one in its figures.
    words = [sys.executable, "-c", MEASURED, str(tmp_path / "memory"), BREAKRANKS, "logs", "-", "--json"]
    with open(tmp_path / "out", "wb") as out:
        reader = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, stderr=out)
    try:
        assert reader.stdin is not None
        for part in range(300):
            reader.stdin.write(handled % (part, part) + line % part * 1024)
        reader.stdin.write(RECORDED.read_bytes())
        reader.stdin.close()
        reader.wait(LONG_SECONDS)
    except BaseException:
        reader.kill()
        reader.wait()
        raise
    report = json.loads((tmp_path / "out").read_text())
    assert (reader.returncode, report["cause"]["ranks"]) == (1, "1"), report["cause"]
    assert report["bytes"] > 290_000_000
    assert int((tmp_path / "memory").read_text()) * 1024 < MEMORY_LIMIT_BYTES
