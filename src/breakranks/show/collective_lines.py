"""Every group's calls as people read them: the front line, who is behind, and what was called.

Groups in which all is well are one line for all of one description; those in which somebody waits for somebody
stand whole, most troubled first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from breakranks.explain.collectives import call_facts
from breakranks.explain.collectives.progress import CollectiveProgress
from breakranks.rankset import RankSet
from breakranks.show.call_names import cut, group_name, rank_cells, short_name
from breakranks.show.group_lines import group_lines, held_up, history_lines
from breakranks.show.group_progress import (
    DONE,
    UNDER_WAY,
    GroupProgress,
    PendingTransfers,
    moments,
    oldest_wait,
    transfers,
)
from breakranks.show.lost_hosts import lost_lines
from breakranks.show.quantities import duration, plural
from breakranks.show.stack_tree import header, missing_lines, only_recorded, problem_lines, rank_pieces
from breakranks.show.terminal_text import Line, Piece, TerminalStyle, columns
from breakranks.snapshot.model import Problem, Rank, Snapshot

GROUPS_SHOWN = 12
_ROWS_SHOWN = 12
_ECHOES_SHOWN = 3
_YOUNG_SECONDS = 2.0
# How a problem names the process whose recorder it is about.
_RECORDER_OF = re.compile(r"recorder of process (\d+) ")


def collectives_lines(
    ledger: CollectiveProgress,
    chosen: Sequence[GroupProgress],
    look: TerminalStyle,
    *,
    history: int = 0,
    ranks: RankSet | None = None,
    whole: bool = False,
) -> Iterator[Line]:
    """What ``breakranks collectives`` prints of these groups. ``whole``: fold none of them, well or not."""
    snapshot = ledger.snapshot
    yield header(snapshot, look)
    yield ()
    yield from _summary(ledger, chosen)
    shown, more, folded = _shared_out(ledger, chosen, look, whole, history)
    for one in shown:
        yield ()
        yield from group_lines(ledger, one, look)
        if history:
            yield from history_lines(ledger, moments(ledger, one, history), one.members, look)
    if more:
        yield ()
        yield from _more(ledger, more)
    if folded:
        yield ()
        yield from columns([_folded(ledger, alike, look) for alike in folded], indent="")
    pending = transfers(ledger, ranks)
    if pending:
        yield ()
        yield from transfer_lines(ledger, pending, look)
    ended = [*_young(ledger), *unread_lines(snapshot, look), *missing_lines(snapshot, look)]
    ended += lost_lines(snapshot.hosts)
    ended += problem_lines(_others(snapshot), look)
    if ended:
        yield ()
        yield from ended


def _summary(ledger: CollectiveProgress, chosen: Sequence[GroupProgress]) -> Iterator[Line]:
    """``13 groups · ranks wait for others in 8 · 5 are well``"""
    if not chosen:
        yield (("No collective has been recorded.", "bold"),)
        return
    pieces: list[Piece] = [(plural(len(chosen), "group"), "head")]
    differ = sum(1 for one in chosen if one.mismatch is not None)
    waits = sum(1 for one in chosen if one.waiting and one.mismatch is None)
    well = sum(1 for one in chosen if one.well)
    rest = len(chosen) - differ - waits - well
    if differ:
        pieces += [" · ", (f"members call different things in {differ:,}", "verdict")]
    if waits:
        pieces += [" · ", (f"ranks wait for others in {waits:,}", "verdict")]
    if rest:
        pieces += [" · ", (f"{rest:,} uneven, nobody waits", "warn")]
    if well:
        pieces += [" · ", (f"{well:,} {'is' if well == 1 else 'are'} well", "good")]
    yield tuple(pieces)


def _shared_out(
    ledger: CollectiveProgress, chosen: Sequence[GroupProgress], look: TerminalStyle, whole: bool, history: int
) -> tuple[list[GroupProgress], list[GroupProgress], list[list[GroupProgress]]]:
    """Which groups stand whole, which are too many, and which are folded, by description."""
    alike: dict[object, list[GroupProgress]] = {}
    for one in chosen:
        if one.well and not (whole or look.full):
            alike.setdefault((group_name(ledger.group(one.group)), _stands(one)), []).append(one)
    if history:
        alike = {key: ones for key, ones in alike.items() if len(ones) > 1}
    hidden = {one.group for ones in alike.values() for one in ones}
    rest = [one for one in chosen if one.group not in hidden]
    if look.full:
        return rest, [], list(alike.values())
    shown: list[GroupProgress] = []
    more: list[GroupProgress] = []
    echoes: dict[object, int] = {}
    for one in rest:
        echo = _echo(ledger, one)
        if echo is not None:
            echoes[echo] = echoes.get(echo, 0) + 1
        (more if len(shown) >= GROUPS_SHOWN or echoes.get(echo, 0) > _ECHOES_SHOWN else shown).append(one)
    return shown, more, list(alike.values())


def _echo(ledger: CollectiveProgress, one: GroupProgress) -> object:
    """Equal for groups that wait alike for ranks that wait elsewhere themselves; None for any that says more."""
    heads = [held_up(ledger, rank) for rank in one.not_entered]
    if one.mismatch is not None or not heads or any(head is None for head in heads):
        return None
    rows = tuple((len(row.ranks), row.number, row.state, row.operations) for row in one.rows)
    kinds = frozenset(call_facts.kind(ledger, head) for head in heads if head is not None)
    return (group_name(ledger.group(one.group)), rows, len(one.unseen), kinds)


def _stands(one: GroupProgress) -> str:
    """What tells groups that are well apart: whether something is pending in them."""
    return "/".join(sorted({row.state for row in one.rows}))


def _folded(ledger: CollectiveProgress, alike: list[GroupProgress], look: TerminalStyle) -> list[Piece]:
    """``mesh_tp   128 groups of 8, all at #1263, nothing pending``"""
    sizes = [len(one.members) for one in alike]
    rows = [row for one in alike for row in one.rows]
    numbers = [row.number for row in rows if not row.stale] or [row.number for row in rows]
    many = f"{len(alike):,} groups of " if len(alike) > 1 else ""
    size = f"{_span(sizes)}" if many else plural(sizes[0], "rank")
    text = f"{many}{size}, all at #{_span(numbers, '#', plain=True)}, {_pending(alike)}"
    unseen = sum(len(one.unseen) for one in alike)
    text += f", {plural(unseen, 'member')} unseen" if unseen else ""
    stale = sum(len(row.ranks) for row in rows if row.stale)
    text += f", {plural(stale, 'member')} seen earlier" if stale else ""
    seen = any(ledger.group(one.group).source == "seen" for one in alike)
    text += ", members as far as seen" if seen else ""
    return [(cut(group_name(ledger.group(alike[0].group)), look), "head"), text]


