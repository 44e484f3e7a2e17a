"""An agent in a real rank goes on, whatever it is told. `scripts/fuzz --reader rank-hears` tries many more."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import readers

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def rank() -> Iterator[None]:
    yield
    readers.close()


@QUICK
@given(chance=st.randoms(use_true_random=False))
def test_what_was_changed(chance: random.Random) -> None:
    readers.tried("rank-hears", readers.varied("rank-hears", chance))


@QUICK
@given(data=st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    readers.tried("rank-hears", data)


def test_what_it_understands() -> None:
    for data in readers.READERS["rank-hears"].seeds():
        assert readers.tried("rank-hears", data) == "read"
