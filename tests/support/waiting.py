"""Waiting for conditions, and free ports."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from typing import TypeVar

# It costs nothing if the test passes, and machines sometimes stall for half a minute.
DEADLINE_SECONDS = 120.0
POLL_SECONDS = 0.02

# Below the range for outgoing connections, so that none of those takes one first.
FIRST_PORT, PORTS_PER_LANE, MOST_LANES = 20000, 1500, 8

_returned: set[int] = set()

T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T | None], deadline: float = DEADLINE_SECONDS) -> T:
    """Return the first true result of ``condition``; fail with ``what`` after the deadline."""
    end = time.monotonic() + deadline
    while True:
        late = time.monotonic() > end  # read before the call, so that the last result counts
        if answer := condition():
            return answer
        if late:
            raise AssertionError(f"after {deadline:.0f} s still not: {what}")
        time.sleep(POLL_SECONDS)


def free_port() -> int:
    """A TCP port that is free on all addresses, from the range of this lane. No two calls return the same."""
    lane = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % MOST_LANES
    while True:
        port = FIRST_PORT + lane * PORTS_PER_LANE + random.SystemRandom().randrange(PORTS_PER_LANE)
        if port in _returned:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            _returned.add(port)
            return port
