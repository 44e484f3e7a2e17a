"""Keep one job of the zoo in its state for experiments (`python -m tests.hangs NAME`), or record jobs."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `support`, as pytest does

from .case import Case
from .expected import BY_NAME, CASES
from .harness import ZooError, look, running
from .recordings import record


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hangs", description=__doc__)
    parser.add_argument("name", nargs="*", help="the job; several: one after another, with --look or --record")
    parser.add_argument("--list", action="store_true", help="the jobs, and what is expected of each")
    parser.add_argument("--look", action="store_true", help="print what py-spy and /proc show, and end it")
    parser.add_argument(
        "--record", action="store_true", help="explain each job, all unless named, and keep it in tests/data/zoo"
    )
    options = parser.parse_args()
    if options.list or not (options.name or options.record):
        for case in CASES:
            kinds = " or ".join(case.kinds) or "healthy: no verdict"
            when = "every run" if case.in_every_run else "--all"
            print(f"{case.name:28} {case.launcher:9} {case.ranks} ranks  {when:10} {kinds}")
        return 0
    for name in options.name:
        if name not in BY_NAME:
            print(f"no job {name!r} here; `python -m tests.hangs --list` has them all", file=sys.stderr)
            return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    act = keep_a_record if options.record else show if options.look else hold
    return max([act(BY_NAME[name]) for name in options.name or BY_NAME])


def keep_a_record(case: Case) -> int:
    try:
        began = time.monotonic()
        size = record(case)
        print(f"{case.name}: {size:,} bytes after {time.monotonic() - began:.1f} s", flush=True)
    except (AssertionError, ZooError):
        print(f"{case.name}: not recorded\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return 1
    return 0


def show(case: Case) -> int:
    try:
        with running(case) as job:
            ranks = ", ".join(f"rank {rank} is pid {pid}" for rank, pid in sorted(job.pids.items()))
            print(f"#### {case.name} stands after {job.settled_after:.1f} s in {job.folder}: {ranks}", flush=True)
            print(look(job), flush=True)
    except ZooError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def hold(case: Case) -> int:
    try:
        with running(case) as job:
            ranks = ", ".join(f"rank {rank} is pid {pid}" for rank, pid in sorted(job.pids.items()))
            print(f"#### {case.name} stands after {job.settled_after:.1f} s in {job.folder}: {ranks}", flush=True)
            print("Try `breakranks why` in another terminal; Ctrl-C ends the job.", flush=True)
            while job.launcher.poll() is None:
                time.sleep(0.2)
            print(f"it ended by itself:\n{job.log()[-3000:]}")
    except ZooError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
