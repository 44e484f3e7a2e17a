"""Start a small real job that hangs, explain it, and clean up.

Four ranks train under torchrun until one of them gets stuck reading a file. breakranks finds it the way it
would find yours: from outside, with no help from the job.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from breakranks.backend.local_backend import LocalBackend
from breakranks.backend.sampling_loop import sample_until_conclusive
from breakranks.cli import target_args, terminal_output
from breakranks.cli.progress_line import ProgressLine
from breakranks.errors import BreakranksError
from breakranks.explain.diagnosis import Diagnosis
from breakranks.log import Log
from breakranks.show.verdict_lines import why_lines
from breakranks.snapshot.model import Snapshot

EXAMPLES = """
breakranks demo              start, explain, clean up
breakranks demo --keep       leave it running, to try other commands on it
"""

_log = Log("cli")
RANKS = 4
_START_SECONDS = 180.0
_END_SECONDS = 10.0

PROGRAM = """\
import os

import torch
import torch.distributed as dist


def load_batch(step):
    if dist.get_rank() == 2 and step == 3:
        read_shard("shard-0003")
    return torch.ones(1000)


def read_shard(path):
    os.mkfifo(path)  # stands in for a file on a storage server that does not answer
    with open(path, "rb") as shard:
        return shard.read()


def train():
    for step in range(100):
        batch = load_batch(step)
        dist.all_reduce(batch)


dist.init_process_group("gloo")
train()
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help="leave the job running; Ctrl-C ends it")
    target_args.add_output(parser, json=False)


def run(args: argparse.Namespace) -> int:
    folder = tempfile.mkdtemp(prefix="breakranks-demo-")
    launcher = None
    try:
        launcher = _start(folder)
        print(f"A job of {RANKS} ranks starts under torchrun (process {launcher.pid}).", flush=True)
        _wait_until_stuck(launcher, folder)
        print("It hangs now. $ breakranks why\n", flush=True)
        status = _explain(launcher.pid, args)
        if args.keep:
            _keep(launcher)
        return status
    finally:
        if launcher is not None:
            _end(launcher)
            print("\nThe job was ended.")
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: str) -> subprocess.Popen[bytes]:
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    if not os.path.exists(torchrun):
        raise BreakranksError(
            "the demo needs torch, which is not installed here",
            "pip install torch, or run scripts/demo, which sets everything up.",
        )
    program = os.path.join(folder, "train.py")
    with open(program, "w") as file:
        file.write(PROGRAM)
    command = [torchrun, "--standalone", f"--nproc-per-node={RANKS}", "train.py"]
    _log.info("started", argv=command, folder=folder)
    with open(os.path.join(folder, "log"), "wb") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _wait_until_stuck(launcher: subprocess.Popen[bytes], folder: str) -> None:

    say = ProgressLine()
    until = time.monotonic() + _START_SECONDS
    while not os.path.exists(os.path.join(folder, "shard-0003")):
        if launcher.poll() is not None or time.monotonic() > until:
            with open(os.path.join(folder, "log"), errors="replace") as log:
                tail = "".join(log.readlines()[-15:])
            raise BreakranksError("the demo job did not start", f"Its output ends with:\n{tail}")
        say("importing torch in every rank …")
        time.sleep(0.1)
    say.done()


def _explain(launcher: int, args: argparse.Namespace) -> int:
    found = next((job for job in LocalBackend().jobs() if job.job.launcher_pid == launcher), None)
    if found is None:
        raise BreakranksError("the demo job cannot be found", "Look for it: breakranks ps")
    progress = ProgressLine()
    seen: tuple[Snapshot, Diagnosis] = sample_until_conclusive(found.sampler(), progress=progress.watching)
    progress.done()
    how = terminal_output.look(args)
    terminal_output.show(why_lines(*seen, how), how)
    return 0 if seen[1].verdict is not None else 2


def _keep(launcher: subprocess.Popen[bytes]) -> None:
    print("\nIt is left running: try breakranks stacks, breakranks top. Ctrl-C ends it.", flush=True)
    try:
        launcher.wait()
    except KeyboardInterrupt:
        pass


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """End the launcher and its ranks: they share a session that is theirs alone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(launcher.pid, number)
            launcher.wait(_END_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
