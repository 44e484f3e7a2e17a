"""The folder and the environment of a run, as `breakranks run` makes them, for tests of what happens in its ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from breakranks.run.startup_folder import StartupOptions, launch_environment, write_startup_folder
from support.processes import Processes, inherited
from support.waiting import wait_for

if TYPE_CHECKING:
    from typing import Self

PROGRAM = Path(__file__).parent / "launched_program.py"


class LaunchedRun(Processes):
    """Starts the commands of a run, with its output files as theirs, and reads what their ranks leave."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder)
        self.run_folder = folder / "run"
        self.run_folder.mkdir(exist_ok=True)
        for name in ("launcher.out", "launcher.err"):
            (self.run_folder / name).touch()
        self.startup = write_startup_folder(StartupOptions(token="token", run_folder=str(self.run_folder), **options))
        self.agents = folder / "agents"

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for pid in self.relays():
            with suppress(ProcessLookupError):  # it ends by itself
                os.kill(pid, 9)

    def environ(self, more: Any = None) -> dict[str, str]:
        own = {"BREAKRANKS_RUN": str(self.agents), "PYTHONWARNINGS": "", "PYTHONUNBUFFERED": ""}
        return launch_environment(self.startup, {**inherited(), **own, **(more or {})})

    def launch(self, command: Sequence[str], env: Any = None, **how: Any) -> subprocess.Popen[Any]:
        """Start a command as `run` does: its output goes to the launcher's files."""
        with open(self.run_folder / "launcher.out", "ab") as out, open(self.run_folder / "launcher.err", "ab") as err:
            return self.start(command, env, **{"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, **how})

    def rank(self, rank: int, *words: str, python: str = sys.executable, **how: Any) -> subprocess.Popen[Any]:
        """Start a rank by hand, without a launcher."""
        env = {"RANK": str(rank), "WORLD_SIZE": "4", **how.pop("env", {})}
        return self.launch([python, str(PROGRAM), *words], env, **how)

    def text(self, name: str) -> str:
        path = self.run_folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    def record(self, rank: int, attempt: int = 0, kind: str = "") -> dict[str, Any]:
        path = self.run_folder / "ranks" / f"rank-{rank}.attempt-{attempt}{kind and '.' + kind}.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def relays(self) -> list[int]:
        """The relays of this run that live."""
        found = []
        for name in os.listdir("/proc"):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0") if name.isdigit() else []
            except OSError:
                continue
            if f"{self.startup}/output_relay.py".encode() in words:
                found.append(int(name))
        return found

    def ends(self, process: subprocess.Popen[Any]) -> int:
        """Wait for the end of a command and of all that it has started."""
        status = process.wait(120)
        wait_for("the relays to end", lambda: not self.relays())
        left = [str(path) for path in self.run_folder.rglob(".*")]
        assert not left, left
        return status
