"""The simulator behind bench/fr_generator.py: what it says is true must be in what it writes."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import fr_generator

SMALL: dict[str, Any] = {"ranks": 16, "entries": 200}


def dumps(folder: Path) -> dict[int, dict[str, Any]]:
    return {
        int(path.name.removeprefix(fr_generator.PREFIX)): pickle.loads(path.read_bytes()) for path in folder.iterdir()
    }


def pending(dump: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in dump["entries"] if not entry["retired"]]


def every_job() -> list[tuple[str, str, str]]:
    jobs = []
    for name, scenario in fr_generator.SCENARIOS.items():
        for layout in scenario.layouts:
            for semantics in ("nccl", "blocking"):
                jobs.append((name, layout, semantics))
    return jobs


def test_the_same_seed_gives_the_same_dumps(tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        fr_generator.generate(tmp_path / folder, scenario="partial", seed=seed, **SMALL)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc"]
    assert files[0] == files[1]
    assert files[0] != files[2]


@pytest.mark.parametrize(("scenario", "layout", "semantics"), every_job())
def test_who_waits_leads_to_the_culprits(scenario: str, layout: str, semantics: str) -> None:
    truth, recorder = fr_generator.simulate(
        scenario=scenario, layout=layout, semantics=semantics, ranks=16, entries=140
    )
    blocked = recorder.run.blocked()
    if scenario == "healthy_in_flight":
        assert blocked == set(range(16))
        assert not any(truth.waits.values())
        return
    if truth.kind is None:
        assert not blocked
        return
    # Everybody is blocked but those who do something else.
    assert set(truth.victims) | set(truth.culprits) == set(range(16))
    # Follow whom a rank waits for: in the end there are the culprits, or an operation that they do not fit in.
    for rank in truth.victims:
        if rank not in truth.waits:
            continue  # its first operation waits for an earlier one of its own
        seen, todo = {rank}, [rank]
        while todo:
            for other in truth.waits.get(todo.pop(), []):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        ends = {other for other in seen if not truth.waits.get(other)}
        if truth.kind == fr_generator.MISMATCH:
            assert ends
        elif ends:
            assert ends <= set(truth.culprits)
        else:  # a cycle
            assert seen >= set(truth.culprits)


@pytest.mark.parametrize("layout", fr_generator.LAYOUTS)
def test_a_healthy_job_has_nothing_pending(layout: str, tmp_path: Path) -> None:
    truth = fr_generator.generate(tmp_path / "dumps", scenario="healthy", layout=layout, **SMALL)
    assert (truth.kind, truth.culprits, truth.victims) == (None, [], [])
    written = dumps(tmp_path / "dumps")
    assert sorted(written) == list(range(16))
    assert not any(pending(dump) for dump in written.values())


def test_a_cascade_blocks_several_groups(tmp_path: Path) -> None:
    truth = fr_generator.generate(tmp_path / "dumps", scenario="cascade", culprit=3, semantics="blocking", **SMALL)
    written = dumps(tmp_path / "dumps")
    assert not pending(written.pop(3))
    assert len({pending(dump)[0]["process_group"] for dump in written.values()}) > 2
    assert truth.victims == sorted(written)
    assert json.loads((tmp_path / "dumps.truth.json").read_text())["culprits"] == [3]
    assert len(list((tmp_path / "dumps").iterdir())) == 16


def test_wrapped_rings_are_full_and_begin_at_different_records(tmp_path: Path) -> None:
    fr_generator.generate(tmp_path / "dumps", scenario="healthy_wrapped", **SMALL)
    written = dumps(tmp_path / "dumps")
    assert {len(dump["entries"]) for dump in written.values()} == {SMALL["entries"]}
    first = {dump["entries"][0]["record_id"] for dump in written.values()}
    assert len(first) > 1
    assert min(first) > 0
    for dump in written.values():
        ids = [entry["record_id"] for entry in dump["entries"]]
        assert ids == list(range(ids[0], ids[0] + len(ids)))
    # What is the same collective has the same number everywhere.
    last = {
        max(entry["collective_seq_id"] for entry in dump["entries"] if entry["pg_id"] == 0) for dump in written.values()
    }
    assert len(last) == 1


def test_a_lost_dump_is_not_there_and_the_others_are(tmp_path: Path) -> None:
    truth = fr_generator.generate(tmp_path / "dumps", scenario="dead", culprit=5, **SMALL)
    assert (truth.culprits, truth.absent) == ([5], [5])
    assert sorted(dumps(tmp_path / "dumps")) == [rank for rank in range(16) if rank != 5]


def test_hosts_run_ahead_under_nccl_only() -> None:
    ahead = []
    for semantics in ("nccl", "blocking"):
        _, recorder = fr_generator.simulate(scenario="behind", semantics=semantics, culprit=1, **SMALL)
        done = len(recorder.run.issued[1])
        ahead.append(len(recorder.run.issued[0]) - done)
    assert ahead[0] > 20
    assert ahead[1] == 1


def test_sends_and_receives_count_ranks_within_the_group(tmp_path: Path) -> None:
    fr_generator.generate(tmp_path / "dumps", scenario="healthy", layout="pp", **SMALL)
    for rank, dump in dumps(tmp_path / "dumps").items():
        for entry in dump["entries"]:
            if entry["is_p2p"]:
                members = json.loads(dump["pg_config"][entry["process_group"][0]]["ranks"])
                ends = entry["profiling_name"].split()[1].replace("->", " ").replace("<-", " ").split()
                assert members[int(ends[0])] == rank


@pytest.mark.parametrize("version", fr_generator.VERSIONS)
def test_json_and_pickle_say_the_same(version: str, tmp_path: Path) -> None:
    options = {**SMALL, "scenario": "pp_stall", "version": version, "timing": True}
    fr_generator.generate(tmp_path / "pickle", **options)
    fr_generator.generate(tmp_path / "json", as_json=True, **options)
    for rank, dump in dumps(tmp_path / "pickle").items():
        other = json.loads((tmp_path / "json" / f"{fr_generator.PREFIX}{rank}.json").read_text())
        assert dump["version"] == other["version"] == version
        for ours, theirs in zip(dump["entries"], other["entries"], strict=True):
            assert 5 <= len(ours.pop("frames")) <= 16
            plain = {key: 0 if value is None else value for key, value in ours.items()}
            assert json.loads(json.dumps(plain)) == theirs


def test_gloo_has_its_holes(tmp_path: Path) -> None:
    fr_generator.generate(tmp_path / "dumps", scenario="missing", semantics="gloo", culprit=2, **SMALL)
    for rank, dump in dumps(tmp_path / "dumps").items():
        assert dump["pg_config"] == {"": {"name": "", "desc": "", "ranks": "[]"}}
        assert {entry["state"] for entry in dump["entries"]} == {"scheduled"}
        assert len(pending(dump)) == (rank != 2)


def test_what_cannot_be_simulated_is_said() -> None:
    with pytest.raises(ValueError, match="records no sends"):
        fr_generator.simulate(scenario="p2p_cycle", semantics="gloo", **SMALL)
    with pytest.raises(ValueError, match="needs one of the layouts"):
        fr_generator.simulate(scenario="pp_stall", layout="world", **SMALL)
