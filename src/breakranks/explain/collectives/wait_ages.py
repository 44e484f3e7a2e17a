"""How long calls have been pending, and whether that is long enough for a hang."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from breakranks.explain.collectives.collective_progress import CollectiveProgress
from breakranks.explain.collectives.root_causes import STALLED, RootCause
from breakranks.snapshot.model import Snapshot
from breakranks.snapshot.recorder_tables import Entry, Recorder

# A job whose waits are shorter may be healthy.
YOUNG_SECONDS = 2.0
# A dump whose time is this much newer than its newest call was copied, so its time is not that of its writing.
_COPIED_SECONDS = 6 * 3600.0


def seconds_since(progress: CollectiveProgress, rank: int, entry: Entry) -> float | None:
    """Return how old a call was when the recorder was read. For a dump without the time of its writing: how much older
    it is than the newest call of all."""
    if not entry.created:
        return None
    return max(0.0, _read_at(progress.snapshot, progress.recorders[rank]) - entry.created)


def longest(progress: CollectiveProgress, calls: Iterable[tuple[int, Entry]]) -> float | None:
    """Return the age of the oldest of some calls of ranks."""
    ages = [seconds_since(progress, rank, entry) for rank, entry in calls]
    return max((age for age in ages if age is not None), default=None)


def oldest_wait(progress: CollectiveProgress) -> float | None:
    """Return how long the longest wait for another rank has lasted."""
    return longest(
        progress, ((rank, wait.entry) for rank, waits in progress.waits.items() for wait in waits if wait.others)
    )


def is_young(progress: CollectiveProgress) -> bool:
    """Whether the waits of a live job are so short that it may be healthy."""
    age = oldest_wait(progress)
    return age is not None and age < YOUNG_SECONDS and not progress.snapshot.of_dumps


def is_hang(progress: CollectiveProgress, causes: Sequence[RootCause]) -> bool:
    """Whether ranks have waited for others for some time, or their calls differ."""
    return any(cause.kind != STALLED or cause.victims for cause in causes) and not is_young(progress)


def _read_at(snapshot: Snapshot, recorder: Recorder) -> float:
    live = bool(snapshot.ranks) and snapshot.ranks[0].process.pid > 0
    believable = live or 0 <= recorder.time - recorder.newest < _COPIED_SECONDS
    return recorder.time if recorder.time and believable else snapshot.time
