"""`breakranks watch` from a login node of Slurm, over a job of srun on two hosts."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from support.waiting import wait_for

from .launch import under_srun
from .nodes import Nodes
from .run_breakranks import Looker, breakranks
from .slurm import Slurm

SECONDS = "8"


def test_a_job_that_moves_and_then_hangs(nodes: Nodes, slurm: Slurm, tmp_path: Path) -> None:
    # GIVEN a watch over a job on two hosts that makes steps
    with under_srun(nodes, slurm, 2, "steady") as (job, number):
        look = Looker(nodes.folder, (f"slurm:{number}",), slurm.environment)
        log = tmp_path / "watch.log"
        logged = Looker(look.folder, look.words, {**slurm.environment, "BREAKRANKS_LOG": str(log)})
        words = ["--on-hang", SECONDS, "--save", str(tmp_path), "--then", "kill", "--json"]
        watch = logged.start("watch", *words, "--exec", f"cat >{tmp_path}/verdict.json")
        try:
            looks = lambda: log.read_text().count(" look ") if log.exists() else 0  # noqa: E731
            wait_for("three looks", lambda: watch.poll() is not None or looks() > 2)
            assert watch.poll() is None, watch.communicate()

            # WHEN a rank stops
            job.signal(1, signal.SIGSTOP)
            out, err = watch.communicate(timeout=120)
        finally:
            watch.kill()
            watch.wait()

        # THEN it is named, saved, and the job is ended on all hosts
        assert watch.returncode == 1, (out, err)
        hang, killed = map(json.loads, out.splitlines())
        assert (hang["verdict"]["kind"], hang["verdict"]["culprits"]) == ("rank-stopped", "1"), hang["verdict"]
        assert hang["job"]["ranks"] == "0-1"
        assert json.loads((tmp_path / "verdict.json").read_text()) == hang
        again = breakranks(nodes.folder, "why", "--json", hang["snapshot"])
        assert again.json["verdict"]["culprits"] == "1"
        assert (killed["event"], killed["left"]) == ("killed", [])
        wait_for("the end of all ranks", lambda: not any(job.functions()))
