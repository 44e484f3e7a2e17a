"""The synthetic hosts of bench/scale.py: what a controller makes of many of them is right, and not only fast."""

from __future__ import annotations

import gc
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import scale
import scale_agent

from support.processes import Processes

from .terminals import BREAKRANKS

HOSTS = 20
RANKS = set(range(HOSTS * scale_agent.RANKS))
CULPRIT = scale_agent.culprit(HOSTS)


@pytest.fixture
def collector() -> Iterator[None]:
    """The bench makes Python look for garbage rarely."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.fixture(scope="module")
def agents() -> Iterator[str]:
    with scale.nursery() as path:
        yield path


def breakranks(command: str, agents: str) -> dict[str, Any]:
    words = [sys.executable, "-ISc", scale_agent.MESSENGER, agents]
    target = f"exec:{shlex.join(words)} {{host}} {HOSTS}@h[1-{HOSTS}]"
    with Processes() as processes:
        done = processes.call([BREAKRANKS, command, target, "--json", "--deadline=60"])
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_all_hosts_agents_give_one_tree(agents: str) -> None:
    # WHEN
    found = breakranks("stacks", agents)

    # THEN each stack has exactly the ranks that stand on it
    expected = [
        {rank for rank in RANKS - {CULPRIT} if rank % scale_agent.WAYS == way} for way in range(scale_agent.WAYS)
    ]
    classes = [set(numbers(one["ranks"])) for one in found["classes"]]
    assert sorted(classes, key=sorted) == sorted([*expected, {CULPRIT}], key=sorted)


def test_all_hosts_agents_give_one_verdict(agents: str) -> None:
    # WHEN
    found = breakranks("why", agents)

    # THEN
    assert numbers(found["verdict"]["culprits"]) == [CULPRIT]
    assert set(numbers(found["verdict"]["victims"])) == RANKS - {CULPRIT}
    assert f"(h{CULPRIT // scale_agent.RANKS + 1}, pid " in found["verdict"]["summary"]


def test_what_is_measured_is_right(agents: str, collector: None, tmp_path: Path) -> None:
    # WHEN
    live = scale.live(HOSTS, agents)
    recorded = scale.recorded(scale.Recording(HOSTS, tmp_path))

    # THEN
    scale.check(live)
    scale.check(recorded)
    assert [step.name for step in live.steps] == [step.name for step in recorded.steps]
    assert live.bytes["why"] < 20_000


def test_an_agent_without_a_nursery(collector: None) -> None:
    scale.check(scale.live(2, None))


def test_growth_tells_hosts_from_their_square() -> None:
    def runs(power: int) -> list[scale.Result]:
        made = ((n, [scale.Step("start", 0.0, 3e-6 * n**power)]) for n in (50, 100, 400))
        return [scale.Result(n, steps, {}, 0, 0, 0, "") for n, steps in made]

    assert scale.growth(runs(1), 0) == pytest.approx(1)
    assert scale.growth(runs(2), 0) == pytest.approx(2)


def numbers(text: str) -> list[int]:
    from breakranks.rankset import RankSet

    return list(RankSet.parse(text))
