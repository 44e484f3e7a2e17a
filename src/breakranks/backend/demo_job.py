"""The job of `breakranks demo`: four ranks under torchrun, one of which blocks while it reads a file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from breakranks.backend.local_backend import LocalBackend, LocalJob
from breakranks.errors import BreakranksError
from breakranks.log import Log

RANKS = 4
_START_SECONDS = 180.0
_END_SECONDS = 10.0
_BLOCKING_FILE = "shard-0003"
_log = Log("backend")

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


class DemoJob:
    """The job, in a temporary folder of its own, from the start until :meth:`end`."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="breakranks-demo-")
        try:
            self._launcher = _start(self._folder)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    @property
    def launcher_pid(self) -> int:
        return self._launcher.pid

    def wait_until_stuck(self, waiting: Callable[[], None]) -> None:
        """Wait until the job hangs; call ``waiting`` again and again until it does."""
        until = time.monotonic() + _START_SECONDS
        while not os.path.exists(os.path.join(self._folder, _BLOCKING_FILE)):
            if self._launcher.poll() is not None or time.monotonic() > until:
                with open(os.path.join(self._folder, "log"), errors="replace") as log:
                    tail = "".join(log.readlines()[-15:])
                raise BreakranksError("the demo job did not start", f"Its output ends with:\n{tail}")
            waiting()
            time.sleep(0.1)

    def wait(self) -> None:
        """Wait until the job ends."""
        self._launcher.wait()

    def end(self) -> None:
        """End the launcher and its ranks, which share a session of their own."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._launcher.pid, number)
                self._launcher.wait(_END_SECONDS)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        shutil.rmtree(self._folder, ignore_errors=True)

    def find(self) -> LocalJob:
        """Return the job as any command finds it."""
        job = next((job for job in LocalBackend().jobs() if job.job.launcher_pid == self._launcher.pid), None)
        if job is None:
            raise BreakranksError("the demo job cannot be found", "Look for it: breakranks ps")
        return job


def _start(folder: str) -> subprocess.Popen[bytes]:
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    if not os.path.exists(torchrun):
        raise BreakranksError(
            "the demo needs torch, which is not installed here",
            "pip install torch, or run scripts/demo, which installs everything.",
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
