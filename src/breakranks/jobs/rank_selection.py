"""The ranks that ``--rank`` selects, checked against the job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from breakranks.errors import UsageError
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.model import Missing


def selected_ranks(text: str | None, here: Iterable[int], missing: Sequence[Missing] = ()) -> RankSet | None:
    """Return the ranks of a rank set, or None for all ranks; raise UsageError for a rank that the job does not have."""
    if text is None or text == "all":
        return None

    try:
        ranks = RankSet.parse(text)
    except ValueError as error:  # a number of thousands of digits
        raise UsageError("--rank has a number that is not a rank", "Write ranks as 0-7,12.") from error
    if not ranks:
        raise UsageError("--rank names no rank", "Write ranks as 3, 0-7, 0,4-6.")
    present = RankSet(here)
    gone = RankSet()
    for entry in missing:
        gone |= RankSet.parse(entry.ranks)
    unknown = ranks - present - gone
    if unknown:
        also = f" Missing: {gone}." if gone else ""
        verb = "is" if len(unknown) == 1 else "are"
        has = f"The job has {ranks_text(present)}." if present else "None of its ranks is here."
        raise UsageError(f"{ranks_text(unknown)} {verb} not in this job", f"{has}{also}")
    return ranks
