"""With `--on-crash keep`, a rank that raises stays until it is released; `--debug-rank` has the terminal."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import alive
from support.targets import Interpreter, on_every_python
from support.waiting import wait_for

from .launched_run import PROGRAM, LaunchedRun
from .terminals import wait_until_read

MPIRUN = shutil.which("mpirun")
KEPT = "breakranks: rank 0 is kept as it crashed: process "
RUN_DIED = "import breakranks.rank.launch.crash_wait as wait; wait.GONE_SECONDS = wait.GONE_ELSEWHERE_SECONDS = 5.0\n"


def kept(run: LaunchedRun, **how: Any) -> subprocess.Popen[Any]:
    rank = run.rank(0, "raises_late", str(run.folder), **how)
    wait_for("the rank to be kept", lambda: KEPT in run.text("rank-0.err"))
    assert "ValueError: the last words\n" in run.text("rank-0.err")
    assert run.record(0, kind="exception")["type"] == "ValueError"
    assert rank.poll() is None
    return rank


@on_every_python
@pytest.mark.parametrize("way", ["file", signal.SIGTERM, signal.SIGINT])
def test_a_kept_rank_is_released(tmp_path: Path, way: str | int, interpreter: Interpreter) -> None:
    with LaunchedRun(tmp_path, on_crash="keep") as run:
        rank = kept(run, python=interpreter.path)
        if isinstance(way, int):
            rank.send_signal(way)
        else:
            (run.run_folder / "ranks" / "release").touch()
        assert run.ends(rank) == 1
        assert run.text("rank-0.err").count(KEPT) == 1


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_kept_rank_does_not_outlive_run(tmp_path: Path, where: str) -> None:
    """GIVEN a rank that waits WHEN `run` dies THEN the rank ends after a while."""
    with LaunchedRun(tmp_path, on_crash="keep") as run:
        config = Path(run.startup, "config.json")
        stands_for_run = subprocess.Popen(["sleep", "300"])
        try:
            fields = Path(f"/proc/{stands_for_run.pid}/stat").read_text().rpartition(")")[2].split()
            changed = {"run_pid": stands_for_run.pid, "run_start": int(fields[19])}
            heartbeat = run.run_folder / "ranks" / "heartbeat"
            heartbeat.touch()
            if where == "elsewhere":
                changed["host_key"] = "another"
            config.write_text(json.dumps({**json.loads(config.read_text()), **changed}))
            (tmp_path / "sitecustomize.py").write_text(RUN_DIED)  # the site's own: it runs after the hook
            rank = kept(run, env={"PYTHONPATH": str(tmp_path)})
            for _ in range(300):  # longer than the rank waits without a beat; a pause of this test is shorter
                heartbeat.touch()
                assert rank.poll() is None
                signal.sigtimedwait([], 0.02)
        finally:
            stands_for_run.kill()
            stands_for_run.wait()
        assert run.ends(rank) == 1


def test_a_prompt_opens_where_it_was_raised(tmp_path: Path) -> None:
    """GIVEN `--on-crash post-mortem` WHEN a rank raises THEN a console finds it at a prompt, and releases it."""
    with LaunchedRun(tmp_path, on_crash="post-mortem") as run:
        rank = run.rank(0, "raises_late", str(tmp_path), env={"WORLD_SIZE": "1"})
        wait_for("the exception", lambda: run.record(0, kind="exception"))
        wait_for("the stop", lambda: "breakranks console" in run.text("rank-0.err"))
        breakranks = str(Path(sys.executable).parent / "breakranks")
        env = {**os.environ, "BREAKRANKS_RUN": str(run.agents)}
        words = b"p 'the folder is ' + folder\ngo\n"
        done = subprocess.run([breakranks, "console"], input=words, env=env, capture_output=True, timeout=120)
        assert run.ends(rank) == 1, done
        assert f"the folder is {tmp_path}".encode() in done.stdout, done


def test_without_run_a_prompt_is_released(tmp_path: Path) -> None:
    with LaunchedRun(tmp_path, on_crash="post-mortem") as run:
        rank = run.rank(0, "raises_late", str(tmp_path), env={"WORLD_SIZE": "1"})
        wait_for("the stop", lambda: "breakranks console" in run.text("rank-0.err"))
        (run.run_folder / "ranks" / "release").touch()
        assert run.ends(rank) == 1


# ---- the terminal of --debug-rank

BACKGROUND = """
import fcntl, os, subprocess, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
rank = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=1, stderr=2, preexec_fn=os.setpgrp)
sys.exit(rank.wait())
"""


class Terminal:
    """A terminal, typed at and read."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        attributes = termios.tcgetattr(self.slave)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self.slave, termios.TCSANOW, attributes)
        self.name = os.ttyname(self.slave)
        self.shown = ""
        os.set_blocking(self.master, False)

    def sees(self, text: str) -> bool:
        try:
            self.shown += os.read(self.master, 65536).decode().replace("\r\n", "\n")
        except BlockingIOError:
            pass
        return text in self.shown

    def expect(self, text: str) -> None:
        wait_for(f"{text!r}; there is {self.shown!r}", lambda: self.sees(text))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    os.close(terminal.master)
    os.close(terminal.slave)


