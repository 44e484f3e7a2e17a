"""Samples in which the stacks of a process could not be read, although they could be read just before and after.

Such a sample says nothing about where its threads are: to take them for threads without Python would mean that they
have moved. A process whose stacks cannot be read twice in a row keeps all its samples.
"""

from __future__ import annotations

from dataclasses import replace

from breakranks.snapshot.model import Process, Sample, Snapshot

_NO_STACK_STATES = frozenset("TtZX")  # the state matters, and the stack may be missing for good
_LEAST_SAMPLES = 2


def without_unread_samples(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without these samples. Every process keeps two samples at the least."""
    ranks = tuple(
        rank if (process := _kept(rank.process)) is rank.process else replace(rank, process=process)
        for rank in snapshot.ranks
    )
    return (
        snapshot
        if all(new is old for new, old in zip(ranks, snapshot.ranks, strict=True))
        else replace(snapshot, ranks=ranks)
    )


def newest_is_unread(process: Process) -> bool:
    """Whether the stacks could be read in the last sample but one, and not in the last."""
    return len(process.samples) >= _LEAST_SAMPLES and _is_unread(process.samples, len(process.samples) - 1)


def _kept(process: Process) -> Process:
    samples = process.samples
    if any(not _has_stack(sample) for sample in samples):
        kept = _read_samples(samples)
        samples = kept if len(kept) >= _LEAST_SAMPLES else samples
    children = tuple(map(_kept, process.children))
    if len(samples) == len(process.samples) and all(a is b for a, b in zip(children, process.children, strict=True)):
        return process
    return replace(process, samples=samples, children=children)


def _read_samples(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    kept: list[Sample] = []
    left_out: Sample | None = None
    for index, sample in enumerate(samples):
        if _is_unread(samples, index):
            left_out = sample
            continue
        kept.append(sample if left_out is None else _with_motion(sample, left_out))
        left_out = None
    return tuple(kept)


def _with_motion(sample: Sample, left_out: Sample) -> Sample:
    """Return a sample that also tells which threads ran before the one that is left out."""
    if left_out.quiet_ran is None:
        return sample
    ran = {*left_out.quiet_ran, *(sample.quiet_ran or ())}
    return sample._replace(quiet=max(sample.quiet, left_out.quiet), quiet_ran=tuple(sorted(ran)))


def _has_stack(sample: Sample) -> bool:
    return any(thread.python for thread in sample.threads)


def _is_unread(samples: tuple[Sample, ...], index: int) -> bool:
    """Whether the sample has no stack, and the one before and the one after, if there is one, have stacks."""
    sample = samples[index]
    if _has_stack(sample) or not index or sample.state in _NO_STACK_STATES:
        return False
    return all(_has_stack(other) for other in (samples[index - 1], *samples[index + 1 : index + 2]))
