"""`breakranks run` over plain processes: output, signals, exit status, and what happens when run itself ends."""

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

from breakranks.rankset import RankSet
from support.other_user import nobody
from support.processes import alive
from support.waiting import wait_for

from .terminals import BREAKRANKS, CTRL_C, Place, wait_until_read

PROGRAM = str(Path(__file__).parent / "printing_program.py")
PYTHON = sys.executable
LONG = 90.0
MAX_RUN_MIB = 300
RUN = (BREAKRANKS, "run")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Place(tmp_path) as made:
        yield made


def launch(count: int, *words: str) -> list[str]:
    return [PYTHON, PROGRAM, "launch", str(count), *words]


def latest(folder: Path) -> Path:
    return folder / "breakranks-logs" / "latest"


def of_rank(shown: bytes, rank: int) -> list[bytes]:
    """The lines of a rank, without their prefix."""
    prefix = b"[%d] " % rank
    return [line.removeprefix(prefix) for line in shown.split(b"\n") if line.startswith(prefix)]


def start(place: Place, *words: str, **how: Any) -> subprocess.Popen[Any]:
    """Run with pipes for its output."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return place.start([*RUN, *words], **{**streams, **how})


# ---- output


def test_what_everything_in_a_rank_prints(place: Place) -> None:
    done = place.call([*RUN, "--", *launch(2, "voices")])
    assert done.returncode == 0, done
    for rank in range(2):
        assert sorted(of_rank(done.stdout.encode(), rank)) == sorted(
            [b"from print", b"from write", b"from puts", b"from a child"]
        ), done
        assert of_rank(done.stderr.encode(), rank) == [b"from stderr"], done
        assert (latest(place.folder) / f"rank-{rank}.err").read_text() == "from stderr\n"
    launcher = [line for line in done.stdout.splitlines() if not line.startswith("[")]
    assert launcher == ["launcher: starting", "launcher: the ranks have ended"]
    told = [line for line in done.stderr.splitlines() if not line.startswith("[")]
    assert len(told) == 1 and str(latest(place.folder).resolve().name) in told[0]


def test_no_line_is_lost_or_torn(place: Place) -> None:
    """GIVEN three ranks that print any bytes at once WHEN they are shown in a pipe THEN every byte is there."""
    count = 20_000
    process = start(place, "--", *launch(3, "lines", str(count)))
    shown, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    for rank in range(3):
        kept = (latest(place.folder) / f"rank-{rank}.out").read_bytes().split(b"\n")[:-1]
        assert [line.split(b" ")[0] for line in kept] == [b"%d:%d" % (rank, number) for number in range(count)]
        assert of_rank(shown, rank) == kept


def test_equal_lines_and_a_prefix(place: Place) -> None:
    """GIVEN ranks that print the same WHEN it is folded THEN each rank has all its lines, in order, alone or not."""
    done = place.call([*RUN, "--fold", "--prefix", "{rank}/{stream}| ", "--", *launch(2, "voices")])
    pairs = [line.partition("/stdout| ") for line in done.stdout.splitlines() if "| " in line]
    for rank in range(2):
        texts = [text for ranks, _, text in pairs if rank in RankSet.parse(ranks)]
        assert sorted(texts) == ["from a child", "from print", "from puts", "from write"], done
        assert texts[-1] == "from a child", done


def test_quiet_shows_nothing_and_keeps_all(place: Place) -> None:
    done = place.call([*RUN, "--quiet", "--log-dir", "there", "--", *launch(2, "voices")])
    assert done.stdout == ""
    assert "from a child" in (place.folder / "there" / "latest" / "rank-1.out").read_text()


def test_much_without_a_newline_needs_little_memory(place: Place) -> None:
    (place.folder / "go").touch()
    process = start(place, "--", *launch(1, "long", "100000000", str(place.folder)))
    shown, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert shown.count(b"x") == 100_000_000
    # GNU time is not everywhere: the children of a shell that has no others.
    code = f"""
import resource, subprocess, sys
subprocess.run({[*RUN, "--log-dir", "more", "--", *launch(1, "long", "100000000", str(place.folder))]!r}, stdout=-3)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""
    done = place.call([PYTHON, "-c", code])
    assert int(done.stdout) < MAX_RUN_MIB, done


