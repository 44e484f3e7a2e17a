"""What `breakranks run` does within the processes of a job: output goes to files, ranks register, nothing breaks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakranks.run.startup_folder import launch_environment
from support.targets import OTHERS, Interpreter, on, on_every_python, on_every_python_with
from support.waiting import free_port, wait_for

from .launched_run import PROGRAM, LaunchedRun

SPOKEN = ("from print", "from write", "from printf", "from a child", "from a fork", "from a spawned child")
OLD = Interpreter(str(Path.home() / ".pyenv/versions/3.9.18/bin/python"), (3, 9))
MPIRUN = shutil.which("mpirun")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LaunchedRun]:
    with LaunchedRun(tmp_path) as run:
        yield run


def assert_spoken(text: str) -> None:
    assert sorted(text.splitlines()) == sorted(SPOKEN), text


@on_every_python
def test_everything_that_a_rank_prints_is_in_its_files(run: LaunchedRun, interpreter: Interpreter) -> None:
    rank = run.rank(1, "voices", python=interpreter.path)
    assert run.ends(rank) == 0, run.seen()
    assert_spoken(run.text("rank-1.out"))
    assert run.text("rank-1.err") == "from stderr\n"
    assert run.text("launcher.out") == run.text("launcher.err") == ""
    record = run.record(1)
    assert (record["shown"], record["pid"], record["launcher"]) == ("tail", rank.pid, "python")
    assert record["out"] == str(run.run_folder / "rank-1.out")
    assert run.record(1, kind="end") and not run.record(1, kind="exception")


@on(OLD)
def test_on_a_python_without_an_agent_output_is_captured(run: LaunchedRun, interpreter: Interpreter) -> None:
    assert run.ends(run.rank(1, "voices", python=interpreter.path)) == 0, run.seen()
    assert_spoken(run.text("rank-1.out"))
    assert not run.agents.exists()


def test_a_process_without_a_number_is_left_alone(run: LaunchedRun) -> None:
    process = run.launch([sys.executable, str(PROGRAM), "voices"])
    assert run.ends(process) == 0
    assert "from print\n" in run.text("launcher.out") and run.text("launcher.err") == "from stderr\n"
    assert not os.listdir(run.run_folder / "ranks")


@on(*OTHERS)  # the Python of the tests has it installed
def test_where_breakranks_is_not_installed_a_zip_serves(run: LaunchedRun, interpreter: Interpreter) -> None:
    """GIVEN a host without breakranks at its place WHEN a rank and its child import it THEN they have the zip's."""
    hook = Path(run.startup, "sitecustomize.py")
    lines = hook.read_text().splitlines()
    hook.write_text("\n".join("ROOT = '/nowhere'" if line.startswith("ROOT = ") else line for line in lines))
    assert run.ends(run.rank(0, "imports", python=interpreter.path)) == 0, run.seen()
    module = f"{run.startup}/breakranks.zip/breakranks/__init__.py"
    shown = run.text("rank-0.out").splitlines()
    assert [line.split()[1].removesuffix("c") for line in shown] == [module, module], shown
    assert shown[0].endswith(" []"), shown
    assert os.path.isdir(run.agents), "the agent has not started"


def test_the_programs_own_import_is_the_same_module(run: LaunchedRun) -> None:
    assert run.ends(run.rank(0, "imports")) == 0
    import breakranks

    assert run.text("rank-0.out").count(str(breakranks.__file__)) == 2, run.text("rank-0.out")


@on_every_python
def test_the_sites_own_sitecustomize_still_runs(run: LaunchedRun, tmp_path: Path, interpreter: Interpreter) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; print('own'); sys.own = __name__; answer = 42\n")
    words = "import sys, sitecustomize; print(sys.own, sitecustomize.answer, sitecustomize.__file__)"
    for env, name in (({"RANK": "0", "WORLD_SIZE": "1"}, "rank-0.out"), ({}, "launcher.out")):
        process = run.launch([interpreter.path, "-c", words], {"PYTHONPATH": str(tmp_path), **env})
        assert run.ends(process) == 0, run.seen()
        assert run.text(name) == f"own\nsitecustomize 42 {tmp_path}/sitecustomize.py\n"


