"""One Slurm a session, for the launchers' tests that want it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.slurm import Slurm


@pytest.fixture(scope="session")
def slurm_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm") / "rig") as running:
        yield running


@pytest.fixture
def slurm(slurm_of_session: Slurm) -> Slurm:
    """Slurm without jobs: one whose srun was killed by an earlier test holds its processors for a while."""
    slurm_of_session.clear()
    return slurm_of_session
