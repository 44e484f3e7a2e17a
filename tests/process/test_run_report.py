"""What `breakranks run` reports of plain processes that fail or hang: the first cause on standard error and as JSON."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import alive
from support.waiting import free_port, wait_for

from .terminals import BREAKRANKS, CTRL_C, Place

PROGRAM = Path(__file__).parent / "crashing_program.py"
ERROR = "ValueError: loss is nan at step 41"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
ON_HANG = ("--on-hang", "3")
LONG = 120.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Place(tmp_path) as made:
        yield made


def launch(count: int, mode: str) -> list[str]:
    return [sys.executable, str(PROGRAM), "launch", str(count), mode]


def port() -> dict[str, str]:
    return {"MASTER_PORT": str(free_port())}


def run(place: Place, *command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A run to its end, with a report in the file ``report.json``."""
    words = [BREAKRANKS, "run", "--quiet", "--report", "report.json", *options, "--", *command]
    return place.call(words, port(), deadline=LONG)


def reported(place: Place) -> Any:
    found = json.loads((place.folder / "report.json").read_text())
    assert found["schema"] == 1
    return found


def line_of(function: str) -> int:
    """The line of the last statement of a function of the program."""
    lines = PROGRAM.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"def {function}("))
    return next(number for number in range(at + 1, len(lines)) if not lines[number])


def exceptions(report: Any) -> list[tuple[str, int, str]]:
    return sorted((group["ranks"], group["count"], group["exception"]) for group in report["groups"])


# ---- the first cause


def test_one_rank_raises_and_the_others_lose_it(place: Place) -> None:
    done = run(place, *launch(3, "raise"))
    report = reported(place)
    cause = report["cause"]
    assert done.returncode == 1, done
    assert (cause["ranks"], cause["kind"], cause["exception"]) == ("1", "exception", ERROR), done.stderr
    where = {"function": "raise_of_step", "file": str(PROGRAM), "line": line_of("raise_of_step")}
    assert cause["where"] == where and cause["confidence"] == "certain", cause
    assert report["victims"] == "0,2"
    assert exceptions(report) == [("0,2", 2, RESET), ("1", 1, ERROR)]
    assert "the command ended with status 1" in done.stderr
    assert f"Rank 1 failed with {ERROR}." in done.stderr
    assert f"It was raised in raise_of_step, {PROGRAM}:{where['line']}." in done.stderr


def test_all_ranks_raise_the_same(place: Place) -> None:
    done = run(place, *launch(3, "all"))
    report = reported(place)
    assert (report["cause"]["ranks"], report["victims"]) == ("0-2", ""), done.stderr
    assert exceptions(report) == [("0-2", 3, ERROR)]
    assert f"Ranks 0-2 failed with {ERROR}." in done.stderr and "traceback of 3 copies" in done.stderr, done.stderr


def test_a_rank_is_killed_under_a_launcher_that_tells_nothing(place: Place) -> None:
    done = run(place, *launch(3, "kill"))
    report = reported(place)
    assert (report["cause"]["ranks"], report["victims"]) == ("1", "0,2"), done.stderr
    assert report["cause"]["confidence"] == "likely" and report["cause"]["where"] is None, report["cause"]
    assert "Rank 1 ended without an error message, and the other ranks lost their connection." in done.stderr


def test_a_rank_is_killed_under_a_shell_that_tells_its_process(place: Place) -> None:
    script = place.folder / "train.sh"
    script.write_text(
        "#!/bin/bash\nexport WORLD_SIZE=3\n"
        f"for rank in 0 1 2; do RANK=$rank LOCAL_RANK=$rank {sys.executable} {PROGRAM} kill & pids[$rank]=$!; done\n"
        "for rank in 0 1 2; do wait ${pids[$rank]} || status=$?; done\nexit $status\n"
    )
    script.chmod(0o755)
    done = run(place, "./train.sh")
    report = reported(place)
    cause = report["cause"]
    assert (cause["ranks"], cause["kind"], cause["signal"]) == ("1", "signal", "SIGKILL"), done.stderr
    assert report["victims"] == "0,2" and ("1", "SIGKILL") in [(e["ranks"], e["signal"]) for e in report["exits"]]
    assert "breakranks run --" not in done.stderr, done.stderr


def test_a_segmentation_fault_has_its_python_place(place: Place) -> None:
    done = run(place, *launch(3, "segv"))
    cause = reported(place)["cause"]
    assert (cause["ranks"], cause["kind"], cause["signal"]) == ("1", "signal", "SIGSEGV"), done.stderr
    assert (cause["where"]["function"], cause["where"]["line"]) == ("read_nothing", line_of("read_nothing")), cause
    assert "Rank 1 crashed: Fatal Python error: Segmentation fault." in done.stderr


def test_a_rank_leaves_by_sys_exit(place: Place) -> None:
    done = run(place, *launch(3, "exit"))
    report = reported(place)
    cause = report["cause"]
    assert (cause["ranks"], cause["kind"], report["victims"]) == ("1", "exit", "0,2"), done.stderr


@pytest.mark.parametrize(
    ("mode", "status", "expected"),
    [
        ("raise", 1, {"kind": "exception", "exception": ERROR, "signal": "", "code": None}),
        ("kill", 137, {"kind": "signal", "exception": "", "signal": "SIGKILL", "code": None}),
        ("exit", 3, {"kind": "exit", "exception": "", "signal": "", "code": 3}),
    ],
)
def test_a_command_without_ranks(place: Place, mode: str, status: int, expected: dict[str, object]) -> None:
    done = run(place, sys.executable, str(PROGRAM), mode)
    report = reported(place)
    cause = report["cause"]
    assert done.returncode == status, done
    assert {name: cause[name] for name in expected} == expected, cause
    assert (cause["ranks"], report["victims"]) == ("", "")
    assert f"the command ended with status {status}\nThe command " in done.stderr, done.stderr


