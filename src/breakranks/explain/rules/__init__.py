"""One module a rule. ``REASONS`` are asked in this order about each rank that waits for no other rank;
the first that knows answers."""

from __future__ import annotations

from collections.abc import Callable

from breakranks.explain.case import Case
from breakranks.explain.look import Look
from breakranks.explain.rules import blocked, gil, holders, loading, locks, prompt, stopped, threads, working
from breakranks.explain.rules.reason import Reason

REASONS: tuple[Callable[[Case, Look], Reason | None], ...] = (
    stopped.reason,
    prompt.reason,
    locks.reason,
    gil.reason,
    loading.reason,
    holders.reason,
    threads.reason,
    blocked.reason,
    working.reason,
)


def reason_for(case: Case, one: Look) -> Reason | None:
    """Why this rank is where it is; None when its stack says nothing special (it sleeps, it computes)."""
    for rule in REASONS:
        found = rule(case, one)
        if found is not None:
            return found
    return None
