"""The commands, as a person types them, on real processes of plain Python."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import Processes
from support.targets import SOURCE, Interpreter, of, on
from support.waiting import free_port, wait_for

from .console_program import launcher_variables
from .terminals import BREAKRANKS

# Rank 0 keeps the lock; the others want it.
PROGRAM = """
import fcntl, os, sys, time

def rebuild_index(path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        open(path + ".ready", "w").close()
        time.sleep(600)

def write_cache(path):
    while not os.path.exists(path + ".ready"):
        time.sleep(0.01)
    with open(path, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

rebuild_index(sys.argv[1]) if os.environ["RANK"] == "0" else write_cache(sys.argv[1])
"""


class Ranks:
    def __init__(self, key: str, pids: list[int], lock: Path) -> None:
        self.key, self.pids, self.lock = key, pids, lock


@contextlib.contextmanager
def ranks_at_a_lock(folder: Path, count: int = 3) -> Iterator[Ranks]:
    program, lock = folder / "index.py", folder / "cache.lock"
    program.write_text(PROGRAM)
    port = free_port()  # only a name here: nothing listens
    with Processes(folder) as processes:
        started = [
            processes.start(
                [sys.executable, str(program), str(lock), "--hf-token", "hunter2"],
                {**launcher_variables(rank, count), "MASTER_PORT": str(port), "API_KEY": "sesame"},
            ).pid
            for rank in range(count)
        ]
        wait_for("all but one at the lock", lambda: all(_at_the_lock(pid) for pid in started[1:]))
        yield Ranks(f"python-{port}", started, lock)


def _at_the_lock(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "lock" in Path(f"/proc/{pid}/wchan").read_text()
    return False


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with ranks_at_a_lock(tmp_path_factory.mktemp("job").resolve()) as ranks:
        yield ranks


def breakranks(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    with Processes() as processes:
        return processes.call([*prefix, BREAKRANKS, *arguments])


def test_why_names_the_holder_of_the_lock(job: Ranks) -> None:
    done = breakranks("why", "--job", job.key, "--json")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    verdict = answer["verdict"]
    assert (verdict["kind"], verdict["culprits"], verdict["victims"]) == ("lock-held", "0", "1-2")
    assert str(job.lock) in verdict["summary"]
    assert verdict["where"]["function"] == "rebuild_index"
    assert answer["job"]["world_size"] == 3 and answer["job"]["ranks"] == "0-2"


def test_stacks_fold_the_ranks_into_one_tree(job: Ranks) -> None:
    done = breakranks("stacks", "--job", job.key)
    assert done.returncode == 0, done.stderr
    assert "[0-2] (3)" in done.stdout
    assert "[1-2] (2)" in done.stdout
    assert "rebuild_index" in done.stdout and "write_cache" in done.stdout


def test_ps_shows_ranks_and_hides_secrets(job: Ranks) -> None:
    done = breakranks("ps")
    assert done.returncode == 0, done.stderr
    for pid in job.pids:
        assert str(pid) in done.stdout
    assert "hunter2" not in done.stdout


def test_a_snapshot_gives_the_same_answers_and_no_secrets(job: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "hang.brk"
    kept = breakranks("snapshot", "--job", job.key, "-o", str(path))
    assert kept.returncode == 0, kept.stderr
    later = json.loads(breakranks("why", str(path), "--json").stdout)
    assert (later["verdict"]["kind"], later["verdict"]["culprits"]) == ("lock-held", "0")
    assert "write_cache" in breakranks("stacks", str(path)).stdout
    assert str(job.pids[0]) in breakranks("ps", str(path)).stdout

    from breakranks.snapshot.snapshot_file import load

    text = repr(load(str(path)))
    assert "hunter2" not in text and "sesame" not in text


def test_any_processes_by_pid(job: Ranks) -> None:
    done = breakranks("stacks", f"pid:{job.pids[1]}")
    assert done.returncode == 0, done.stderr
    assert "write_cache" in done.stdout and "rebuild_index" not in done.stdout


def test_top_prints_a_frame_where_there_is_no_terminal(job: Ranks) -> None:
    done = breakranks("top", "--job", job.key, "--once")
    assert done.returncode in (0, 1), done.stderr
    assert "rebuild_index" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("why", "--rank", "99"), "ranks 0-2"),
        (("why", "--rank", "x"), "not a rank set"),
        (("stacks", "--rank", "5-2"), "empty range"),
        (("why", "--patience", "-1"), "out of range"),
    ],
)
def test_a_bad_option_is_said_with_the_remedy(job: Ranks, arguments: tuple[str, ...], says: str) -> None:
    done = breakranks(*arguments, "--job", job.key)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["pid:1,x", "pid:", "ssh:n1", "/no/such/file.brk", "nonsense"])
def test_a_bad_target_is_said_with_the_remedy(text: str) -> None:
    done = breakranks("why", text)
    assert done.returncode == 2
    assert done.stderr.count("\n") >= 2, "a message and a remedy"
    assert "Traceback" not in done.stderr


def test_a_process_that_is_not_python_says_what_it_is() -> None:
    with Processes() as processes:
        other = processes.start(["sleep", "600"])
        done = breakranks("why", f"pid:{other.pid}")
    assert done.returncode == 2
    assert "not Python" in done.stderr and "sleep" in done.stderr


def test_a_process_that_is_gone_is_said_to_be() -> None:
    with Processes() as processes:
        other = processes.start(["true"])
        other.wait()
    done = breakranks("stacks", f"pid:{other.pid}")
    assert done.returncode == 2
    assert "no process" in done.stderr


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 something else", b"BREAKRANKS", os.urandom(4096)])
def test_a_file_that_is_no_snapshot_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.brk"
    path.write_bytes(content)
    for command in ("why", "stacks", "ps"):
        done = breakranks(command, str(path))
        assert done.returncode == 2, done.stdout
        assert "Traceback" not in done.stderr and str(path) in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="dropping a capability takes root")
def test_when_tracing_is_refused_it_says_what_proc_says_and_the_remedy(job: Ranks) -> None:
    """GIVEN no right to trace WHEN asked why THEN states are shown, and exactly what would help."""
    refuse = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    done = breakranks("why", "--job", job.key, prefix=refuse)
    assert done.returncode == 2, done.stdout
    assert "CAP_SYS_PTRACE" in done.stdout and "--cap-add=SYS_PTRACE" in done.stdout
    assert "sleeping" in done.stdout


def test_it_finds_its_way_among_two_thousand_processes(tmp_path: Path) -> None:
    """GIVEN 2,000 other processes THEN the job is found, and nothing else is taken for one."""
    crowd = (
        "import os, signal, sys\n"
        "for _ in range(2000):\n"
        "    if os.fork() == 0:\n"
        "        signal.pause()\n"
        "print('x', flush=True)\n"
        "sys.stdin.read()\n"
        "os.killpg(0, signal.SIGKILL)\n"
    )
    with Processes() as processes:
        others = processes.start(
            [sys.executable, "-c", crowd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert others.stdout is not None and others.stdout.readline()
        with ranks_at_a_lock(tmp_path.resolve(), 2) as few:
            done = breakranks("why", "--job", few.key, "--json")
        os.killpg(others.pid, signal.SIGKILL)
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    answer = json.loads(done.stdout)
    assert answer["verdict"]["kind"] == "lock-held"
    assert answer["verdict"]["culprits"] == "0"


def test_help_of_every_command_has_examples() -> None:
    from breakranks.cli.main import COMMANDS

    for command in COMMANDS:
        done = breakranks(command, "--help")
        assert done.returncode == 0
        assert f"breakranks {command}" in done.stdout and "examples:" in done.stdout


# ---- on other Pythons

OLDEST, NEWEST = of((3, 10)), of((3, 13))


@on(OLDEST, NEWEST)
def test_breakranks_itself_runs_there(job: Ranks, interpreter: Interpreter, tmp_path: Path) -> None:
    """GIVEN ranks of one Python WHEN breakranks runs on another THEN it looks, explains, keeps and enters as ever."""
    with Processes(tmp_path) as processes:

        def breakranks(*words: str) -> subprocess.CompletedProcess[str]:
            env = {"PYTHONPATH": str(SOURCE), "BREAKRANKS_RUN": str(tmp_path / "run")}
            return processes.call([interpreter.path, "-m", "breakranks", *words], env)

        verdict = json.loads(breakranks("why", "--job", job.key, "--json", "--save", "hang.brk").stdout)["verdict"]
        assert (verdict["kind"], verdict["culprits"], verdict["victims"]) == ("lock-held", "0", "1-2")
        for target in (("--job", job.key), ("hang.brk",)):
            stacks = breakranks("stacks", *target)
            assert stacks.returncode == 0 and "[1-2] (2)" in stacks.stdout and "write_cache" in stacks.stdout, stacks
        told = breakranks("eval", "--job", job.key, "--ranks", "1-2", "path", "--json")
        [answer] = json.loads(told.stdout)["answers"]
        assert (answer["ranks"], answer["value"]) == ("1-2", repr(str(job.lock)))
        asked = breakranks("attach", "--job", job.key, "--ranks", "0", "-c", "w", "-c", "p path")
        assert asked.returncode == 0 and repr(str(job.lock)) in asked.stdout, asked
