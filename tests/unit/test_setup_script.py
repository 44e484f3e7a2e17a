"""scripts/setup: what a step of it prints, and the exit status that scripts/test and CI go by."""

import subprocess
from pathlib import Path

SETUP = Path(__file__).parents[2] / "scripts" / "setup"


def run_steps(folder: Path, *steps: str) -> "subprocess.CompletedProcess[str]":
    """Runs steps with the functions of the real script, which for its own steps would fetch gigabytes."""
    functions, mark, _ = SETUP.read_text().partition("# One set-up at a time")
    assert mark, f"{SETUP} has no longer the line that begins its work"
    script = folder / "scripts" / "setup"
    script.parent.mkdir()
    script.write_text(functions + "\n".join(steps) + "\n")
    return subprocess.run(["bash", str(script)], capture_output=True, text=True, timeout=300)


def test_steps_that_went_well(tmp_path: Path) -> None:
    ended = run_steps(tmp_path, "quietly 'the first' echo its output", "quietly 'the second' echo two")
    assert ended.returncode == 0, ended
    assert "the first …" in ended.stderr and "the second …" in ended.stderr, ended
    assert "its output" not in ended.stderr, ended
    assert "its output" in (tmp_path / ".setup.log").read_text()


def test_a_step_that_failed(tmp_path: Path) -> None:
    ended = run_steps(
        tmp_path,
        "quietly 'the first' true",
        "quietly 'the second' sh -c 'echo why it failed; exit 7'",
        "say 'not reached'",
    )
    assert ended.returncode == 1, ended
    assert "why it failed" in ended.stderr and "failed: the second" in ended.stderr, ended
    assert "not reached" not in ended.stderr, ended


def test_what_a_person_must_do(tmp_path: Path) -> None:
    ended = run_steps(tmp_path, "stop 'something is missing.' 'Install it.'")
    assert ended.returncode == 2, ended
    assert "something is missing." in ended.stderr and "Install it." in ended.stderr, ended
