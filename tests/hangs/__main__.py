"""Keep one job of the zoo in its state, to try things on it: `python -m tests.hangs NAME`."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from .expected import BY_NAME, CASES
from .harness import ZooError, look, running


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hangs", description=__doc__)
    parser.add_argument("name", nargs="*", help="the job; several: one after another, with --look")
    parser.add_argument("--list", action="store_true", help="the jobs, and what is expected of each")
    parser.add_argument("--look", action="store_true", help="print what py-spy and /proc show, and end it")
    options = parser.parse_args()
    if options.list or not options.name:
        for case in CASES:
            kinds = " or ".join(case.kinds) or "healthy: no verdict"
            print(f"{case.name:28} {case.launcher:9} {case.ranks} ranks  {kinds}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = 0
    for name in options.name:
        if name not in BY_NAME:
            print(f"no job {name!r} here; `python -m tests.hangs --list` has them all", file=sys.stderr)
            return 2
        try:
            with running(BY_NAME[name]) as job:
                ranks = ", ".join(f"rank {rank} is pid {pid}" for rank, pid in sorted(job.pids.items()))
                print(f"#### {name} stands after {job.settled_after:.1f} s in {job.folder}: {ranks}", flush=True)
                if options.look:
                    print(look(job), flush=True)
                    continue
                print("Try `breakranks why` in another terminal; Ctrl-C ends the job.", flush=True)
                while job.launcher.poll() is None:
                    time.sleep(0.2)
                print(f"it ended by itself:\n{job.log()[-3000:]}")
        except ZooError as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
