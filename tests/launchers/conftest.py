"""One Slurm a session, for the launchers' tests that want it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.slurm import Slurm


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm") / "rig") as running:
        yield running
