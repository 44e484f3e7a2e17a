"""The jobs of the generator, under each way in which hosts and devices behave, explained from their dumps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from breakranks.explain.verdict import explain
from breakranks.observe.dump_snapshot import load
from breakranks.rankset import RankSet
from breakranks.show.wording.finding_wording import summary

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import fr_generator

# gloo does not record sends and receives: nothing of these would be in its dumps.
ONLY_TRANSFERS = ("p2p_cycle", "p2p_missing", "p2p_skipped", "pp_stall")
CASES = [
    (name, scenario.layouts[0], semantics)
    for name, scenario in fr_generator.SCENARIOS.items()
    for semantics in ("nccl", "blocking", "gloo")
    if semantics != "gloo" or name not in ONLY_TRANSFERS
]


@pytest.mark.parametrize(("scenario", "layout", "semantics"), CASES)
def test_the_dumps_name_who_is_to_blame(tmp_path: Path, scenario: str, layout: str, semantics: str) -> None:
    # GIVEN the dumps of a job of which it is known what is wrong with it
    truth = fr_generator.generate(
        tmp_path / "dumps", scenario=scenario, layout=layout, semantics=semantics, ranks=16, entries=100, seed=7
    )

    # WHEN
    diagnosis = explain(load(str(tmp_path / "dumps")))

    # THEN
    verdict = diagnosis.verdict
    if truth.kind is None:
        assert verdict is None, verdict
        return
    assert verdict is not None
    assert verdict.kind in (truth.kind, *truth.kinds), summary(verdict)
    culprits = set(RankSet.parse(verdict.culprits))
    if scenario == "two_roots":  # two causes are two findings
        culprits = {r for one in diagnosis.findings if not one.informational for r in RankSet.parse(one.culprits)}
    assert truth.names(culprits), summary(verdict)


@pytest.mark.parametrize("version", ["2.10", "2.7", "2.4", "2.2", "1.4"])
@pytest.mark.parametrize("scenario", ["missing", "op", "cascade"])
def test_dumps_of_older_versions(tmp_path: Path, scenario: str, version: str) -> None:
    truth = fr_generator.generate(
        tmp_path / "dumps", scenario=scenario, ranks=16, entries=60, seed=3, version=version, culprit=5
    )
    verdict = explain(load(str(tmp_path / "dumps"))).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.culprits) == (truth.kind, "5")


def test_a_version_that_names_no_groups_says_so(tmp_path: Path) -> None:
    fr_generator.generate(tmp_path / "dumps", scenario="cascade", ranks=16, entries=60, seed=3, version="1.1")
    snapshot = load(str(tmp_path / "dumps"))
    assert {group.name for group in snapshot.groups} == {"0"}
    assert "version 1.1" in snapshot.problems[0].what
