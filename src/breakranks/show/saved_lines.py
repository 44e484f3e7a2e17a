"""What `breakranks snapshot` prints about the file that it has written."""

from __future__ import annotations

from breakranks.rankset import RankSet, ranks_text
from breakranks.show.quantities import amount, plural
from breakranks.show.stack_tree import why_missing
from breakranks.show.terminal_text import Line
from breakranks.snapshot.model import Snapshot


def saved_lines(snapshot: Snapshot, path: str, size: int) -> list[Line]:
    """Return what the file contains, and which ranks it lacks."""
    ranks = RankSet(rank.rank for rank in snapshot.ranks)
    stacks = plural(len(snapshot.stacks) - 1, "different stack")
    samples = max((len(rank.process.samples) for rank in snapshot.ranks), default=0)
    recorders = sum(1 for rank in snapshot.ranks if rank.recorder is not None)
    contents = [] if not samples else [plural(samples, "sample")]
    contents += [] if not recorders else [plural(recorders, "flight recorder")]
    summary = ", ".join([*contents, stacks, amount(size)])
    lines: list[Line] = [(f"saved {ranks_text(ranks)} of job {snapshot.job.key}: {summary} in ", (path, "bold"))]
    for missing in snapshot.missing:
        gone = ranks_text(RankSet.parse(missing.ranks))
        lines.append((f"not in the file: {gone}, {why_missing(snapshot, missing)}",))
    lines.append(("explain it anywhere: ", (f"breakranks why {path}", "bold")))
    return lines
