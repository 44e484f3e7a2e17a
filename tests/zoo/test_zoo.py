"""Every job of the zoo is started under its real launcher and explained."""

from __future__ import annotations

import pytest

from .expected import CASES, Case, ranks_of
from .harness import Running, running, why


def named(case: Case) -> str:
    return case.name


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.kinds], ids=named)
def test_why_explains_the_broken_job(case: Case) -> None:
    # GIVEN a job that stands where the table says
    with running(case) as job:
        # WHEN
        status, answer = why()

        # THEN
        verdict = answer["verdict"]
        assert status == 1, answer
        assert verdict is not None, answer["classes"]
        assert verdict["kind"] in case.kinds, verdict
        check_ranks(case, verdict)
        if case.function:
            assert verdict["where"]["function"] in case.function, verdict
        if case.sure:
            assert verdict["confidence"] != "guess", verdict
        for word in case.mentions:
            assert needed(word, job) in verdict["summary"], verdict
        assert verdict["evidence"], "a verdict comes with its proof"
        assert verdict["next"], "a verdict says what to do next"
        assert answer["findings"][0] == verdict


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if not case.kinds], ids=named)
def test_why_leaves_the_healthy_job_alone(case: Case) -> None:
    # GIVEN a job that does its work
    with running(case):
        # WHEN
        status, answer = why()

        # THEN
        assert answer["verdict"] is None, answer["verdict"]
        assert status == 0, answer
        assert ranks_of(answer["job"]["ranks"]) == ranks_of(f"0-{case.ranks - 1}")


def check_ranks(case: Case, verdict: dict) -> None:
    culprits, victims = ranks_of(verdict["culprits"]), ranks_of(verdict["victims"])
    assert not culprits & victims, verdict
    if case.culprits is not None:
        assert culprits in map(ranks_of, case.culprits), verdict
    if case.victims is not None:
        assert victims in map(ranks_of, case.victims), verdict
    if case.involved is not None:
        assert culprits | victims == ranks_of(case.involved), verdict


def needed(word: str, job: Running) -> str:
    """What the summary must hold: `@file` is what the job wrote there, `{folder}` its folder."""
    if word.startswith("@"):
        return (job.folder / word[1:]).read_text().strip()
    return word.replace("{folder}", str(job.folder))
