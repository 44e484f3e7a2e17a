"""Jobs of the zoo, started under their real launchers and explained."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.stalls import undisturbed
from support.targets import OTHERS, Interpreter, on

from .case import Case
from .check import check
from .expected import BY_NAME, CASES
from .harness import breakranks, key_of, running, why

# Plain jobs that are explained by introspection: a lock, a queue, a socket, a fork.
ON_EVERY_PYTHON = ("lock_held_socket", "queue_producer_ended", "plain_socket", "plain_fork", "healthy_contention")


def test_every_kind_and_launcher_has_a_live_job() -> None:
    pairs = {(case.kinds[0], case.launcher) for case in CASES if case.kinds}
    assert {(case.kinds[0], case.launcher) for case in CASES if case.live} == pairs


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_why_explains_the_job(case: Case) -> None:
    # GIVEN a job in the state of the table
    with running(case) as job:
        # WHEN
        status, answer = undisturbed(lambda: why(job))

        # THEN
        check(case, status, answer, str(job.folder), job.files())


@on(*OTHERS)
def test_jobs_of_another_python_are_explained(interpreter: Interpreter) -> None:
    # GIVEN jobs that another Python runs, all at once: each must have been blocked for a while
    with ExitStack() as jobs:
        started = [jobs.enter_context(running(BY_NAME[name], interpreter.path)) for name in ON_EVERY_PYTHON]
        for job in started:
            # WHEN
            key = key_of(job)
            status, answer = undisturbed(lambda: why(job, "--job", key))  # noqa: B023

            # THEN
            check(job.case, status, answer, str(job.folder), job.files())


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
        # and nothing of breakranks is left in the rank
        assert not [name for name in threads_of(job.pids[1]) if "breakranks" in name]


def threads_of(pid: int) -> list[str]:
    return [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]


def test_two_jobs_are_told_apart() -> None:
    # GIVEN one job that hangs and one that works
    with running(BY_NAME["marker_attribute"]) as hung, running(BY_NAME["healthy_contention"]) as well:
        # WHEN
        unasked, said = breakranks("why", "--json")

        # THEN `why` without a job asks for one, and each job gets its own answer
        assert unasked == 2
        assert "--job" in said["error"]
        for job in (hung, well):
            key = key_of(job)
            status, answer = undisturbed(lambda: why(job, "--job", key))  # noqa: B023
            check(job.case, status, answer, str(job.folder), job.files())


def test_nothing_is_left_of_a_job() -> None:
    # GIVEN a job with helpers, one of them stopped
    with pytest.raises(RuntimeError), running(BY_NAME["loader_worker_stopped"]) as job:
        before = job.processes.living()

        # WHEN the test that uses it fails
        raise RuntimeError

    # THEN
    assert len(before) == 5  # a shell, two ranks, two workers
    assert job.processes.living() == []
    assert not job.folder.exists()
