"""Look at a job until the answer is settled: two samples at least, more while another could change it."""

from __future__ import annotations

import sys
import time

from msgspec.structs import replace

from breakranks.explain import Diagnosis, explain
from breakranks.snapshot.model import Problem, Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from breakranks.explain.meanings import Table
    from breakranks.reach.cluster import ClusterSession
    from breakranks.reach.local import Session

INTERVAL = 0.5
PATIENCE = 15.0
_NOT_INSIDE = Problem(
    "the ranks were not asked themselves (--no-inject): numbers, sizes and members of collectives, owners of locks and "
    "steps are not known",
    "Leave --no-inject out to have them.",
)
_LONGEST_STEP = 1.0
_READ_AGAIN = 3  # samples: ranks that have moved meanwhile are in other calls


def settle(
    session: Session | ClusterSession,
    *,
    native: bool = True,
    interval: float = INTERVAL,
    patience: float = PATIENCE,
    table: Table | None = None,
    inject: bool = True,
) -> tuple[Snapshot, Diagnosis]:
    """A snapshot and what it means. Says on stderr why it looks longer, when it does."""
    say = Progress()
    with session:
        session.sample()
        time.sleep(interval)
        session.sample(native=native, recorders=inject)
        until = time.monotonic() + patience
        extended = False
        while True:
            snapshot = session.snapshot()
            if not inject:
                snapshot = replace(snapshot, problems=(*snapshot.problems, _NOT_INSIDE))
            diagnosis = explain(snapshot, table)
            if diagnosis.known_end and not extended:
                extended = True
                until = max(until, time.monotonic() + diagnosis.wait + 2 * interval)
            left = until - time.monotonic()
            if diagnosis.settled or left <= 0:
                say.done()
                return snapshot, diagnosis
            say(f"watching {min(diagnosis.wait, left):.0f} s more: {diagnosis.why_not_settled}")
            time.sleep(min(max(diagnosis.wait, interval), _LONGEST_STEP, left))
            session.sample(recorders=inject and session.sampled % _READ_AGAIN == 0)


class Progress:
    """One line on a terminal's stderr, replaced as things go on; silent elsewhere."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._shown = False

    def __call__(self, text: str) -> None:
        if self._tty:
            sys.stderr.write(f"\r\x1b[K{text[:100]}")
            sys.stderr.flush()
            self._shown = True

    def done(self) -> None:
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
