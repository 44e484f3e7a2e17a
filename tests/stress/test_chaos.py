"""A few rounds of scripts/chaos: whatever is killed, the ranks that live do their work as if nobody had looked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHAOS = Path(__file__).resolve().parents[2] / "scripts" / "chaos"
SEED = 563  # from here on each kind of console comes twice, and they are stopped, killed, closed; ranks are killed


def test_whoever_survives_ends_well(tmp_path: Path) -> None:
    words = [sys.executable, str(CHAOS), "--seed", str(SEED), "--rounds", "6", "--jobs", "3", "--verbose"]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 rounds" in done.stdout