def test_a_terminal_gets_whole_lines_in_colours(place: Place) -> None:
    code = "import os; os.write(1, b'a\\x1b[2Jb \\xff\\x07\\n'); os.write(1, b'1%\\r2%\\r\\n')"
    terminal = place.terminal(
        [*RUN, "--color", "always", "--", PYTHON, "-c", code], {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    )
    received = bytearray()
    while terminal.process.poll() is None or b"2%" not in received:
        try:
            received += os.read(terminal.master, 65536)
        except OSError:
            break
        if b"2%" in received:
            break
    assert terminal.ends() == 0
    assert b"\x1b[36m[0]\x1b[0m ab \xef\xbf\xbd?\r\n\x1b[36m[0]\x1b[0m 2%\r\n" in received, received


def test_a_launcher_whose_ranks_load_nothing(place: Place) -> None:
    launcher = place.folder / "torchrun"
    launcher.write_text(f"#!/bin/sh\nRANK=0 WORLD_SIZE=1 LOCAL_RANK=0 {PYTHON} -I -c 'print(1)'\n")
    launcher.chmod(0o755)
    done = place.call([*RUN, "--", "./torchrun"])
    assert done.returncode == 0 and done.stdout == "1\n" and "no rank was seen" in done.stderr, done


def test_ranks_that_are_kept_know_that_run_lives(place: Place) -> None:
    done = place.call([*RUN, "--on-crash", "keep", "--", *launch(1, "voices")])
    assert done.returncode == 0, done
    assert {"heartbeat", "release"} <= set(os.listdir(latest(place.folder) / "ranks"))


# ---- the exit status


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("kill -9 $$", 137),
        ("kill -15 $$", 143),
    ],
)
def test_the_exit_status_is_that_of_the_command(place: Place, code: str, status: int) -> None:
    assert place.call([*RUN, "sh", "-c", code]).returncode == status


def test_a_report_that_fails_does_not_change_the_exit_status(place: Place) -> None:
    (place.folder / "ahocorasick_rs.py").write_text("raise RuntimeError('broken')\n")
    done = place.call([*RUN, "sh", "-c", "exit 4"], {"PYTHONPATH": str(place.folder)})
    assert done.returncode == 4 and "no report of the end: RuntimeError: broken" in done.stderr, done


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("#!/no/such/interpreter\n", 0o755, "its interpreter does not exist"),
        ("echo a\n", 0o755, "its first line names no interpreter"),
        ("#!/bin/sh\n", 0o644, "is not executable"),
    ],
)
def test_a_command_that_cannot_be_executed(place: Place, text: str, mode: int, words: str) -> None:
    path = place.folder / "train.sh"
    path.write_text(text)
    path.chmod(mode)
    done = place.call([*RUN, "./train.sh"])
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 2, done


def test_a_folder_that_cannot_be_written(place: Place) -> None:
    with nobody() as other:
        done = other.run(["-m", "breakranks", "run", "--", "true"], LONG)
        assert done.returncode == 2 and "/breakranks-logs cannot be written: permission denied" in done.stderr, done
        assert "--log-dir" in done.stderr
        done = other.run(["-m", "breakranks", "run", "--log-dir", str(other.own), "--", "sh", "-c", "exit 4"], LONG)
        assert done.returncode == 4, done


@pytest.mark.parametrize(("size", "words"), [("64k", "small is full"), ("8m", "MiB left, less than --keep-free")])
def test_a_folder_that_is_full(place: Place, size: str, words: str) -> None:
    (place.folder / "small").mkdir()
    script = f'mount -t tmpfs -o size={size} small small && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *RUN, "--log-dir", "small"]
    done = place.call([*command, "--", "touch", "started"])
    assert done.returncode == 2 and words in done.stderr and "--log-dir" in done.stderr, done
    assert not (place.folder / "started").exists()
    if size == "8m":
        assert place.call([*command, "--keep-free", "0", "--", "touch", "started"]).returncode == 0
        assert (place.folder / "started").exists()


# ---- signals


def signals(folder: Path) -> list[str]:
    path = folder / "signals"
    return path.read_text().split() if path.exists() else []


def test_ctrl_c_reaches_the_command_once(place: Place) -> None:
    """GIVEN a command that survives Ctrl-C WHEN it is pressed twice THEN it gets two signals, and run waits for it."""
    terminal = place.terminal([*RUN, "--", PYTHON, PROGRAM, "interrupted", str(place.folder)])
    terminal.expect("ready")
    for count in (1, 2):
        terminal.keys(CTRL_C)
        wait_for(f"signal {count}", lambda count=count: len(signals(place.folder)) >= count)
    (place.folder / "go").touch()
    assert terminal.ends() == 5
    assert signals(place.folder) == ["SIGINT", "SIGINT"]


