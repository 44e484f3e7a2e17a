"""Start a job of the zoo, wait until it is in its state, and clean up."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.processes import Processes, alive, inherited
from support.waiting import free_port, wait_for

from . import proc
from .case import Case, ranks_of

JOBS = Path(__file__).parent / "jobs"
BIN = Path(sys.executable).parent

WHY_DEADLINE = 120.0
# A blocked rank does not run for this time, except for what a polling loop takes.
STANDS_FOR = 0.5
POLLING_SHARE = 0.04  # of a CPU


class ZooError(Exception):
    """The job did not reach its state: an error of the zoo, not of the code under test."""


@dataclass
class Running:
    """A job in its state. `pids` are those of the ranks, from the marks that they wrote."""

    case: Case
    folder: Path
    processes: Processes
    settled_after: float = 0.0
    # Marks that were seen in the function that the table names.
    standing: set[str] = field(default_factory=set)

    @property
    def launcher(self) -> subprocess.Popen[bytes]:
        return self.processes.started[-1]

    @property
    def pids(self) -> dict[int, int]:
        marks = {rank: self.mark(str(rank)) for rank in range(self.case.ranks)}
        return {rank: pid for rank, pid in marks.items() if pid is not None}

    def mark(self, name: str) -> int | None:
        """The pid that wrote `ready.NAME`, or None if the file does not exist yet."""
        try:
            return int((self.folder / f"ready.{name}").read_text())
        except (OSError, ValueError):
            return None

    def files(self) -> dict[str, str]:
        """The files of the job that the table names, and what the job wrote into them."""
        return {name: (self.folder / name).read_text().strip() for name in self.case.files}

    def log(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")
        return ""


@contextlib.contextmanager
def running(case: Case, python: str = sys.executable) -> Iterator[Running]:
    """The job of one case, in its state. On exit it is ended, with all processes that it started.

    `python` runs the programs; a launcher of torch always has the Python of the tests.
    """
    # The real path: a verdict contains the kernel's name of a file.
    folder = Path(tempfile.mkdtemp(prefix=f"zoo-{case.name}-")).resolve()
    close: list[int] = []
    began = time.monotonic()
    try:
        with Processes(folder) as processes:
            job = Running(case, folder, processes)
            (folder / "tmp").mkdir()
            case.prepare(folder)
            if case.other:
                _start(job, [python, str(JOBS / f"{case.other}.py")])
                _wait_until(job, "the process beside the job", lambda: _marked(job, ("other",)))
            _start(job, _command(case, python), _stdin(case.stdin, close))
            _wait_until(job, "every rank to say that it is ready", lambda: _marked(job, case.marks))
            for name, number in case.signals:
                os.kill(job.mark(name) or 0, number)
            _wait_until(job, "the ranks to stand where they should", lambda: _settled(job))
            job.settled_after = time.monotonic() - began
            yield job
    finally:
        for descriptor in close:
            os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def why(job: Running, *options: str) -> tuple[int, dict]:
    """Run `breakranks why --json` for this job, and return its exit status and its answer.

    It is run without `--job`, as a user would, unless it reports other jobs on the machine.
    """
    status, answer = breakranks("why", "--json", *options)
    if status == 2 and "--job" in answer["error"]:
        return breakranks("why", "--json", "--job", key_of(job), *options)
    return status, answer


def key_of(job: Running) -> str:
    status, seen = breakranks("ps", "--json")
    assert status == 0, seen
    ranks = set(job.pids.values())
    ours = [one["key"] for one in seen["jobs"] if ranks & {process["pid"] for process in one["processes"]}]
    assert len(ours) == 1, f"ps shows these ranks in {len(ours)} jobs, {ours}: {seen}"
    return ours[0]


def breakranks(*arguments: str) -> tuple[int, dict]:
    """Run a command that prints JSON, and return its exit status and its output, or its error messages."""
    command = [str(BIN / "breakranks"), *arguments]
    done = subprocess.run(command, env=inherited(), capture_output=True, text=True, timeout=WHY_DEADLINE, check=False)
    if done.returncode == 2:
        return 2, {"error": done.stderr}
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        said = f"{' '.join(arguments)}: status {done.returncode}, no JSON\n{done.stdout}{done.stderr}"
        raise AssertionError(said) from None


def look(job: Running, *, native: bool = True) -> str:
    """What py-spy and /proc show of every process of the job, for the authors of rules."""
    lines = []
    names = {pid: f"rank {rank}" for rank, pid in job.pids.items()}
    for pid in job.processes.living():
        seen = proc.stat(pid)
        if seen is None:
            continue
        lines.append(f"== {names.get(pid, '-')} pid {pid} state {seen.state} cpu {seen.cpu:.1f} s")
        lines.append(f"   {proc.command(pid)[:150]}")
        for tid in sorted(os.listdir(f"/proc/{pid}/task"), key=int)[:12]:
            lines.append(f"   tid {tid} {_thread_words(pid, tid)}")
        if pid in names or "python" in proc.command(pid).split(" ")[0]:
            # py-spy cannot stop a process that is already stopped.
            dump = stacks(pid, native=native and seen.state != "T")
            lines += [line[:120] for line in dump.splitlines()[3:]]
    return "\n".join(lines)


def stacks(pid: int, *, native: bool = False) -> str:
    """`py-spy dump` of one process. Without `native` the process is not stopped, which works for a stopped one too."""
    options = ["--native"] if native else ["--nonblocking"]
    try:
        done = subprocess.run(
            [str(BIN / "py-spy"), "dump", *options, "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "py-spy did not answer in 60 s"
    return done.stdout + done.stderr


def _thread_words(pid: int, tid: str) -> str:
    words = []
    for name in ("comm", "wchan", "syscall"):
        try:
            with open(f"/proc/{pid}/task/{tid}/{name}") as file:
                words.append(file.read().strip()[:60])
        except OSError as error:
            words.append(f"({error.strerror})")
    seen = proc.stat(int(tid))
    return " | ".join([seen.state if seen else "?", *words])


def _environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": f"{BIN}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "ZOO_DIR": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "BREAKRANKS_RUN": str(folder / "run"),
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        "OMP_NUM_THREADS": "1",
        "MAX_JOBS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        # The shared memory of Open MPI is removed with the folder, even if mpirun is killed.
        "OMPI_MCA_btl_vader_backing_directory": str(folder / "tmp"),
    }


def _command(case: Case, python: str) -> list[str]:
    program, count = str(JOBS / f"{case.name}.py"), str(case.ranks)
    if case.launcher == "torchrun":
        return [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={count}", program]
    if case.launcher == "mpirun":
        return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", count, python, program]
    if case.launcher == "shell":
        # A background process of a shell has no stdin by default.
        loop = 'for rank in $STARTED; do RANK=$rank LOCAL_RANK=$rank "$0" "$1" <&0 & done; wait'
        started = " ".join(str(rank) for rank in sorted(case.starts))
        variables = [f"WORLD_SIZE={count}", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={free_port()}"]
        return ["env", *variables, f"STARTED={started}", "bash", "-c", loop, python, program]
    if case.launcher == "python":
        return ["env", f"ZOO_PORT={free_port()}", python, program]
    raise ZooError(f"{case.name}: no launcher {case.launcher!r}")


def _stdin(kind: str, close: list[int]) -> int:
    """A stdin without input and without end. Its other end stays open until the job is ended."""
    if kind == "null":
        return subprocess.DEVNULL
    ours, theirs = reversed(os.pipe()) if kind == "pipe" else pty.openpty()
    close += [ours, theirs]
    return theirs


def _start(job: Running, command: list[str], stdin: int = subprocess.DEVNULL) -> None:
    with open(job.folder / "log", "ab") as log:
        job.processes.start(
            command, _environment(job.folder), stdin=stdin, stdout=log, stderr=log, start_new_session=True
        )


def _wait_until(job: Running, what: str, missing: Callable[[], str]) -> None:
    """Wait until `missing` returns an empty value."""
    lacks = ""

    def nothing_is_missing() -> bool:
        nonlocal lacks
        lacks = missing()
        if lacks and any(one.poll() is not None for one in job.processes.started):
            raise ZooError(f"{job.case.name}: ended by itself, {lacks}\n{job.log()[-3000:]}")
        return not lacks

    try:
        wait_for(what, nothing_is_missing)
    except AssertionError as late:
        raise ZooError(f"{job.case.name}: {late}: {lacks}\n{job.log()[-3000:]}") from None


def _marked(job: Running, names: tuple[str, ...]) -> str:
    lacking = [name for name in names if job.mark(name) is None]
    return f"no mark of {', '.join(lacking)}" if lacking else ""


def _settled(job: Running) -> str:
    """What is missing until the ranks are in the functions of the table, the gone ones have ended, the stopped ones are
    stopped, and only the busy ones run."""
    case, pids = job.case, job.pids
    for rank in ranks_of(case.gone):
        if rank in pids and alive(pids[rank]):
            return f"rank {rank} is still there"
    for name, number in case.signals:
        seen = proc.stat(job.mark(name) or 0)
        if number == signal.SIGSTOP and (seen is None or seen.state != "T"):
            return f"{name} is not stopped yet"
        if number == signal.SIGKILL and seen is not None and seen.state != "Z":
            return f"{name} is not dead yet"
    for names, function in case.stands.items():
        for name in names.split(","):
            for mark in map(str, sorted(ranks_of(name))) if name[0].isdigit() else [name]:
                if not _stands(job, mark, function):
                    return f"{mark} is not in {function}"
    busy = ranks_of(case.busy)
    moving = _moving([pid for rank, pid in pids.items() if rank not in busy])
    if moving:
        job.standing.clear()
    return moving


def _stands(job: Running, mark: str, function: str) -> bool:
    """Whether it is in that function, by py-spy. It is checked until it was, and again if any rank has moved since."""
    if mark not in job.standing and (pid := job.mark(mark)) is not None and function in stacks(pid):
        job.standing.add(mark)
    return mark in job.standing


def _moving(pids: list[int]) -> str:
    """The processes that still use the CPU, or whose main thread has not reached its wait yet.

    `why` regards a rank that reaches its wait during the sampling as moving, and samples for longer than this harness.
    """
    before = {pid: (proc.stat(pid), proc.ran(pid)) for pid in pids}
    began = time.monotonic()
    time.sleep(STANDS_FOR)
    polls = POLLING_SHARE * (time.monotonic() - began)
    for pid, (one, ran) in before.items():
        two = proc.stat(pid)
        if one is None or two is None:
            continue
        if two.cpu - one.cpu > 0.05 or proc.ran(pid) - ran > polls:
            return f"pid {pid} is still working"
        if two.state in "RD":
            return f"pid {pid} is about to run"
    return ""