def test_a_single_rank(place: Place) -> None:
    words = ["env", "RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", sys.executable, str(PROGRAM), "exit"]
    done = run(place, *words)
    cause = reported(place)["cause"]
    assert done.returncode == 3
    assert (cause["ranks"], cause["kind"], cause["code"]) == ("0", "exit", 3), done.stderr


# ---- no report


def test_success_has_no_cause(place: Place) -> None:
    done = run(place, *launch(2, "ends"))
    report = reported(place)
    assert (done.returncode, report["cause"], report["victims"], report["groups"]) == (0, None, "", []), done
    assert len(done.stderr.splitlines()) == 1, done.stderr  # where the logs are


@pytest.mark.parametrize("path", ["none/report.json", "."])
def test_a_report_that_cannot_be_written(place: Place, path: str) -> None:
    done = place.call([BREAKRANKS, "run", "--report", path, "--", "touch", "started"])
    assert done.returncode == 2 and "cannot be written" in done.stderr, done
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert not (place.folder / "started").exists()


def test_ctrl_c_is_no_failure(place: Place) -> None:
    os.mkfifo(place.folder / "go")
    terminal = place.terminal([BREAKRANKS, "run", "--", *launch(1, "pause")])
    wait_for("the rank", lambda: len(registered(place)) == 1)
    wait_for("the rank to run", (place.folder / "paused.0").exists)
    terminal.keys(CTRL_C)
    assert terminal.ends() != 0
    assert "KeyboardInterrupt" in terminal.shown()
    assert "ended with status" not in terminal.seen, terminal.seen


# ---- hangs


@pytest.mark.parametrize("option", [["--then", "kill"], ["--exec", "true"], ["--save", "."], ["--target", "ssh:n1"]])
def test_options_of_a_hang_need_one(place: Place, option: list[str]) -> None:
    done = place.call([BREAKRANKS, "run", *option, "--", "touch", "started"])
    assert done.returncode == 2 and "--on-hang" in done.stderr and len(done.stderr.splitlines()) == 2, done
    assert not (place.folder / "started").exists()


def registered(place: Place) -> list[Any]:
    """What the ranks have registered."""
    paths = sorted((place.folder / "breakranks-logs/latest/ranks").glob("rank-*.attempt-0.json"))
    return [json.loads(path.read_text()) for path in paths]


def test_a_hang_is_explained_and_ended(place: Place) -> None:
    done = run(place, *launch(2, "hang"), options=(*ON_HANG, "--then", "kill", "--exec", "cat > told; env > variables"))
    verdict = reported(place)["hang"]
    assert done.returncode not in (0, 2), done
    assert "no rank has made progress for" in done.stderr and "the job was killed" in done.stderr, done.stderr
    assert "the command ended with" not in done.stderr
    assert "take_lock" in done.stderr, done.stderr
    told = (place.folder / "told").read_text()
    assert told.strip() and told.splitlines()[0] in done.stderr.splitlines(), told
    [snapshot] = (place.folder / "breakranks-logs/latest/").resolve().glob("*.brk")
    assert f"BREAKRANKS_HANG_SNAPSHOT={snapshot}\n" in (place.folder / "variables").read_text()
    assert verdict["summary"] in re.sub(r"\s+", " ", done.stderr), verdict
    assert reported(place)["cause"]["kind"] == "timeout"
    assert not place.living()


def test_a_hang_is_explained_and_the_job_goes_on(place: Place) -> None:
    """GIVEN a rank that waits for the pipe ``go`` WHEN the hang was reported, and it gets it THEN the job ends well."""
    os.mkfifo(place.folder / "go")
    words = [BREAKRANKS, "run", "--report", "report.json", *ON_HANG, "--save", "hangs", "--", *launch(2, "pause")]
    with open(place.folder / "errors", "wb") as errors:
        process = place.start(words, port(), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
    wait_for("the hang", lambda: "saved: hangs/" in (place.folder / "errors").read_text())
    assert process.poll() is None and all(alive(rank["pid"]) for rank in registered(place))
    (place.folder / "go").write_text("\n")
    assert process.wait(LONG) == 0, (place.folder / "errors").read_text()
    assert reported(place)["cause"] is None
    assert "read_config" in (place.folder / "errors").read_text()
    assert not place.living()


def test_a_watch_ends_with_the_job_when_its_run_is_killed(place: Place) -> None:
    os.mkfifo(place.folder / "go")
    words = [BREAKRANKS, "run", "--on-hang", "1000", "--", *launch(2, "pause")]
    with open(place.folder / "errors", "wb") as errors:  # no pipe: the watch has it too
        process = place.start(words, port(), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
    watch = wait_for("the watch", lambda: next((pid for pid in place.living() if b"watch" in words_of(pid)), 0))
    wait_for("the rank that waits", (place.folder / "paused.1").exists)
    process.send_signal(signal.SIGKILL)
    process.wait(LONG)
    assert alive(watch)
    (place.folder / "go").write_text("\n")
    wait_for("the end of the job and its watch", lambda: not place.living())


def words_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
