"""Stacks for a snapshot of flight recorder dumps, whose processes were not sampled."""

from __future__ import annotations

from dataclasses import replace

from breakranks.errors import UsageError
from breakranks.snapshot.model import Problem, Sample, Snapshot, Thread

_NOTE = Problem("where the ranks are now. The stacks are those of each rank's newest recorded call.")


def with_newest_calls(snapshot: Snapshot, name: str | None) -> Snapshot:
    """Return a snapshot of dumps in which each rank has one sample: the stack of its newest recorded call."""
    ranks = []
    for rank in snapshot.ranks:
        assert rank.recorder is not None
        calls = [track.last for track in rank.recorder.tracks if track.last is not None]
        calls += [transfer.entry for transfer in rank.recorder.transfers]
        stack = max(calls, key=lambda call: call.record).stack if calls else 0
        # A rank without a stack gets no sample, so it is in no class.
        samples = (
            (Sample(time=snapshot.time, state="?", threads=(Thread(tid=0, name="MainThread", stack=stack),)),)
            if stack
            else ()
        )
        ranks.append(replace(rank, process=replace(rank.process, samples=samples)))
    if not any(rank.process.samples for rank in ranks):
        raise UsageError(
            f"the dumps in {name} contain no stacks",
            f"Explain their calls: breakranks why {name}, or breakranks collectives {name}",
        )
    return replace(snapshot, ranks=tuple(ranks), problems=(_NOTE, *snapshot.problems))