def _pending(alike: list[GroupProgress]) -> str:
    rows = [row for one in alike for row in one.rows if not row.stale]
    if all(row.state == DONE for row in rows):
        return "nothing pending"
    started = all(row.state in (DONE, UNDER_WAY) for row in rows)
    ages = [row.waits_seconds for row in rows if row.waits_seconds is not None]
    text = f"all have entered it, {'started' if started else 'not completed'}"
    return f"{text} for {duration(max(ages))}" if ages and max(ages) >= _YOUNG_SECONDS else text


def _more(ledger: CollectiveProgress, left: list[GroupProgress]) -> Iterator[Line]:
    """What did not fit, by description: how many groups, and how many wait for how many."""
    alike: dict[str, list[GroupProgress]] = {}
    for one in left:
        alike.setdefault(group_name(ledger.group(one.group)), []).append(one)
    for name, ones in alike.items():
        waiting, others = RankSet(), RankSet()
        for one in ones:
            waiting |= one.waiting
            others |= one.awaited
        does = f"{plural(len(waiting), 'rank')} wait for {len(others):,}" if waiting else "nobody waits"
        yield ((cut(name, TerminalStyle()), "head"), f"  {plural(len(ones), 'more group')}, {does} (--full, --group)")


def _span(numbers: list[int], sign: str = "", *, plain: bool = False) -> str:
    low, high = min(numbers), max(numbers)
    first, last = (str(low), str(high)) if plain else (f"{low:,}", f"{high:,}")
    return first if low == high else f"{first} to {sign}{last}"


