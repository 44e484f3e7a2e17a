"""One rig a session: hosts n1 to n3 with sshd, and Slurm on them once a test wants it. Tests put back what they harm.

A module that needs odd hosts, or harms one for good, adds them to the rig for a time: ``rig.more({"n4": Odd(…)})``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import launch
from .nodes import Nodes, Odd
from .slurm import Slurm

_slurms: list[Slurm] = []


@pytest.fixture(scope="session")
def rig() -> Iterator[Nodes]:
    """n1 to n3; n2 greets whoever logs in."""
    with tempfile.TemporaryDirectory(prefix="rig-") as folder:
        os.chmod(folder, 0o755)  # a job of another user has its files there
        with Nodes(Path(folder), 3, ssh=True, odd={"n2": Odd(bashrc='echo "Welcome to $(hostname)"\n')}) as running:
            yield running


@pytest.fixture(scope="session")
def slurm_of_rig(rig: Nodes) -> Iterator[Slurm]:
    with Slurm(rig.folder / "slurm", rig) as running:
        _slurms.append(running)
        yield running
        _slurms.clear()


@pytest.fixture(scope="module")
def nodes(rig: Nodes) -> Iterator[Nodes]:
    """The rig, for a module; whatever it has done to the hosts is put back."""
    yield rig
    rig.mend()


@pytest.fixture(scope="module")
def slurm(nodes: Nodes, slurm_of_rig: Slurm) -> Iterator[Slurm]:
    """Slurm on the rig, for a module; whatever jobs are left are ended."""
    yield slurm_of_rig
    nodes.mend()
    slurm_of_rig.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add to a failure what the jobs on the hosts have said, and Slurm."""
    report = yield
    if report.failed and call.excinfo is not None:
        report.sections += [(f"job {job.folder.name}", job.seen()) for job in launch.running]
        report.sections += [("Slurm", slurm.seen()) for slurm in _slurms]
    return report
