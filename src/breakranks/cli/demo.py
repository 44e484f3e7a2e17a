"""Start a small real job that hangs, explain it, and end it.

Four ranks train under torchrun until one of them blocks while it reads a file. breakranks explains the job as it would
any other, without preparation.
"""

from __future__ import annotations

import argparse

from breakranks.backend.demo_job import RANKS, DemoJob
from breakranks.backend.local_backend import LocalJob
from breakranks.backend.sampling_loop import sample_until_conclusive
from breakranks.cli import target_args, terminal_output
from breakranks.cli.exit_status import FAILED, OK
from breakranks.cli.progress_line import ProgressLine
from breakranks.show.verdict_lines import why_lines

EXAMPLES = """
breakranks demo              start a job, explain it, end it
breakranks demo --keep       leave it running, to try other commands on it
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help="leave the job running; Ctrl-C ends it")
    target_args.add_output(parser, json=False)


def run(args: argparse.Namespace) -> int:
    job = DemoJob()
    try:
        print(f"Starting {RANKS} ranks under torchrun (process {job.launcher_pid}).", flush=True)
        progress = ProgressLine()
        job.wait_until_stuck(lambda: progress("importing torch in every rank …"))
        progress.done()
        print("The job hangs. The output of breakranks why:\n", flush=True)
        status = _explain(job.find(), args)
        if args.keep:
            _keep(job)
        return status
    finally:
        job.end()
        print("\nThe job was ended.")


def _explain(job: LocalJob, args: argparse.Namespace) -> int:
    progress = ProgressLine()
    snapshot, diagnosis = sample_until_conclusive(job.sampler(), progress=progress.watching)
    progress.done()
    look = terminal_output.look(args)
    terminal_output.show(why_lines(snapshot, diagnosis, look), look)
    return OK if diagnosis.verdict is not None else FAILED


def _keep(job: DemoJob) -> None:
    print("\nThe job is still running. Try: breakranks stacks, breakranks top. Press Ctrl-C to end it.", flush=True)
    try:
        job.wait()
    except KeyboardInterrupt:
        pass
