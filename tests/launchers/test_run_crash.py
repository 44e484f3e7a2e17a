"""What `breakranks run` reports of trainings under torchrun that fail: an assertion, the kernel's kill, a hang."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from process.terminals import BREAKRANKS
from support.processes import Processes, alive
from support.waiting import wait_for

from .running import BIN, HERE, TORCHRUN, free_port

pytest.importorskip("torch")

PROGRAM = HERE / "crash_torch_program.py"
LONG = 180.0
MEMORY = Path("/sys/fs/cgroup/memory")
LIMIT_BYTES = 64 << 20
FIRST_NAMESPACE = "pid:[4026531836]"  # the kernel's log has the process ids of this one


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as made:
        yield made


@pytest.fixture
def limited_group(tmp_path: Path) -> Iterator[Path]:
    """A control group with little memory, until all of its processes have ended."""
    group = MEMORY / f"breakranks-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"no control group for memory can be made: {error}")
    try:
        with Processes(tmp_path) as processes:
            yield group
            processes.end()
    finally:
        wait_for("the group to be empty", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def run(
    processes: Processes, ranks: int, *words: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    job = [TORCHRUN, f"--nproc-per-node={ranks}", f"--master-port={free_port()}", str(PROGRAM), *words]
    assert processes.folder is not None
    environ = {
        "OMP_NUM_THREADS": "1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "BREAKRANKS_RUN": str(processes.folder / "agents"),
    }
    options = ("--quiet", "--report", "report.json", *options)
    return processes.call([BREAKRANKS, "run", *options, "--", *job], environ, deadline=LONG)


def reported(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text())


def ranks_left(folder: Path) -> list[int]:
    return [pid for path in folder.glob("ready.*") if alive(pid := int(path.read_text()))]


def test_an_assertion_on_one_rank(processes: Processes, tmp_path: Path) -> None:
    """GIVEN three ranks WHEN rank 1 fails THEN the others, which lose it or are ended by torchrun, are its victims."""
    done = run(processes, 3, "assert")
    report = reported(tmp_path)
    cause = report["cause"]
    assert done.returncode == 1, done
    assert (cause["ranks"], cause["exception"]) == ("1", "AssertionError: batch has 2 columns"), done.stderr
    lines = PROGRAM.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.strip().startswith("assert seen"))
    assert cause["where"] == {"function": "check_shapes", "file": str(PROGRAM), "line": line}
    assert cause["confidence"] == "certain" and report["victims"] == "0,2", report
    assert ("1", 1) in [(row["ranks"], row["code"]) for row in report["exits"]], report["exits"]
    own = [group["ranks"] for group in report["groups"] if group["role"] == "initiating"]
    assert own == ["1"], report["groups"]
    assert report["last_step"] == "step 2 done", report["last_step"]
    assert "Rank 1 failed with AssertionError: batch has 2 columns." in done.stderr


def test_the_kernel_kills_a_rank(processes: Processes, tmp_path: Path, limited_group: Path) -> None:
    done = run(processes, 2, "memory", str(limited_group))
    report = reported(tmp_path)
    cause = report["cause"]
    assert (cause["ranks"], cause["signal"], report["victims"]) == ("1", "SIGKILL", "0"), done.stderr
    if os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE and os.access("/dev/kmsg", os.R_OK):
        assert (cause["kind"], cause["confidence"]) == ("out-of-memory", "certain"), done.stderr
        assert "Rank 1 was killed because memory ran out." in done.stderr
    else:  # which process the kernel means is not known
        assert (cause["kind"], cause["confidence"]) == ("signal", "likely"), done.stderr
        assert "likely out of memory" in done.stderr


def test_a_hang_is_explained_before_the_timeout(processes: Processes, tmp_path: Path) -> None:
    """GIVEN a group that gives up after 60 s WHEN rank 1 sleeps THEN it is named, and nothing has timed out."""
    done = run(processes, 2, "hang", options=("--on-hang", "10", "--then", "kill"))
    report = reported(tmp_path)
    hang = report["hang"]
    assert (hang["kind"], hang["culprits"], hang["victims"]) == ("missing-from-collective", "1", "0"), done.stderr
    assert "wait_for_quota" in done.stderr and "the job was killed" in done.stderr, done.stderr
    assert (report["cause"]["ranks"], report["cause"]["kind"], report["victims"]) == ("1", "timeout", "0")
    logs = (tmp_path / "breakranks-logs/latest").resolve()
    assert len(list(logs.glob("*.brk"))) == 1
    assert not re.search("[Tt]imed out", (logs / "rank-0.err").read_text())
    assert not ranks_left(tmp_path)