@on_every_python
@pytest.mark.parametrize("kind", ["session", "background"])
def test_the_rank_that_is_debugged_has_the_terminal(
    tmp_path: Path, terminal: Terminal, kind: str, interpreter: Interpreter
) -> None:
    """GIVEN a rank without a terminal, in a session of its own or a background group of one that has the terminal
    WHEN it is the rank to debug THEN it reads from the terminal, in its prompts and in pdb, and SIGINT interrupts it.
    """
    with LaunchedRun(tmp_path, debug_rank=1, terminal=terminal.name) as run:
        env = {"RANK": "1", "WORLD_SIZE": "2", "TERM": "dumb"}
        command = [interpreter.path, str(PROGRAM), "terminal"]
        if kind == "session":
            rank = run.launch(["bash", "-c", 'trap "" INT; exec "$@"', "", *command], env, start_new_session=True)
        else:
            rank = run.launch([sys.executable, "-I", "-c", BACKGROUND, *command], env, stdin=terminal.slave)
        terminal.expect("question> ")
        assert "terminal [True, True, True] True 0\n" in terminal.shown
        terminal.type("an answer\n")
        terminal.expect("got 'an answer'")
        terminal.expect("again> ")
        record = run.record(1)
        assert (record["shown"], record["out"], record["in_foreground"]) == ("terminal", "", False)
        assert os.getpgid(record["pid"]) == record["pid"], "a signal to its group would reach others"
        wait_until_read(record["pid"])
        os.kill(record["pid"], signal.SIGINT)
        terminal.expect("interrupted\n")
        terminal.expect("(Pdb) ")
        terminal.type("p value + 100\n")
        terminal.expect("141")
        terminal.type("c\n")
        wait_for("its end", lambda: terminal.sees("value 41") and not alive(record["pid"]))
        run.ends(rank)
        assert not run.text("rank-1.out") and "readline" not in terminal.shown


FOREGROUND = """
import fcntl, os, subprocess, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.exit(subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL))
"""


@pytest.mark.skipif(MPIRUN is None, reason="no mpirun on this machine")
def test_a_rank_of_mpirun_has_the_terminal(tmp_path: Path, terminal: Terminal) -> None:
    with LaunchedRun(tmp_path, debug_rank=1, terminal=terminal.name) as run:
        mpirun = [str(MPIRUN), "--allow-run-as-root", "--oversubscribe", "-n", "2"]
        words = [*mpirun, sys.executable, str(PROGRAM), "terminal_of_rank_1"]
        job = run.launch([sys.executable, "-I", "-c", FOREGROUND, *words], {"TERM": "dumb"}, stdin=terminal.slave)
        terminal.expect("question> ")
        terminal.type("an answer\n")
        terminal.expect("again> ")
        terminal.type("more\n")
        terminal.expect("(Pdb) ")
        terminal.type("c\n")
        wait_for("the job to end", lambda: terminal.sees("value 41") and job.poll() is not None)
        assert run.ends(job) == 0
        assert run.text("rank-0.out") == "not debugged\n"


def test_the_other_ranks_have_files(tmp_path: Path, terminal: Terminal) -> None:
    with LaunchedRun(tmp_path, debug_rank=1, terminal=terminal.name) as run:
        assert run.ends(run.rank(0, "voices")) == 0
        assert "from print\n" in run.text("rank-0.out") and not terminal.sees("from print")


def test_a_terminal_that_is_gone_leaves_files(tmp_path: Path) -> None:
    with LaunchedRun(tmp_path, debug_rank=0, terminal="/dev/pts/none") as run:
        assert run.ends(run.rank(0, "voices")) == 0
        assert "from print\n" in run.text("rank-0.out") and run.record(0)["shown"] == "tail"


# ---- a full disk


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
@pytest.mark.parametrize("original", ["same disk", "pipe"])
def test_a_full_disk_does_not_end_a_rank(tmp_path: Path, original: str) -> None:
    """GIVEN a run folder on a small disk WHEN it is nearly full THEN the rank's output goes elsewhere, and it goes on;
    WHEN there is room again THEN it goes to the file again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "small", str(disk)], check=True)
    try:
        with LaunchedRun(disk, keep_free_bytes=4 << 20) as run:
            read, write = os.pipe()
            with open(tmp_path / "shown", "wb") as file:
                reader = run.start(["cat"], stdin=read, stdout=file)
            os.close(read)
            how = {"stdout": write, "stderr": write} if original == "pipe" else {}
            words = f"RANK=0 WORLD_SIZE=1 {sys.executable} {PROGRAM} fills {disk}; exit $?"
            process = run.launch(["bash", "-c", words], **how)
            os.close(write)
            wait_for("the rank", lambda: (disk / "ready.0").exists())
            free = os.statvfs(disk)
            (disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize - (3 << 20)))
            told = "breakranks: less than 4 MiB are free for "
            wait_for("the notice", lambda: told in run.text("rank-0.err"))
            (disk / "more").write_bytes(bytes(1 << 20))
            full = len(run.text("rank-0.out"))
            if original == "pipe":
                wait_for("lines past the file", lambda: b"\n" + b"x" * 1000 in (tmp_path / "shown").read_bytes())
            (disk / "ballast").unlink()
            wait_for("output in the file again", lambda: len(run.text("rank-0.out")) > full + 10000)
            assert "there is room again" in run.text("rank-0.err")
            (disk / "go").touch()
            assert run.ends(process) == 0
            assert (disk / "done.0").exists() and run.text("rank-0.err").count(told) == 1
            reader.wait(120)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
