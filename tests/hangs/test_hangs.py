"""Every job of the zoo is started under its real launcher and explained."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from support.stalls import undisturbed

from .case import Case, ranks_of
from .expected import BY_NAME, CASES
from .harness import JOBS, Running, breakranks, running, why

HAS_TORCH = importlib.util.find_spec("torch") is not None


def cases(*, broken: bool) -> list[pytest.ParameterSet]:
    """All of them; on a Python without torch (scripts/test has some) those whose programs need nothing."""
    chosen = [case for case in CASES if bool(case.kinds) == broken and (HAS_TORCH or needs_nothing(case))]
    return [pytest.param(case, id=case.name) for case in chosen]


def needs_nothing(case: Case) -> bool:
    text = (JOBS / f"{case.name}.py").read_text()
    return case.launcher in ("shell", "python") and not any(
        f"import {name}" in text or f"from {name}" in text for name in ("torch", "mpi4py", "filelock")
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(broken=True))
def test_why_explains_the_broken_job(case: Case) -> None:
    # GIVEN a job that stands where the table says
    with running(case) as job:
        # WHEN
        status, answer = undisturbed(lambda: why(job))

        # THEN
        assert status == 1, told(answer)
        verdict = answer["verdict"]
        assert verdict["kind"] in case.kinds, told(verdict)
        check_ranks(case, verdict)
        if case.function:
            assert verdict["where"]["function"].rpartition(".")[2] in case.function, told(verdict)
        if case.sure:
            assert verdict["confidence"] != "guess", told(verdict)
        for word in case.mentions:
            assert needed(word, job) in verdict["summary"], told(verdict)
        for word in case.proof:
            assert any(needed(word, job) in line for line in verdict["evidence"]), told(verdict)
        if case.certain:
            assert verdict["confidence"] == "certain", told(verdict)
        assert verdict["evidence"], "a verdict comes with its proof"
        assert verdict["next"], "a verdict says what to do next"
        assert answer["findings"][0] == verdict


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(broken=False))
def test_why_leaves_the_healthy_job_alone(case: Case) -> None:
    # GIVEN a job that does its work
    with running(case) as job:
        # WHEN
        status, answer = undisturbed(lambda: why(job))

        # THEN
        assert status == 0, told(answer)
        assert answer["verdict"] is None
        assert ranks_of(answer["job"]["ranks"]) == case.starts - ranks_of(case.gone)


@pytest.mark.slow
def test_stacks_name_the_owner_of_a_lock_unless_they_stay_outside() -> None:
    # GIVEN a rank that waits for a lock of its own, and one that works
    with running(BY_NAME["lock_held_socket"]) as job:
        pids = ",".join(map(str, job.pids.values()))

        # WHEN
        seen = {
            options: undisturbed(lambda: breakranks("stacks", f"pid:{pids}", "--json", *options)[1]["classes"])  # noqa: B023
            for options in ((), ("--no-inject",))
        }
        _, outside = undisturbed(lambda: breakranks("why", f"pid:{pids}", "--json", "--no-inject"))

        # THEN the owner is named; from outside it is not
        assert {one["note"] for one in seen[()]} == {"", "waits for self.lock (Lock), held by refresher"}
        assert {one["note"] for one in seen["--no-inject",]} == {""}
        assert "self.lock" not in json.dumps(outside)
        # and nothing of ours is left in the rank
        assert not [name for name in threads_of(job.pids[1]) if "breakranks" in name]


def threads_of(pid: int) -> list[str]:
    return [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="one of its jobs needs torch, which this Python has not")
def test_two_jobs_are_told_apart() -> None:
    # GIVEN one job that hangs and one that works
    with running(BY_NAME["missing_sleep"]) as hung, running(BY_NAME["healthy_plain"]) as well:
        # WHEN
        unasked, said = breakranks("why", "--json")
        hung_status, hung_answer = undisturbed(lambda: why(hung))
        well_status, well_answer = undisturbed(lambda: why(well))

        # THEN each gets its own answer, and who does not say which one is asked to
        assert unasked == 2
        assert "--job" in said["error"]
        assert hung_status == 1
        assert hung_answer["verdict"]["culprits"] == "1"
        assert hung_answer["job"]["ranks"] == "0-2"
        assert well_status == 0, well_answer["verdict"]
        assert well_answer["job"]["ranks"] == "0-3"


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="its job needs torch, which this Python has not")
def test_nothing_is_left_of_a_job() -> None:
    # GIVEN a job with helpers, one of them stopped
    with pytest.raises(RuntimeError), running(BY_NAME["loader_worker_stopped"]) as job:
        before = job.family()

        # WHEN whoever uses it fails
        raise RuntimeError

    # THEN
    assert len(before) == 7  # torchrun, three ranks, three workers
    assert job.family() == []
    assert not job.folder.exists()


def check_ranks(case: Case, verdict: dict) -> None:
    culprits, victims = ranks_of(verdict["culprits"]), ranks_of(verdict["victims"])
    assert not culprits & victims, told(verdict)
    if case.culprits is not None:
        assert culprits in map(ranks_of, case.culprits), told(verdict)
    if case.victims is not None:
        assert victims in map(ranks_of, case.victims), told(verdict)
    if case.involved is not None:
        assert culprits | victims == ranks_of(case.involved), told(verdict)


def told(answer: dict) -> str:
    """All of it: pytest shortens what is not a string."""
    return json.dumps(answer, indent=1)


def needed(word: str, job: Running) -> str:
    """What the summary must hold: `@file` is what the job wrote there, `{folder}` its folder."""
    if word.startswith("@"):
        return (job.folder / word[1:]).read_text().strip()
    return word.replace("{folder}", str(job.folder))