def test_the_third_ctrl_c_ends_run_alone(place: Place) -> None:
    shell = """trap : INT; "$@"; echo "status $?"; read line"""  # as in a terminal, run is no leader of a session
    command = [*RUN, "--", PYTHON, PROGRAM, "interrupted", str(place.folder)]
    terminal = place.terminal(["sh", "-c", shell, "sh", *command])
    terminal.expect("ready")
    for count in range(1, 30):  # run may take two that come fast for one
        terminal.keys(CTRL_C)
        wait_for(f"signal {count}", lambda count=count: len(signals(place.folder)) >= count)
        if count >= 3 and (terminal.read(0.5) or "status" in terminal.seen):
            break
    told = re.search(r"the command still runs, as process (\d+)", terminal.expect("status 130"))
    assert told is not None and alive(int(told[1])), terminal.seen
    (place.folder / "go").touch()
    wait_for("the command's end", lambda: not alive(int(told[1])))
    assert set(signals(place.folder)) == {"SIGINT"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_run_is_passed_on_once(place: Place, number: signal.Signals) -> None:
    process = start(place, "--", PYTHON, PROGRAM, "interrupted", str(place.folder))
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    wait_for("a signal", lambda: signals(place.folder))
    (place.folder / "go").touch()
    process.communicate(timeout=LONG)
    assert process.returncode == 5
    assert signals(place.folder) == [number.name]


def test_a_signal_that_run_was_started_to_ignore(place: Place) -> None:
    """GIVEN run under nohup WHEN the terminal goes THEN neither it nor the command ends."""
    process = start(
        place,
        *("--", PYTHON, PROGRAM, "interrupted", str(place.folder)),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGUSR1)
    wait_for("the signal after it", lambda: signals(place.folder))
    (place.folder / "go").touch()
    process.communicate(timeout=LONG)
    assert (process.returncode, signals(place.folder)) == (5, ["SIGUSR1"])


# ---- the job without run


def test_a_job_whose_run_is_killed_goes_on(place: Place) -> None:
    """GIVEN a job in mid-run WHEN run is killed THEN the job ends well, and its log is whole."""
    process = start(place, "--", *launch(2, "wait", str(place.folder)))
    for rank in range(2):
        wait_for("the rank", (place.folder / f"ready.{rank}").exists)
    process.kill()
    process.communicate(timeout=LONG)
    (place.folder / "go").touch()
    wait_for("the end of the job", lambda: not place.living())
    logs = latest(place.folder)
    for rank in range(2):
        assert (place.folder / f"done.{rank}").exists()
        assert (logs / f"rank-{rank}.out").read_text() == "before\nafter\n"
    assert (logs / "launcher.out").read_text() == "launcher: starting\nlauncher: the ranks have ended\n"


def test_a_reader_that_ends_does_not_end_the_job(place: Place) -> None:
    process = start(place, "--", *launch(2, "wait", str(place.folder)))
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    (place.folder / "go").touch()
    errors = process.stderr.read().decode()
    assert process.wait(LONG) == 0, errors
    assert "Traceback" not in errors
    assert (latest(place.folder) / "rank-1.out").read_text() == "before\nafter\n"


# ---- a rank with the terminal


def wait_until_it_reads(folder: Path, rank: int) -> None:
    [registration] = latest(folder).glob(f"ranks/rank-{rank}.attempt-[0-9].json")
    wait_until_read(json.loads(registration.read_text())["pid"])


def test_a_rank_to_debug_needs_a_terminal(place: Place) -> None:
    done = place.call([*RUN, "--debug-rank", "0", "--", "touch", "started"])
    assert done.returncode == 2 and "--debug-rank needs a terminal" in done.stderr, done
    assert not (place.folder / "started").exists()


def test_a_rank_has_the_terminal(place: Place) -> None:
    """GIVEN two ranks WHEN rank 1 has the terminal THEN pdb, readline and Ctrl-C are its own, and its modes return."""
    terminal = place.terminal([*RUN, "--debug-rank", "1", "--", *launch(2, "debugged", str(place.folder))])
    terminal.expect("terminal: True True")
    terminal.expect("name> ")
    terminal.keys("abc")
    terminal.expect("abc")
    wait_until_it_reads(place.folder, 1)
    terminal.keys(CTRL_C)
    terminal.expect("interrupted")
    terminal.expect("again> ")
    terminal.keys("xyz\x7f\x7fw\r")
    terminal.expect("again xw")
    terminal.expect("(Pdb) ")
    terminal.keys("p rank, secret\r")
    terminal.expect("(1, 41)")
    terminal.keys("c\r")
    terminal.expect("secret 41")
    (place.folder / "go").touch()
    assert terminal.ends() == 0
    assert terminal.modes == terminal.before
    assert "rank 0 prints" not in terminal.seen
    assert (latest(place.folder) / "rank-0.out").read_text() == "rank 0 prints\nbefore\nafter\n"
