"""One module per rule. ``REASONS`` are applied in this order to each rank that waits for no other rank. The first that
returns a cause wins."""

from __future__ import annotations

from collections.abc import Callable

from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView
from breakranks.explain.rules import (
    busy_loop,
    data_loader,
    debugger_prompt,
    external_waits,
    gil_held,
    lock_files,
    lock_owners,
    stopped_process,
    thread_deadlock,
)
from breakranks.explain.rules.rank_cause import RankCause

REASONS: tuple[Callable[[JobView, ProcessView], RankCause | None], ...] = (
    stopped_process.reason,
    debugger_prompt.reason,
    lock_files.reason,
    gil_held.reason,
    data_loader.reason,
    lock_owners.reason,
    thread_deadlock.reason,
    external_waits.reason,
    busy_loop.reason,
)


def reason_for(job: JobView, view: ProcessView) -> RankCause | None:
    """Return why a rank is where it is, or None if its stack shows nothing special (it sleeps, it computes)."""
    for rule in REASONS:
        found = rule(job, view)
        if found is not None:
            return found
    return None
