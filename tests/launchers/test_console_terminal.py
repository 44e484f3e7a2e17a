"""The console that opens by itself, under torchrun in a terminal: its Ctrl-C must not reach the launcher."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from process.console_program import steps_total
from process.terminals import CTRL_C, PROGRAM, Place, Terminal, line_of, source_of, wait_for
from support.processes import MARK, Processes

from .running import TORCHRUN, free_port

pytest.importorskip("torch")

LONG = 90.0


def test_a_console_opens_in_the_terminal_of_torchrun(tmp_path: Path) -> None:
    """GIVEN torchrun in a terminal WHEN rank 0 stops THEN the console is there, and everything outlives its -9."""
    command = [TORCHRUN, "--nproc-per-node", "2", "--master-port", str(free_port()), str(PROGRAM)]
    with Processes(tmp_path) as processes, Place(tmp_path) as place:  # the one knows every process by its mark
        terminal = place.terminal([*command, "steps", "3"], {MARK: processes.mark, "OMP_NUM_THREADS": "1"})
        stop = f"{PROGRAM}:{line_of('stop')} in step"
        stopped, held = f"rank 0 stopped, {stop}\n  -> {source_of('stop')}\n", f"rank 1 is held, {stop}, for rank 0\n"
        both = (stopped + held, held + stopped)
        assert _shown_when_both_stop(terminal).endswith(both)
        assert terminal.at == "[0] > "
        # Echo and editing, as at any prompt.
        terminal.keys("p lozz\x7f\x7fss\r")
        assert terminal.prompt(LONG).endswith("0.0\n")
        for typed in ("", "p 12"):
            terminal.keys(typed)
            terminal.expect(typed, LONG)
            terminal.keys(CTRL_C)
            terminal.prompt(LONG)
        terminal.keys("!import time; time.sleep(600)\r")
        terminal.expect("rank 0 is in ", LONG)
        terminal.keys(CTRL_C)  # while it waits: that is no signal either
        terminal.prompt(LONG)
        terminal.ask("interrupt", LONG)
        assert terminal.ask("all p loss >= RANK", LONG).endswith("[0-1] True")
        assert terminal.process.poll() is None
        # The next stop has a console too. What the job prints between, nobody holds back.
        terminal.keys("c\r")
        assert _shown_when_both_stop(terminal).endswith(both)
        assert terminal.ask("p i", LONG).splitlines()[-1] == "1"
        assert terminal.modes != terminal.before
        os.kill(_console(place.agents()[0]), signal.SIGKILL)
        assert terminal.ends(LONG) == 0
        assert terminal.modes == terminal.before
        results = [(tmp_path / f"result.{rank}").read_text() for rank in range(2)]
        assert results == [str(steps_total(rank, 3)) for rank in range(2)]


def _shown_when_both_stop(terminal: Terminal) -> str:
    """One may come to its stop when the prompt is there already."""
    shown = terminal.prompt(120)
    while not ("rank 0 stopped" in shown and "rank 1 is held" in shown):
        shown += terminal.prompt(LONG)
    return shown


def _console(pid: int) -> int:
    """The console that this rank has opened."""

    def child() -> int | None:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it has just ended
                for found in children.read_text().split():
                    if b"--opened-by" in Path(f"/proc/{found}/cmdline").read_bytes():
                        return int(found)
        return None

    return wait_for("an open console", child, LONG)