def transfer_lines(
    ledger: CollectiveProgress, pending: Sequence[PendingTransfers], look: TerminalStyle
) -> Iterator[Line]:
    """Sends and recvs that have not completed, and whether the other end has called its part."""
    yield (("point to point", "head"), f" · {plural(sum(one.calls for one in pending), 'call')} not completed")
    shown = pending if look.full else pending[:_ROWS_SHOWN]
    rows: list[list[Piece]] = []
    for one in shown:
        peer = f"rank {one.peer}" if one.peer >= 0 else "a rank that is not known"
        times = f", {one.calls} calls" if one.calls > len(one.ranks) else ""
        rows.append(
            [
                *rank_cells(one.ranks, look),
                f"{'send to' if one.sends else 'recv from'} {peer}{times}",
                duration(one.seconds) if one.seconds is not None else "",
                _answer(one),
                (short_name(ledger, one.group, look), "dim"),
            ]
        )
    yield from columns(rows, right=(3,))
    if len(pending) > len(shown):
        yield (f"  and {len(pending) - len(shown):,} more, with --full",)


def _answer(one: PendingTransfers) -> Piece:
    if one.answered is None:
        return ("the other end is not known", "warn")
    if one.answered:
        return "both ends are in it"
    return (f"rank {one.peer} has not called {'recv' if one.sends else 'send'}", "verdict")


def unread(snapshot: Snapshot) -> list[tuple[RankSet, str, str]]:
    """Ranks that are there and whose recorder could not be read: who, why, and the remedy."""
    told = _told(snapshot)
    found: dict[tuple[str, str], list[int]] = {}
    for rank in snapshot.ranks:
        if rank.recorder is None:
            known = [
                (one.what.partition(mark)[2], one.remedy)
                for mark, one in told.get(rank.process.pid, ())
                if _is_of(snapshot, rank, one)
            ]
            known += [(one.what, one.remedy) for one in rank.process.problems]
            key = known[0] if known else ("no flight recorder: torch is not loaded, or could not be asked", "")
            found.setdefault(key, []).append(rank.rank)
    return [(RankSet(ranks), what, remedy) for (what, remedy), ranks in found.items()]


def _told(snapshot: Snapshot) -> dict[int, list[tuple[str, Problem]]]:
    """Problems with the recorder of one process, by its pid, with the words that name it."""
    found: dict[int, list[tuple[str, Problem]]] = {}
    for one in snapshot.problems:
        match = _RECORDER_OF.search(one.what)
        if match is not None:
            found.setdefault(int(match[1]), []).append((match[0], one))
    return found


def _is_of(snapshot: Snapshot, rank: Rank, problem: Problem) -> bool:
    """Whether a problem is of the rank's host: where there are several, it begins with their names."""
    if not snapshot.remote_ranks:
        return True
    names, _, _ = problem.what.partition(": ")
    return names == rank.host or "[" in names or "," in names


def _others(snapshot: Snapshot) -> list[Problem]:
    """The problems that are not about one rank's recorder."""
    pids = {rank.process.pid for rank in snapshot.ranks if rank.recorder is None}
    mine = {one for pid, some in _told(snapshot).items() if pid in pids for _, one in some}
    return [one for one in snapshot.problems if one not in mine]


def unread_lines(snapshot: Snapshot, look: TerminalStyle) -> Iterator[Line]:
    for ranks, what, remedy in unread(snapshot):
        yield (*rank_pieces(ranks, look), " ", (f"unseen: {what}", "warn"))
        if remedy:
            yield ("    ", remedy)


def is_young(ledger: CollectiveProgress) -> bool:
    """Whether the waits of a live job are so young that it may simply run."""
    age = oldest_wait(ledger)
    return age is not None and age < _YOUNG_SECONDS and not all(map(only_recorded, ledger.snapshot.ranks))


def _young(ledger: CollectiveProgress) -> Iterator[Line]:
    if is_young(ledger):
        yield (
            (f"The longest wait has lasted {duration(oldest_wait(ledger) or 0)}: ", "bold"),
            "a job that simply runs looks like this too. Ask again.",
        )
