"""Where ranks share the output of their launcher, a relay for each copies its lines there: whole, and to the last."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.rank.launch.output_relay import CUT, pieces
from support.targets import Interpreter, on_every_python
from support.waiting import wait_for

from .launched_run import LaunchedRun

LINES = 3000
HOST = os.uname().nodename


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LaunchedRun]:
    with LaunchedRun(tmp_path) as run:
        yield run


def pipe_reader(run: LaunchedRun) -> tuple[int, subprocess.Popen[bytes]]:
    """The write end of a pipe, and a process that copies what comes out of it to the file ``shown``."""
    read, write = os.pipe()
    with open(run.folder / "shown", "wb") as shown:
        process = run.start(["cat"], stdin=read, stdout=shown)
    os.close(read)
    return write, process


def shown(run: LaunchedRun) -> list[str]:
    return (run.folder / "shown").read_text(errors="replace").splitlines()


@on_every_python
def test_lines_of_ranks_that_share_a_pipe_are_whole(run: LaunchedRun, interpreter: Interpreter) -> None:
    """GIVEN four ranks with one pipe WHEN all print as fast as they can THEN each line is there once, in its order."""
    write, reader = pipe_reader(run)
    launcher = (
        "import os, subprocess, sys\nranks = [subprocess.Popen(sys.argv[1:], env=dict(os.environ, RANK=str(r),"
        " WORLD_SIZE='4')) for r in range(4)]\nsys.exit(max(r.wait() for r in ranks))"
    )
    program = str(Path(__file__).with_name("launched_program.py"))
    command = [interpreter.path, "-c", launcher, interpreter.path, program, "flood", str(LINES), "80"]
    process = run.launch(command, stdout=write)
    os.close(write)
    assert run.ends(process) == 0, run.seen()
    reader.wait(120)
    lines = shown(run)
    for rank in range(4):
        own = [line for line in lines if line.startswith(f"[{HOST}:{rank}] ")]
        assert own == [f"[{HOST}:{rank}] {rank}:{number} {'x' * 80}" for number in range(LINES)]
        assert len(run.text(f"rank-{rank}.out").splitlines()) == LINES
    assert len(lines) == 4 * LINES


def relayed(run: LaunchedRun, *words: str, shell: str = "") -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    """A rank, or a shell as rank, whose output is a pipe that its parent has as well."""
    write, reader = pipe_reader(run)
    program = str(Path(__file__).with_name("launched_program.py"))
    command = shell or f"RANK=0 WORLD_SIZE=1 {sys.executable} {program} {' '.join(words)}; exit $?"
    process = run.launch(["bash", "-c", command], stdout=write)
    os.close(write)
    return process, reader


def test_the_last_lines_of_a_rank_that_is_killed_are_copied(run: LaunchedRun) -> None:
    process, reader = relayed(run, "killed")
    assert run.ends(process) == 128 + signal.SIGKILL
    reader.wait(120)
    assert shown(run)[-2:] == [f"[{HOST}:0] last of C", f"[{HOST}:0] last"] and len(shown(run)) == 1002


def test_without_its_relay_a_rank_goes_on(run: LaunchedRun) -> None:
    """WHEN the relay is killed THEN the rank goes on, and its file has everything."""
    process, _ = relayed(run, "wait", str(run.folder))
    [relay] = wait_for("the relay", lambda: run.relays())
    wait_for("the first line to be copied", lambda: shown(run) == [f"[{HOST}:0] before"])
    os.kill(relay, signal.SIGKILL)
    wait_for("the relay to end", lambda: not run.relays())
    (run.folder / "go").touch()
    assert run.ends(process) == 0
    assert run.text("rank-0.out") == "before\nafter\n" and shown(run) == [f"[{HOST}:0] before"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_relay_does_not_end_it(run: LaunchedRun, number: int) -> None:
    process, reader = relayed(run, "wait", str(run.folder))
    [relay] = wait_for("the relay", lambda: run.relays())
    os.kill(relay, number)
    (run.folder / "go").touch()
    assert run.ends(process) == 0
    reader.wait(120)
    assert shown(run) == [f"[{HOST}:0] before", f"[{HOST}:0] after"]


def test_a_relay_that_nobody_reads_does_not_stop_a_rank(run: LaunchedRun) -> None:
    """GIVEN a pipe that is full WHEN the rank prints much more THEN it comes to its end, and its file is whole."""
    read, write = os.pipe()
    program = str(Path(__file__).with_name("launched_program.py"))
    words = f"RANK=0 WORLD_SIZE=1 {sys.executable} {program} flood {LINES} 200; exit $?"
    process = run.launch(["bash", "-c", words], stdout=write)
    os.close(write)
    try:
        assert process.wait(120) == 0
        assert len(run.text("rank-0.out").splitlines()) == LINES
        assert run.relays()
    finally:
        os.close(read)  # nobody will read it
    run.ends(process)


def test_programs_of_one_task_are_copied_once(run: LaunchedRun) -> None:
    """GIVEN a task that runs Pythons in turn, each with a relay THEN no line is copied twice or lost."""
    program = str(Path(__file__).with_name("launched_program.py"))
    one = f"{sys.executable} {program} flood 200 20; "
    process, reader = relayed(run, shell=f"export RANK=0 WORLD_SIZE=1; {one * 5} true")
    assert run.ends(process) == 0
    reader.wait(120)
    assert shown(run) == [f"[{HOST}:0] 0:{number} {'x' * 20}" for number in range(200)] * 5


def test_a_late_relay_leaves_the_next_program_to_the_next_relay(run: LaunchedRun) -> None:
    """GIVEN a relay that was stopped WHEN its rank has ended and the next program has printed THEN it copies
    the lines of its own rank only."""
    program = str(Path(__file__).with_name("launched_program.py"))
    first = f"{sys.executable} {program} wait {run.folder}; "
    process, reader = relayed(
        run, shell=f"export RANK=0 WORLD_SIZE=1; {first} {sys.executable} {program} flood 20 20; true"
    )
    wait_for("the first line to be copied", lambda: shown(run) == [f"[{HOST}:0] before"])
    [relay] = run.relays()
    os.kill(relay, signal.SIGSTOP)
    (run.folder / "go").touch()
    assert process.wait(120) == 0
    os.kill(relay, signal.SIGCONT)
    run.ends(process)
    reader.wait(120)
    flood = [f"[{HOST}:0] 0:{number} {'x' * 20}" for number in range(20)]
    assert sorted(shown(run)) == sorted([f"[{HOST}:0] before", f"[{HOST}:0] after", *flood])


def test_a_child_that_outlives_the_rank_is_copied(run: LaunchedRun) -> None:
    rank = "import subprocess; subprocess.Popen(['sh', '-c', 'while ! test -e go; do sleep 0.05; done; echo child'])"
    process, reader = relayed(run, shell=f'RANK=0 WORLD_SIZE=1 {sys.executable} -c "{rank}"; true')
    assert process.wait(120) == 0
    assert run.relays()
    (run.folder / "go").touch()
    run.ends(process)
    reader.wait(120)
    assert shown(run) == [f"[{HOST}:0] child"]


def test_a_progress_bar_is_copied_now_and_then(run: LaunchedRun) -> None:
    (run.folder / "bar.py").write_text(
        "import os, time; print('a\\rb', end='', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)"
    )
    process, reader = relayed(run, shell=f"RANK=0 WORLD_SIZE=1 {sys.executable} bar.py; true")
    wait_for("the bar", lambda: shown(run) == [f"[{HOST}:0] b"])
    (run.folder / "go").touch()
    run.ends(process)
    reader.wait(120)
    assert shown(run) == [f"[{HOST}:0] b"]


IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
rank = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
os.spawnve(os.P_NOWAIT, sys.executable, [sys.executable, "-c", "print(5)"], rank)
try:
    os.wait()  # until all children have ended
except ChildProcessError:
    pass
"""