@on_every_python
def test_a_sitecustomize_that_fails_is_reported_as_without_run(
    run: LaunchedRun, tmp_path: Path, interpreter: Interpreter
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import not_there\n")
    command = [interpreter.path, "-c", "print('on')"]
    process = run.launch(command, {"PYTHONPATH": str(tmp_path), "RANK": "0", "WORLD_SIZE": "1"})
    assert run.ends(process) == 0
    plain = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert (run.text("rank-0.out"), run.text("rank-0.err")) == (plain.stdout, plain.stderr)


@on_every_python_with("broken", ["ranks", "config"], ["zip"])
def test_a_broken_hook_leaves_the_job_going(run: LaunchedRun, broken: str, interpreter: Interpreter) -> None:
    """GIVEN a run folder that cannot be used WHEN a rank starts THEN it runs as it would without breakranks."""
    if broken == "ranks":
        (run.run_folder / "ranks").rmdir()
        (run.run_folder / "ranks").touch()
    elif broken == "config":
        Path(run.startup, "config.json").write_text("{")
    else:
        hook = Path(run.startup, "sitecustomize.py")
        hook.write_text(hook.read_text().replace("ROOT = ", "ROOT = '/nowhere'  # "))
        Path(run.startup, "breakranks.zip").write_bytes(b"")
    assert run.ends(run.rank(0, "voices", python=interpreter.path)) == 0
    assert "from print\n" in run.text("launcher.out") and "from stderr\n" in run.text("launcher.err")
    assert run.text("launcher.err").count("breakranks: not active in process ") == 1, run.text("launcher.err")
    assert not run.text("rank-0.out")


UNREGISTERED = """
import os, sys
from breakranks.rank.launch import launch_hook
from breakranks.rank.launch.launch_config import read_config
from breakranks.rank.launch.launch_registration import RankRecord
from breakranks.rank.launch.launched_rank import LaunchedRank

class Full(RankRecord):
    def update(self, **fields):
        raise OSError("full")

config = read_config(sys.argv[1])
try:
    launch_hook._redirected(config, Full(config, LaunchedRank("python", 0, 1, 0)))
except OSError:
    os.write(1, b"as before\\n")
"""


def test_output_that_cannot_be_registered_is_not_redirected(run: LaunchedRun) -> None:
    process = run.launch([sys.executable, "-c", UNREGISTERED, run.startup])
    assert run.ends(process) == 0, run.seen()
    assert run.text("launcher.out") == "as before\n" and not run.text("rank-0.out")


def test_what_a_shell_reads_is_not_touched(run: LaunchedRun) -> None:
    """GIVEN a script that reads the output of a Python, as rank 0 WHEN it goes on THEN it has read what was printed."""
    script = f'export RANK=0 WORLD_SIZE=1; VALUE=$({sys.executable} -c "print(29500)"); echo "value $VALUE"; '
    process = run.launch(["bash", "-c", f"{script} {sys.executable} -c 'print(\"from rank\")'; true"])
    assert run.ends(process) == 0
    assert run.text("launcher.out") == "value 29500\n"
    assert run.text("rank-0.out") == "from rank\n"
    assert run.record(0)["shown"] == "tail" and not run.record(0, 1)


@pytest.mark.parametrize("shells", ["subshells", "scripts"])
def test_two_programs_of_one_task_append(run: LaunchedRun, shells: str) -> None:
    """GIVEN a task that runs two Pythons in shells of their own THEN both write to the same files, as one attempt."""
    one, two = f"{sys.executable} -c 'print(\"one\"); 1 / 0'; true", f"{sys.executable} -c 'print(\"two\")'; true"
    (run.folder / "one.sh").write_text(one)
    (run.folder / "two.sh").write_text(two)
    words = f"({one}); ({two})" if shells == "subshells" else "bash one.sh; bash two.sh; true"
    for env in ({"RANK": "0", "WORLD_SIZE": "1"}, {}):
        export = "" if env else "export RANK=1 WORLD_SIZE=2; "
        assert run.ends(run.launch(["bash", "-c", export + words], env)) == 0
    for rank in (0, 1):
        assert run.text(f"rank-{rank}.out") == "one\ntwo\n"
        assert run.record(rank, kind="end") and not run.record(rank, kind="exception")
        assert not run.record(rank, 1)


def test_a_second_launcher_makes_a_second_attempt(run: LaunchedRun) -> None:
    for number in ("first", "second"):
        script = f"RANK=0 WORLD_SIZE=1 {sys.executable} -c \"print('{number}')\"; true"
        assert run.ends(run.launch(["bash", "-c", script])) == 0
    assert run.text("rank-0.out") == "first\n" and run.text("rank-0.attempt-1.out") == "second\n"
    assert run.record(0, 1)["out"].endswith("rank-0.attempt-1.out")


@pytest.mark.slow
def test_a_restart_of_torchrun_is_an_attempt(run: LaunchedRun) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    process = run.launch([*command, str(PROGRAM), "restarted"], {"OMP_NUM_THREADS": "1"})
    assert run.ends(process) == 0, run.seen()
    for rank in (0, 1):
        assert run.text(f"rank-{rank}.out") == "attempt 0\n"
        assert run.text(f"rank-{rank}.attempt-1.out") == "attempt 1\n"
        assert run.record(rank, 1)["launcher"] == "torchrun"
        assert run.record(rank, 1)["attempt"] == 1
    assert run.record(1, kind="exception")["message"] == "restart"


@pytest.mark.parametrize("program", ["torchrun", "accelerate", "deepspeed"])
def test_a_launcher_within_slurm_is_not_the_rank(run: LaunchedRun, tmp_path: Path, program: str) -> None:
    """GIVEN a task of Slurm that is a launcher WHEN it starts its rank THEN that is registered, and nothing else is."""
    task = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "9"}
    launcher = tmp_path / program
    launcher.write_text(
        "import os, subprocess, sys\nprint('launcher', flush=True)\n"
        "subprocess.run([sys.executable, '-c', 'print(\"a tool\")'], check=True)\n"
        "env = dict(os.environ, RANK='2', LOCAL_RANK='0', WORLD_SIZE='4', TORCHELASTIC_RUN_ID='9')\n"
        "subprocess.run([sys.executable, '-c', 'print(\"rank\")'], env=env, check=True)\n"
    )
    assert run.ends(run.launch([sys.executable, str(launcher), "launch"], task)) == 0
    assert run.text("launcher.out") == "launcher\na tool\n"
    assert run.text("rank-2.out") == "rank\n"
    assert sorted(os.listdir(run.run_folder / "ranks")) == ["rank-2.attempt-0.end.json", "rank-2.attempt-0.json"]


