"""A launcher that has started no rank: it waits for other hosts, and that is the answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
DEADLINE = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_torchrun_that_waits_for_a_second_host_is_explained(tmp_path: Path) -> None:
    """GIVEN torchrun for two hosts, of which one never comes THEN why says that it waits for it."""
    (tmp_path / "train.py").write_text("print('never reached')\n")
    launcher = subprocess.Popen(
        [
            str(BIN / "torchrun"),
            "--nnodes=2",
            "--nproc-per-node=2",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{free_port()}",
            "train.py",
        ],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        # It imports torch first; until it waits there is no verdict, so ask until there is one.
        until = time.monotonic() + DEADLINE
        answer: dict[str, Any] = {}
        while not answer.get("verdict") and time.monotonic() < until:
            done = subprocess.run(
                [str(BIN / "breakranks"), "why", "--json", "--job", f"torchrun-{launcher.pid}"],
                capture_output=True,
                text=True,
                timeout=DEADLINE,
                check=False,
            )
            answer = json.loads(done.stdout) if done.stdout else {}
    finally:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
    verdict = answer.get("verdict")
    assert verdict, (answer, done)
    assert done.returncode == 1, done.stderr
    assert verdict["kind"] == "rendezvous-incomplete"
    assert "other hosts" in verdict["summary"]
    assert answer["job"]["world_size"] == 4
    assert answer["job"]["unseen"] == "0-3"
