"""`breakranks run` in front of real launchers: the output of each rank once, in whole lines, and a rank's terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cluster.slurm import Slurm
from process.terminals import BREAKRANKS, CTRL_C, Place, Terminal
from process.test_run import wait_until_it_reads
from support.processes import MARK, Processes
from support.waiting import wait_for

from .running import BIN, HERE, PYTHON, TORCHRUN, free_port

PROGRAM = str(HERE / "printing_torch_program.py")
LONG = 180.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as made:
        yield made


def run(processes: Processes, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return processes.call([BREAKRANKS, "run", "--", *command], {**ENVIRONMENT, **environ}, deadline=LONG)


def port() -> str:
    return f"--master-port={free_port()}"


def times(text: str, line: str) -> int:
    return text.splitlines().count(line)


def assert_shown(done: subprocess.CompletedProcess[str], folder: Path, ranks: Sequence[int] = (0, 1)) -> None:
    """Each line of each rank is shown once, with its rank, and is in its file."""
    logs = folder / "breakranks-logs" / "latest"
    for rank in ranks:
        for words in ("begins", "ends"):
            assert times(done.stdout, f"[{rank}] rank {rank} {words}") == done.stdout.count(f"rank {rank} {words}") == 1
        assert times(done.stdout + done.stderr, f"[{rank}] rank {rank} warns") == 1
        assert (logs / f"rank-{rank}.out").read_text() == f"rank {rank} begins\nrank {rank} ends\n"


@pytest.mark.parametrize(
    "launcher",
    [
        [TORCHRUN, "--tee=3"],
        [PYTHON, "-m", "torch.distributed.run", "--redirects=3"],
    ],
    ids=lambda launcher: launcher[-1],
)
def test_torchrun(processes: Processes, tmp_path: Path, launcher: list[str]) -> None:
    pytest.importorskip("torch")
    logs = f"--log-dir={tmp_path / 'of-torchrun'}"
    done = run(processes, *launcher, logs, "--nproc-per-node=2", port(), PROGRAM)
    assert done.returncode == 0, done
    assert_shown(done, tmp_path)
    # The launcher's own files are as it makes them.
    kept = sorted((tmp_path / "of-torchrun").rglob("stdout.log"))
    assert [path.read_text() for path in kept] == [f"rank {rank} begins\nrank {rank} ends\n" for rank in range(2)]


def test_torchrun_that_restarts(processes: Processes, tmp_path: Path) -> None:
    """GIVEN a rank that fails WHEN torchrun starts the ranks again THEN each attempt has files of its own."""
    pytest.importorskip("torch")
    done = run(processes, TORCHRUN, "--nproc-per-node=2", "--max-restarts=1", port(), PROGRAM, "fail")
    assert done.returncode == 0, done
    logs = tmp_path / "breakranks-logs" / "latest"
    for rank in range(2):
        assert times(done.stdout, f"[{rank}] rank {rank} begins") == 2, done
        assert (logs / f"rank-{rank}.attempt-1.out").read_text().endswith(f"rank {rank} ends\n")
    assert "[1] AssertionError: the first attempt fails" in done.stderr.splitlines()
    assert "AssertionError: the first attempt fails" in (logs / "rank-1.err").read_text()


def test_accelerate(processes: Processes, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    words = ["launch", "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no"]
    rest = ["--dynamo_backend=no", f"--main_process_port={free_port()}", PROGRAM]
    done = run(processes, str(BIN / "accelerate"), *words, *rest)
    assert done.returncode == 0, done
    assert_shown(done, tmp_path)


def test_deepspeed(processes: Processes, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    words = ["--num_gpus=2", f"--master_port={free_port()}", PROGRAM]
    done = run(processes, str(BIN / "deepspeed"), *words, DS_ACCELERATOR="cpu")
    assert done.returncode == 0, done
    assert_shown(done, tmp_path)


@pytest.mark.parametrize("tags", [[], ["--tag-output"]], ids=["plain", "tags"])
def test_mpirun(processes: Processes, tmp_path: Path, tags: list[str]) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not here")
    options = ["--allow-run-as-root", "--oversubscribe", *tags]
    done = run(processes, "mpirun", *options, "-np", "2", PYTHON, PROGRAM, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done
    assert_shown(done, tmp_path)


@pytest.mark.parametrize("label", [[], ["--label"]], ids=["plain", "label"])
def test_srun(processes: Processes, tmp_path: Path, slurm: Slurm, label: list[str]) -> None:
    done = run(processes, "srun", *label, "-n2", PYTHON, PROGRAM, **slurm.environment)
    assert done.returncode == 0, done
    assert_shown(done, tmp_path)


def test_a_script_with_tee(processes: Processes, tmp_path: Path) -> None:
    """GIVEN a script that pipes its ranks into tee WHEN it runs THEN they are told apart, and its file is whole."""
    script = tmp_path / "train.sh"
    script.write_text(
        f"#!/bin/sh\nexport WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29999\n"
        f"(for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank {PYTHON} {PROGRAM} & done; wait) 2>&1 | tee all.log\n"
    )
    script.chmod(0o755)
    done = run(processes, "./train.sh")
    assert done.returncode == 0, done
    assert_shown(done, tmp_path)
    kept = (tmp_path / "all.log").read_text()
    assert all(f"rank {rank} ends" in kept for rank in range(2))


# ---- a rank with the terminal


def debug(terminal: Terminal, tmp_path: Path) -> None:
    """Type at rank 1: Ctrl-C at a prompt of its own, then pdb."""
    terminal.expect("name> ", LONG)
    terminal.keys("abc")
    terminal.expect("abc", LONG)
    wait_until_it_reads(tmp_path, 1)
    terminal.keys(CTRL_C)
    terminal.expect("interrupted", LONG)
    terminal.expect("(Pdb) ", LONG)
    terminal.keys("p rank + 4q\x7f0\r")
    terminal.expect("\n41", LONG)
    terminal.keys("c\r")
    wait_for("the end of rank 1", (tmp_path / "through").exists)
    assert "rank 0 begins" not in terminal.seen


def test_a_terminal_for_a_rank_of_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = [TORCHRUN, "--nproc-per-node=2", port(), PROGRAM, "debug", str(tmp_path)]
    with Processes(tmp_path) as processes, Place(tmp_path) as place:  # the one knows every process by its mark
        environ = {MARK: processes.mark, **ENVIRONMENT}
        terminal = place.terminal([BREAKRANKS, "run", "--debug-rank", "1", "--", *job], environ)
        debug(terminal, tmp_path)
        assert terminal.ends(LONG) == 0
        assert terminal.modes == terminal.before


def test_a_terminal_for_a_rank_of_msrun(tmp_path: Path) -> None:
    pytest.importorskip("mindspore")
    options = ["--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}", "--join=True"]
    job = [str(BIN / "msrun"), *options, f"--log_dir={tmp_path / 'logs'}", PROGRAM, "debug", str(tmp_path)]
    with Processes(tmp_path) as processes, Place(tmp_path) as place:
        environ = {MARK: processes.mark, **ENVIRONMENT}
        terminal = place.terminal([BREAKRANKS, "run", "--debug-rank", "1", "--", *job], environ)
        debug(terminal, tmp_path)
        # How msrun ends says nothing: MindSpore 2.10's scheduler fails half a minute after its workers have ended.
        wait_for("rank 0", lambda: "rank 0 ends" in (tmp_path / "breakranks-logs/latest/rank-0.out").read_text())
        assert terminal.modes == terminal.before
