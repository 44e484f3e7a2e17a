"""Command lines as they are shown: script and arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.snapshot.process_command import command_line, program

PYTHON = "/srv/shared/environments/experiment-12/.venv/bin/python3.11"
TORCHRUN = (PYTHON, "/srv/shared/environments/experiment-12/.venv/bin/torchrun", "--nproc-per-node", "8")
SCRIPT = "/home/someone/projects/experiment-12/train.py"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ((PYTHON, "train.py", "--lr", "3"), "train.py --lr 3"),
        ((PYTHON, "-u", "-X", "dev", "-Wignore", "-W", "error", "train.py"), "train.py"),
        ((PYTHON, "--check-hash-based-pycs", "never", "train.py", "-u"), "train.py -u"),
        ((PYTHON, "-m", "pkg.train", "-m", "x"), "pkg.train -m x"),
        ((PYTHON, "-um", "pkg.train"), "pkg.train"),
        ((PYTHON, "-mpkg.train", "7"), "pkg.train 7"),
        ((PYTHON, "-c", "import x"), "python3.11 -c 'import x'"),
        ((PYTHON,), "python3.11"),
        ((PYTHON, "-m"), "python3.11 -m"),
        (("/opt/bin/srun", "-n", "2", "a b", ""), "srun -n 2 'a b' ''"),
        ((*TORCHRUN, "train.py"), "torchrun --nproc-per-node 8 train.py"),
        ((), ""),
    ],
)
def test_script_and_arguments(command: tuple[str, ...], shown: str) -> None:
    assert command_line(command) == command_line(command, 60) == shown


def test_the_script_stays_in_sight() -> None:
    assert command_line((PYTHON, SCRIPT, "--lr", "3"), 60) == f"{SCRIPT} --lr 3"
    assert command_line((PYTHON, SCRIPT, "--lr", "3"), 40) == "train.py --lr 3"
    many = (*TORCHRUN, "--rdzv-endpoint", "a-host-with-a-long-name.example.org:29500", SCRIPT, "--lr", "3")
    assert command_line(many, 60) == "torchrun … train.py --lr 3"
    assert command_line((*many, "x" * 60), 60) == "torchrun … train.py --lr 3 " + 32 * "x" + "…"


@given(st.lists(st.sampled_from([PYTHON, "-m", "-c", "-u", "-W", "-", "x.py", "", "-mx", "--", "/a/", "-umc"])))
def test_any_command_line_can_be_shown(words: list[str]) -> None:
    assert bool(program(words)) == bool(words)
    assert len(command_line(words, 20)) <= 20