def test_a_rank_that_cannot_wait_for_children_has_a_relay(run: LaunchedRun) -> None:
    process, reader = relayed(run, shell=f"{sys.executable} -c '{IGNORING}'; true")
    process.wait(120)
    reader.wait(120)
    assert run.ends(process) == 0
    assert shown(run) == [f"[{HOST}:0] 5"] and "breakranks:" not in run.text("launcher.err")


DAEMON = """
import os, time
print("before", flush=True)
if os.fork() == 0:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    end = time.monotonic() + 120
    while not os.path.exists("go") and time.monotonic() < end:
        time.sleep(0.02)
    open("gone", "w").close()
"""


def test_a_daemon_does_not_keep_the_output_of_the_launcher_open(run: LaunchedRun) -> None:
    """GIVEN a forked child that has left its output WHEN its rank ends THEN what reads the launcher's pipe ends too."""
    process, reader = relayed(run, shell=f"RANK=0 WORLD_SIZE=1 {sys.executable} -c '{DAEMON}'; true")
    try:
        assert process.wait(120) == 0
        reader.wait(90)
        assert not (run.folder / "gone").exists()
    finally:
        (run.folder / "go").touch()
        wait_for("the daemon to end", (run.folder / "gone").exists)
    assert run.ends(process) == 0
    assert shown(run) == [f"[{HOST}:0] before"]


def test_what_follows_on_a_truncated_file_is_copied(run: LaunchedRun) -> None:
    """WHEN a shell in a rank truncates the file, as `echo > /dev/stdout` does THEN the next lines are copied."""
    words = (
        "import os, time\nprint('a long line before')\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
        "os.system(': > /dev/stdout')\nprint('after')"
    )
    process, reader = relayed(run, shell=f'RANK=0 WORLD_SIZE=1 {sys.executable} -c "{words}"; true')
    wait_for("the first line to be copied", lambda: shown(run) == [f"[{HOST}:0] a long line before"])
    (run.folder / "go").touch()
    assert run.ends(process) == 0
    reader.wait(120)
    assert shown(run) == [f"[{HOST}:0] a long line before", f"[{HOST}:0] after"]


TEXT = st.text(st.characters(exclude_characters="\n\r"), max_size=300)


@given(st.lists(TEXT, min_size=1, max_size=12), st.integers(60, 200))
def test_pieces_have_whole_lines_and_all_of_them(lines: list[str], most: int) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    found = pieces(data, b"[h:1] ", most)
    assert all(len(piece) <= most and piece.endswith(b"\n") for piece in found)
    bare = [line.removeprefix(b"[h:1] ") for piece in found for line in piece[:-1].split(b"\n")]
    for line in bare:
        line.removesuffix(CUT).decode()  # no character is cut
    joined = "\n".join(line.decode() for line in bare)
    assert re.sub(re.escape(CUT.decode()) + "\n", "", joined).replace(CUT.decode(), "") == "\n".join(lines).replace(
        CUT.decode(), ""
    )


def test_of_a_line_that_is_written_again_the_last_state_counts() -> None:
    assert pieces(b" 10%\r 20%\rdone\r\nnext\n", b"p ", 4096) == [b"p done\np next\n"]
