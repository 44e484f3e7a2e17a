"""The first process of a lane: it runs a command in a PID namespace, and adopts orphans.

    unshare --pid --fork --kill-child --mount-proc python tests/support/lane.py COMMAND…

The jobs of one lane are invisible in the other, and no process outlives the lane.
"""

import os
import signal
import sys

# In the background or under nohup, these signals are ignored, and all processes would inherit that.
SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE)


def main() -> int:
    os.environ["BREAKRANKS_TEST_LANE"] = "1"
    command = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, setsigdef=SIGNALS)
    while True:
        pid, status = os.wait()
        if pid == command:
            return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main())