def test_a_file_that_the_launcher_made_for_a_rank_stays(run: LaunchedRun, tmp_path: Path) -> None:
    with open(tmp_path / "worker_0.log", "ab") as log:
        process = run.rank(0, "voices", stdout=log, stderr=log)
    assert run.ends(process) == 0
    link = run.run_folder / "rank-0.out"
    assert os.readlink(link) == str(tmp_path / "worker_0.log")
    assert "from print" in link.read_text() and "from stderr" in link.read_text()
    assert (run.record(0)["shown"], run.record(0)["err"]) == ("tail", "")
    assert not os.path.lexists(run.run_folder / "rank-0.err")


def test_what_the_user_discards_is_discarded(run: LaunchedRun) -> None:
    script = f"RANK=0 WORLD_SIZE=1 {sys.executable} {PROGRAM} voices; true"
    assert run.ends(run.launch(["bash", "-c", script], stdout=subprocess.DEVNULL)) == 0
    assert not run.text("rank-0.out") and run.text("rank-0.err") == "from stderr\n"
    assert (run.record(0)["shown_out"], run.record(0)["shown_err"]) == ("launcher", "tail")


@on_every_python
def test_an_exception_is_recorded(run: LaunchedRun, interpreter: Interpreter) -> None:
    assert run.ends(run.rank(0, "raises", python=interpreter.path)) == 1
    found = run.record(0, kind="exception")
    assert (found["type"], found["message"]) == ("ValueError", "the last words")
    assert found["traceback"] in run.text("rank-0.err")
    assert "KeyError: 'of a child'" in run.text("rank-0.err") and not run.record(0, kind="end")


def test_an_exception_of_a_forked_child_is_not_that_of_the_rank(run: LaunchedRun) -> None:
    assert run.ends(run.rank(0, "child_raises")) == 0
    assert "KeyError: 'of a child'" in run.text("rank-0.err")
    assert run.record(0, kind="end") and not run.record(0, kind="exception")


def test_a_program_that_replaces_itself_is_the_same_rank(run: LaunchedRun) -> None:
    assert run.ends(run.rank(0, "replaces")) == 1
    assert run.text("rank-0.out") == "first\n"
    assert run.record(0, kind="exception")["message"] == "the last words"
    assert run.record(0)["out"].endswith("rank-0.out") and not run.record(0, 1)


def test_a_crash_in_c_prints_its_stack(run: LaunchedRun) -> None:
    assert run.ends(run.rank(0, "segfault")) == -11
    assert "Fatal Python error: Segmentation fault" in run.text("rank-0.err")


