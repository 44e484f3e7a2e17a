"""A launcher that has started no rank: it waits for other hosts, and that is the answer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from support.processes import inherited

from .running import BIN, TORCHRUN, Launch, free_port, wait_for

DEADLINE = 120.0


def test_torchrun_that_waits_for_a_second_host_is_explained(tmp_path: Path) -> None:
    """GIVEN torchrun for two hosts, of which one never comes THEN why says that it waits for it."""
    (tmp_path / "train.py").write_text("print('never reached')\n")
    with Launch(tmp_path) as launch:
        launcher = launch.start(
            TORCHRUN, "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{free_port()}", "train.py",
        )  # fmt: skip

        def explained() -> tuple[int, dict[str, Any]] | None:
            """It imports torch first; until it waits there is no verdict, so ask until there is one."""
            done = subprocess.run(
                [str(BIN / "breakranks"), "why", "--json", "--job", f"torchrun-{launcher.pid}"],
                env=inherited(), capture_output=True, text=True, timeout=DEADLINE, check=False,
            )  # fmt: skip
            answer = json.loads(done.stdout) if done.stdout else {}
            return (done.returncode, answer) if answer.get("verdict") else None

        status, answer = wait_for("a verdict", explained)
    verdict = answer["verdict"]
    assert status == 1
    assert verdict["kind"] == "rendezvous-incomplete"
    assert "other hosts" in verdict["summary"]
    assert answer["job"]["world_size"] == 4
    assert answer["job"]["unseen"] == "0-3"
