"""Into jobs of torch that nobody prepared: in a barrier, a training, a loader, a backward. They end as if untouched."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from process.attaching import threads_of
from support.processes import inherited
from support.stalls import undisturbed

from .running import BIN, HERE, Launch, wait_for

pytest.importorskip("torch")

PROGRAM = HERE / "attach_torch_program.py"
BREAKRANKS = str(BIN / "breakranks")
SHORT = 4.0  # seconds that the group of mode ``timeout`` waits


class Job(Launch):
    """Ranks of the program. Their folder is the one where they look for ``end``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.agents = tempfile.mkdtemp(prefix="breakranks-test-", dir="/tmp")
        self.status = 0  # of the last command

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        shutil.rmtree(self.agents, ignore_errors=True)

    def begin(self, mode: str, ranks: int, *, torchrun: bool = False) -> None:
        start = self.torchrun if torchrun else self.by_hand
        start(ranks, str(PROGRAM), mode, env={"BREAKRANKS_RUN": self.agents})
        wait_for(f"{ranks} ranks", lambda: len(self.pids_of_ranks()) == ranks)

    def pids_of_ranks(self) -> dict[int, int]:
        found = {}
        for path in self.folder.glob("ready.*"):
            if path.read_text():
                found[int(path.suffix[1:])] = int(path.read_text())
        return found

    def is_in(self, rank: int, function: str) -> bool:
        words = [str(BIN / "py-spy"), "dump", "--nonblocking", "--pid", str(self.pids_of_ranks()[rank])]
        return f" {function} (" in subprocess.run(words, capture_output=True, text=True, timeout=60).stdout

    @property
    def target(self) -> str:
        return "pid:" + ",".join(str(pid) for _, pid in sorted(self.pids_of_ranks().items()))

    def run(self, *words: str, status: int | None = 0) -> str:
        """What a command shows. Without a ``status`` any is right; ``self.status`` has it."""
        done = subprocess.run(
            [BREAKRANKS, *words],
            env={**inherited(), "BREAKRANKS_RUN": self.agents, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert "Traceback" not in done.stdout + done.stderr
        assert status in (None, done.returncode), f"{done.returncode} {done.stdout} {done.stderr}\n{self.output}"
        self.status = done.returncode
        return done.stdout

    def attach(self, *commands: str, options: tuple[str, ...] = (), status: int | None = 0, target: str = "") -> str:
        asked = [word for command in commands for word in ("-c", command)]
        return self.run("attach", target or self.target, *options, *asked, status=status)

    def stop(self, *commands: str, target: str = "") -> str:
        """The same, once somebody stops: who just waits in C is only looked at, and not stepped."""

        def stopped() -> str | None:
            shown = self.attach(*commands, status=None, target=target)
            return shown if self.status == 0 and re.search(r"^ranks? \S+ stopped", shown, re.M) else None

        return wait_for("an attach stops somebody", stopped)

    def eval(self, *words: str) -> list[dict[str, Any]]:
        return list(json.loads(self.run("eval", self.target, "--json", *words))["answers"])

    def left(self) -> None:
        """Nothing of ours is in any rank any more."""

        pids = self.pids_of_ranks().values()
        wait_for("our threads to have gone", lambda: not any(threads_of(pid, "breakranks") for pid in pids))

    def ends(self) -> dict[str, str]:
        """Let it end; what each rank said."""
        (self.folder / "end").touch()
        assert [one.wait(timeout=90) for one in self.started] == [0] * len(self.started), self.output
        assert "Traceback" not in self.output and "Error" not in self.output, self.output
        return dict(re.findall(r"^RESULT (\d+) (.*)$", self.output, re.MULTILINE))


def line_of(mark: str) -> int:
    [found] = [at for at, line in enumerate(PROGRAM.read_text().splitlines(), 1) if line.endswith(f"# {mark}")]
    return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as job:
        yield job


def test_a_job_that_hangs_in_a_barrier(job: Job) -> None:
    """GIVEN three ranks in a barrier that one does not come to WHEN asked THEN they answer, and it ends as ever."""
    job.begin("hang", 4, torchrun=True)
    wait_for(
        "three ranks to be in the barrier",
        lambda: all(job.is_in(rank, "barrier") for rank in range(3)),
    )
    found = job.eval("--ranks", "0-2", "--frame", "hang", "secret.tolist()")
    assert [(one["ranks"], one["value"]) for one in found] == [
        ("0", "[0, 0, 0]"), ("1", "[0, 1, 2]"), ("2", "[0, 2, 4]"),
    ]  # fmt: skip
    shown = job.attach("w", "rank 3 n", "p dist.get_world_size()", "interrupt 0", "go", status=0)
    assert "ranks 0-2: blocked in barrier" in shown, shown
    assert "rank 3 stopped" in shown
    assert "[0-2] " in shown or "[0-3] 4" in shown
    shown = job.attach("p dist.all_reduce(secret)", options=("--no-stop",), status=1)
    assert "refused" in shown  # a collective from a thread of ours would tear the job apart
    job.left()
    assert job.ends() == {"0": "0", "1": "3", "2": "6", "3": "9"}


def test_a_training_that_is_stopped_and_stepped_on_all_ranks(job: Job) -> None:
    job.begin("train", 2)
    for _ in range(2):
        shown = job.attach("w", "all p __name__", "all n", "all n", "go", status=None)
        assert "stopped" in shown and re.search(r"ranks? [01-]+ resumes?", shown), shown
        assert job.status == 0 or "which is held" in shown, shown  # one came into a collective, the other not yet
    shown = job.attach(
        f"tbreak {PROGRAM}:{line_of('forward')}", "go", "wait", "all p step", "all n", "all p loss", "go"
    )
    assert "tensor(" in shown, shown
    job.left()
    assert job.ends() == {"0": "wrong 0 rounds 1", "1": "wrong 0 rounds 1"}


def test_one_rank_is_stopped_for_longer_than_the_groups_timeout(tmp_path: Path) -> None:
    """The timeouts of the others are long meanwhile, and then as they were."""
    folders = (tmp_path / str(number) for number in range(9))

    def stop() -> None:
        folder = next(folders)
        folder.mkdir()
        with Job(folder) as job:
            job.begin("timeout", 2)
            shown = job.attach(f"p __import__('time').sleep({3 * SHORT})", "p 1 + 1", "go", options=("--rank", "1"))
            assert "rank 1 resumes" in shown, shown
            job.left()
            assert job.ends() == {"0": "1.0 4.0", "1": "1.0 4.0"}

    undisturbed(stop)  # the group has a timeout of its own


def test_a_rank_that_waits_for_its_data_loader(job: Job) -> None:
    job.begin("load", 2)
    for _ in range(3):
        numbers = job.eval("--frame", "load", "number")
        assert all(int(one["value"]) >= 0 for one in numbers)
        shown = job.stop("w", "n", "go")
        assert re.search(r"ranks? [01-]+ resumes?", shown), shown
    job.left()
    assert job.ends() == {"0": "39800.0", "1": "39800.0"}


def test_a_worker_of_a_data_loader(job: Job) -> None:
    job.begin("load", 1)
    pid = job.pids_of_ranks()[0]

    def workers() -> list[int]:
        text = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
        return [int(one) for one in text.split() if b"attach_torch" in Path(f"/proc/{one}/cmdline").read_bytes()]

    worker = wait_for("two workers", lambda: len(workers()) >= 2 and workers())[-1]
    for _ in range(3):
        shown = job.stop("p 6 * 7", "w", "n", "go", target=f"pid:{worker}")
        # In __getitem__ most of the time, else between two of them.
        assert re.search(r"^42$", shown, re.M) and "_worker_loop" in shown, shown
    job.left()
    assert job.ends() == {"0": "39800.0"}


def test_a_rank_in_a_backward(job: Job) -> None:
    job.begin("backward", 2)
    for _ in range(3):
        shown = job.attach("w", "p 1", "n", "go")
        assert "stopped" in shown and re.search(r"ranks? [01-]+ resumes?", shown), shown
    assert "grad" in job.attach("threads", "w", options=("--no-stop",))
    job.left()
    assert job.ends() == {"0": "1", "1": "1"}
