"""The first process of a lane: runs a command in a PID namespace, and is the parent of what loses its own.

    unshare --pid --fork --kill-child --mount-proc python tests/support/lane.py COMMAND…

Jobs of one lane are not seen from the other, and nothing outlives the lane.
"""

import os
import signal
import sys

# Whoever started the tests may ignore these, in the background or under nohup, and all processes would inherit it.
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
