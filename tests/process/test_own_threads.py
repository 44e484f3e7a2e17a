"""A rank with a console in it is shown as if there were none; and a stack goes with the call that it was seen in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakranks.backend.sampler import Sampler
from breakranks.jobs.targets import job_of_pids
from breakranks.observe.process_table import read_table

from .attaching import Target, run, words_of
from .terminals import BREAKRANKS, Place, wait_for

ALTERNATES = """
import time
def nap():
    time.sleep(0.05)
def spin():
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass
print("x", flush=True)
while True:
    nap()
    spin()
"""
SAMPLES = 40


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Place(tmp_path) as place:
        yield place


def test_an_agent_is_not_what_its_rank_does(place: Place) -> None:
    """GIVEN a program that waits for a lock, and a console on it THEN it waits for its lock, in two threads."""
    target = Target(place, "lock")
    console = place.terminal(words_of(target, (), ()))
    console.prompt()
    wait_for("an agent", target.ours)
    found = json.loads(run(place, [BREAKRANKS, "why", "--json", target.name]).stdout)
    seen = found["classes"][0]
    assert (seen["activity"], seen["where"]["function"]) == ("thread-wait", "lock"), found
    shown = run(place, [BREAKRANKS, "stacks", "--threads", target.name]).stdout
    assert "freer" in shown and "breakranks" not in shown.replace(str(place.folder), ""), shown
    assert "\nbreakranks\n" in run(place, [BREAKRANKS, "stacks", "--threads", "--full", target.name]).stdout
    console.keys("quit\r")
    target.left()
    target.ends()


def test_a_stop_is_shown_at_the_line_of_the_program(place: Place) -> None:
    """GIVEN a program that is stopped in a console THEN of our frames only the prompt is shown."""
    target = Target(place, "busy")
    console = place.terminal(words_of(target, (), ()))
    console.prompt()
    console.ask("interrupt")
    frames = wait_for("the prompt in its stack", lambda: _stopped(place, target))
    assert [name for name, file in frames if "/breakranks/rank/" in file] == ["at_prompt"], frames
    assert not any(file.endswith(("bdb.py", "pdb.py", "cmd.py", "selectors.py")) for _, file in frames), frames
    console.keys("quit\r")
    target.left()
    target.ends()


def _stopped(place: Place, target: Target) -> list[tuple[str, str]] | None:
    found = json.loads(run(place, [BREAKRANKS, "stacks", "--json", target.name]).stdout)
    frames = [(frame["function"], frame["file"]) for frame in found["classes"][0]["frames"]]
    return frames if ("at_prompt" in dict(frames)) else None


def test_a_sleep_that_has_ended_is_not_said_of_the_line_after_it() -> None:
    """GIVEN a program that sleeps and computes in turns THEN it does not sleep where it computes."""
    process = subprocess.Popen([sys.executable, "-c", ALTERNATES], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        with Sampler(job_of_pids(read_table(), [process.pid])) as session:
            for _ in range(SAMPLES):
                session.sample()
            snapshot = session.snapshot()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    seen = [
        (snapshot.stack(main.stack)[-1].function, main.call.name if main.call is not None else "")
        for main in (sample.threads[0] for sample in snapshot.ranks[0].process.samples)
        if main.stack
    ]
    asleep = [call for function, call in seen if function == "spin" and call]
    # It may begin to compute in the microseconds between py-spy's look at its state and at its stack.
    assert len(asleep) <= SAMPLES // 8, seen
