"""What a job may do in its processes without minding breakranks: close files, replace streams, wait for signals."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakranks.run.run_folder import RunFolder
from support.targets import OTHERS, Interpreter, on_every_python

from .launched_run import LaunchedRun

ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1"}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LaunchedRun]:
    with LaunchedRun(tmp_path) as run:
        yield run


def python(words: str, path: str = sys.executable) -> list[str]:
    return [path, "-c", words]


def test_results_that_a_script_writes_are_not_written_to(run: LaunchedRun) -> None:
    """GIVEN a task that sends what one Python prints into a file WHEN the next one prints THEN that goes elsewhere."""
    script = f"{sys.executable} -c 'print(1)' > results.json; {sys.executable} -c 'print(\"from rank\")'; true"
    assert run.ends(run.launch(["bash", "-c", script], {"RANK": "0", "WORLD_SIZE": "1"})) == 0
    assert (run.folder / "results.json").read_text() == "1\n"
    assert run.text("rank-0.out") == "from rank\n"


def test_a_program_that_closes_its_output_has_an_end(run: LaunchedRun) -> None:
    assert run.ends(run.launch(python("import sys; print(1); sys.stdout.close()"), ONE_RANK)) == 0
    assert run.text("rank-0.out") == "1\n" and run.record(0, kind="end")


def test_a_program_after_exec_prints_by_line(run: LaunchedRun) -> None:
    words = (
        "import os, sys; os.execl(sys.executable, sys.executable, '-c', 'import sys; print(sys.stdout.line_buffering)')"
    )
    assert run.ends(run.launch(python(words), ONE_RANK)) == 0
    assert run.text("rank-0.out") == "True\n"


INTERPRETERS = """
try:
    import _interpreters as made
    kinds = [made.create("isolated"), made.create("legacy")]
except ImportError:
    import _xxsubinterpreters as made
    kinds = [made.create(isolated=True), made.create(isolated=False)]
for number in kinds:
    getattr(made, "run_string")(number, "import sys; print(len(sys.modules) > 0, flush=True)")
    made.destroy(number)
"""


@on_every_python
def test_other_interpreters_in_a_rank_have_nothing(run: LaunchedRun, interpreter: Interpreter) -> None:
    """An interpreter in which a thread runs cannot be destroyed: the process would abort."""
    assert run.ends(run.launch(python(INTERPRETERS, interpreter.path), ONE_RANK)) == 0, run.text("rank-0.err")
    assert (run.text("rank-0.out"), run.text("rank-0.err")) == ("True\nTrue\n", "")


AWAITED = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1)
"""


@on_every_python
def test_a_signal_that_the_job_waits_for_comes_to_it(run: LaunchedRun, interpreter: Interpreter) -> None:
    assert run.ends(run.launch(python(AWAITED, interpreter.path), ONE_RANK)) == 0
    assert run.text("rank-0.out") == "True\n"


DAEMON = """
import os
os.closerange(3, 4096)
own = [fd for _ in range(200) for fd in os.pipe()]
child = os.fork()
lost = [fd for fd in own if not os.path.exists(f"/proc/self/fd/{fd}")]
print("lost", lost, flush=True)
if child:
    os.waitpid(child, 0)
"""


def test_files_of_a_job_that_has_closed_all_others_stay_open(run: LaunchedRun) -> None:
    assert run.ends(run.launch(python(DAEMON), ONE_RANK)) == 0
    assert run.text("rank-0.out") == "lost []\n" * 2


def test_filters_of_warnings_can_be_sent_to_a_process_without_breakranks(run: LaunchedRun) -> None:
    words = "import pickle, warnings; print(b'breakranks' in pickle.dumps(warnings.filters))"
    for interpreter in OTHERS:
        if os.path.exists(interpreter.path):
            assert run.ends(run.launch(python(words, interpreter.path), ONE_RANK)) == 0
    assert set(run.text("rank-0.out").split()) <= {"False"}, run.text("rank-0.out")


def test_a_job_within_a_rank_prints_without_a_prefix(run: LaunchedRun) -> None:
    """GIVEN a rank that reads what its own torchrun prints THEN that is what it prints without breakranks."""
    (run.folder / "torchrun").write_text(
        "import os, subprocess, sys\nenv = dict(os.environ, RANK='0', LOCAL_RANK='0', TORCHELASTIC_RUN_ID='9')\n"
        "subprocess.run([sys.executable, '-c', 'print(42)'], env=env, check=True)\n"
    )
    words = "import subprocess, sys; print(subprocess.run([sys.executable, 'torchrun'], stdout=-1).stdout)"
    assert run.ends(run.launch(python(words), ONE_RANK)) == 0
    assert run.text("rank-0.out") == "b'42\\n'\n"


def test_a_process_that_outlives_the_run_is_left_alone(run: LaunchedRun) -> None:
    """GIVEN a run that has ended WHEN a job starts that has its variables, as sbatch passes them on THEN it is not a
    rank of it."""
    RunFolder(run.run_folder).mark_ended()
    assert run.ends(run.rank(0, "voices")) == 0
    assert "from print\n" in run.text("launcher.out") and not os.listdir(run.run_folder / "ranks")


def test_an_exception_that_a_library_only_prints_keeps_nothing(tmp_path: Path) -> None:
    words = "import sys\ntry:\n  1 / 0\nexcept ZeroDivisionError:\n  sys.excepthook(*sys.exc_info())\nprint('on')"
    with LaunchedRun(tmp_path, on_crash="keep") as run:
        assert run.ends(run.launch(python(words), ONE_RANK)) == 0
        assert run.text("rank-0.out") == "on\n" and "ZeroDivisionError" in run.text("rank-0.err")


LIMITED = """
import os, resource, time
from pathlib import Path
log, own = os.stat(1), os.open("own.log", os.O_WRONLY | os.O_CREAT, 0o600)
os.dup2(own, 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
os.write(1, b"x" * (7 << 20))
end = time.monotonic() + 120
while os.fstat(1).st_ino == log.st_ino and time.monotonic() < end:
    time.sleep(0.02)
os.write(1, b"y" * (7 << 20))
os.write(2, b"own")
Path("done").touch()
"""


def test_the_largest_size_of_a_file_does_not_end_a_job(run: LaunchedRun) -> None:
    """GIVEN a limit (ulimit -f) WHEN a rank prints more THEN its output goes elsewhere; what it has put in the place
    of a stream itself stays there."""
    run.ends(run.launch(python(LIMITED), ONE_RANK))
    assert (run.folder / "done").exists(), run.seen()
    assert (run.folder / "own.log").read_text() == "own"
    assert "y" not in run.text("rank-0.out")
    assert "ulimit -f" in run.text("rank-0.err")