@on_every_python
def test_the_agent_serves_without_ptrace(run: LaunchedRun, interpreter: Interpreter) -> None:
    rank = run.rank(0, "wait", str(run.folder), python=interpreter.path)
    [socket] = wait_for("the agent", lambda: list(run.agents.rglob("*.sock")))
    assert socket.name == f"{rank.pid}.sock"
    wait_for("the rank", lambda: run.text("ready.0") or (run.folder / "ready.0").exists())
    (run.folder / "go").touch()
    assert run.ends(rank) == 0
    assert not list(run.agents.rglob("*.sock")), "the agent has left its socket"


def test_an_agent_that_cannot_start_leaves_the_rank_going(run: LaunchedRun) -> None:
    assert run.ends(run.rank(0, "voices", env={"BREAKRANKS_RUN": "/proc/none"})) == 0
    assert_spoken(run.text("rank-0.out"))
    assert run.text("rank-0.err").count("breakranks: ") == 1, run.text("rank-0.err")


def test_without_an_agent_output_is_captured(tmp_path: Path) -> None:
    with LaunchedRun(tmp_path, preload_agent=False, keep_free_bytes=0) as run:
        assert run.ends(run.rank(0, "threads")) == 0
        assert "threads 1\n" in run.text("rank-0.out") and not run.agents.exists()


@on_every_python
def test_a_forked_child_has_no_thread_of_breakranks(run: LaunchedRun, interpreter: Interpreter) -> None:
    env = {"PYTHONWARNINGS": "always"}  # from 3.12 on, Python warns of a fork with threads
    assert run.ends(run.rank(0, "threads", python=interpreter.path, env=env)) == 0, run.text("rank-0.err")
    assert "forked threads 1\n" in run.text("rank-0.out") and not run.text("rank-0.err")


@pytest.mark.skipif(MPIRUN is None, reason="no mpirun on this machine")
def test_under_mpirun_lines_come_through_the_launcher_as_well(run: LaunchedRun) -> None:
    command = [str(MPIRUN), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, str(PROGRAM), "voices"]
    assert run.ends(run.launch(command)) == 0, run.seen()
    for rank in (0, 1):
        assert_spoken(run.text(f"rank-{rank}.out"))
        shown = [line for line in run.text("launcher.out").splitlines() if f":{rank}] " in line]
        assert [line.partition("] ")[2] for line in shown] == run.text(f"rank-{rank}.out").splitlines()
        assert run.record(rank)["shown"] == "relay"


def test_the_folder_of_an_outer_run_is_replaced(run: LaunchedRun, tmp_path: Path) -> None:
    inner = LaunchedRun(tmp_path / "run")
    environ = launch_environment(inner.startup, run.environ({"PYTHONPATH": "/own", "BREAKRANKS_LAUNCH": "x"}))
    assert environ["PYTHONPATH"] == f"{inner.startup}:/own" and "BREAKRANKS_LAUNCH" not in environ


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/tcsh"])
def test_open_mpi_starts_its_daemons_with_the_folder(run: LaunchedRun, shell: str) -> None:
    environ = launch_environment("/a/startup", {"SHELL": shell})
    agent = environ.get("OMPI_MCA_orte_launch_agent")
    assert agent == (None if "csh" in shell else "env PYTHONPATH=/a/startup:$PYTHONPATH orted")
    assert "OMPI_MCA_orte_launch_agent" not in launch_environment("/a b/startup", {"SHELL": shell})
    own = {"SHELL": shell, "OMPI_MCA_orte_launch_agent": "valgrind orted"}
    assert launch_environment("/a/startup", own)["OMPI_MCA_orte_launch_agent"] == "valgrind orted"


@on_every_python
def test_on_a_host_without_a_path_the_current_folder_is_not_searched(
    run: LaunchedRun, interpreter: Interpreter
) -> None:
    """GIVEN what Open MPI's daemon makes of an empty PYTHONPATH THEN modules in the current folder are not imported."""
    (run.folder / "module_here.py").touch()
    words = "import os; print(os.environ['PYTHONPATH']); import importlib.util as u; print(u.find_spec('module_here'))"
    program = run.folder / "below" / "program.py"
    program.parent.mkdir()
    program.write_text(words)
    command = ["env", f"PYTHONPATH={run.startup}:", interpreter.path, str(program)]
    assert run.ends(run.launch(command, {"RANK": "0", "WORLD_SIZE": "1"})) == 0
    assert run.text("rank-0.out") == f"{run.startup}\nNone\n"
