"""What ``breakranks collectives`` prints: which ranks are at which call of each group, and which are behind.

Healthy groups of one description are folded into one line. Groups in which ranks wait are shown in full, the most
troubled first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from breakranks.explain.collectives import call_facts
from breakranks.explain.collectives.collective_progress import CollectiveProgress
from breakranks.explain.collectives.group_progress import (
    DONE,
    UNDER_WAY,
    GroupProgress,
    PendingTransfers,
    moments,
    transfers,
)
from breakranks.explain.collectives.wait_ages import YOUNG_SECONDS, is_young, oldest_wait
from breakranks.rankset import RankSet
from breakranks.show.call_names import cut, group_name, rank_cells, short_name
from breakranks.show.group_lines import group_lines, held_up, history_lines
from breakranks.show.lost_host_lines import lost_lines
from breakranks.show.quantities import duration, plural
from breakranks.show.stack_tree import header, missing_lines, problem_lines, rank_pieces
from breakranks.show.terminal_text import Line, Piece, TerminalStyle, columns
from breakranks.show.wording.grammar import verb
from breakranks.snapshot.model import Problem, Snapshot

GROUPS_SHOWN = 12
_ROWS_SHOWN = 12
_ECHOES_SHOWN = 3


def collectives_lines(
    progress: CollectiveProgress,
    chosen: Sequence[GroupProgress],
    style: TerminalStyle,
    *,
    history: int = 0,
    ranks: RankSet | None = None,
    whole: bool = False,
) -> Iterator[Line]:
    """Yield what ``breakranks collectives`` prints of these groups. ``whole``: fold no group."""
    snapshot = progress.snapshot
    yield header(snapshot, style)
    yield ()
    yield from _summary(progress, chosen)
    shown, more, folded = _arranged(progress, chosen, style, whole, history)
    for group in shown:
        yield ()
        yield from group_lines(progress, group, style)
        if history:
            yield from history_lines(progress, moments(progress, group, history), group.members, style)
    if more:
        yield ()
        yield from _more(progress, more)
    if folded:
        yield ()
        yield from columns([_folded(progress, alike, style) for alike in folded], indent="")
    pending = transfers(progress, ranks)
    if pending:
        yield ()
        yield from transfer_lines(progress, pending, style)
    ended = [*_young_lines(progress), *unread_lines(snapshot, style), *missing_lines(snapshot, style)]
    ended += lost_lines(snapshot.hosts)
    ended += problem_lines(_others(snapshot), style)
    if ended:
        yield ()
        yield from ended


def _summary(progress: CollectiveProgress, chosen: Sequence[GroupProgress]) -> Iterator[Line]:
    """``13 groups · ranks wait for others in 8 · 5 healthy``"""
    if not chosen:
        yield (("No collective has been recorded.", "bold"),)
        return
    pieces: list[Piece] = [(plural(len(chosen), "group"), "head")]
    differ = sum(1 for group in chosen if group.mismatch is not None)
    waits = sum(1 for group in chosen if group.waiting and group.mismatch is None)
    well = sum(1 for group in chosen if group.well)
    rest = len(chosen) - differ - waits - well
    if differ:
        pieces += [" · ", (f"calls differ in {differ:,}", "verdict")]
    if waits:
        pieces += [" · ", (f"ranks wait for others in {waits:,}", "verdict")]
    if rest:
        pieces += [" · ", (f"{rest:,} with ranks at different calls, none waiting", "warn")]
    if well:
        pieces += [" · ", (f"{well:,} healthy", "good")]
    yield tuple(pieces)


def _arranged(
    progress: CollectiveProgress, chosen: Sequence[GroupProgress], style: TerminalStyle, whole: bool, history: int
) -> tuple[list[GroupProgress], list[GroupProgress], list[list[GroupProgress]]]:
    """Return the groups to show in full, those that are too many, and those to fold, by description."""
    alike: dict[object, list[GroupProgress]] = {}
    for group in chosen:
        if group.well and not (whole or style.full):
            alike.setdefault((group_name(progress.group(group.group)), _states(group)), []).append(group)
    if history:
        alike = {key: ones for key, ones in alike.items() if len(ones) > 1}
    hidden = {group.group for ones in alike.values() for group in ones}
    rest = [group for group in chosen if group.group not in hidden]
    if style.full:
        return rest, [], list(alike.values())
    shown: list[GroupProgress] = []
    more: list[GroupProgress] = []
    echoes: dict[object, int] = {}
    for group in rest:
        echo = _echo(progress, group)
        if echo is not None:
            echoes[echo] = echoes.get(echo, 0) + 1
        (more if len(shown) >= GROUPS_SHOWN or echoes.get(echo, 0) > _ECHOES_SHOWN else shown).append(group)
    return shown, more, list(alike.values())


def _echo(progress: CollectiveProgress, group: GroupProgress) -> object:
    """Return a key that is equal for groups that wait in the same way for ranks that wait elsewhere themselves; None
    for any other group."""
    heads = [held_up(progress, rank) for rank in group.not_entered]
    if group.mismatch is not None or not heads or any(head is None for head in heads):
        return None
    rows = tuple((len(row.ranks), row.number, row.state, row.operations) for row in group.rows)
    kinds = frozenset(call_facts.kind(progress, head) for head in heads if head is not None)
    return (group_name(progress.group(group.group)), rows, len(group.unseen), kinds)


def _states(group: GroupProgress) -> str:
    """Return what distinguishes healthy groups: whether a call is pending in them."""
    return "/".join(sorted({row.state for row in group.rows}))


def _folded(progress: CollectiveProgress, alike: list[GroupProgress], style: TerminalStyle) -> list[Piece]:
    """``mesh_tp   128 groups of 8, all at #1263, nothing pending``"""
    sizes = [len(group.members) for group in alike]
    rows = [row for group in alike for row in group.rows]
    numbers = [row.number for row in rows if not row.stale] or [row.number for row in rows]
    many = f"{len(alike):,} groups of " if len(alike) > 1 else ""
    size = f"{_span(sizes)}" if many else plural(sizes[0], "rank")
    text = f"{many}{size}, all at #{_span(numbers, '#', plain=True)}, {_pending(alike)}"
    unseen = sum(len(group.unseen) for group in alike)
    text += f", {plural(unseen, 'member')} unseen" if unseen else ""
    stale = sum(len(row.ranks) for row in rows if row.stale)
    text += f", {plural(stale, 'member')} seen earlier" if stale else ""
    seen = any(progress.group(group.group).source == "seen" for group in alike)
    text += ", members as far as known" if seen else ""
    return [(cut(group_name(progress.group(alike[0].group)), style), "head"), text]


def _pending(alike: list[GroupProgress]) -> str:
    rows = [row for group in alike for row in group.rows if not row.stale]
    if all(row.state == DONE for row in rows):
        return "nothing pending"
    started = all(row.state in (DONE, UNDER_WAY) for row in rows)
    ages = [row.waits_seconds for row in rows if row.waits_seconds is not None]
    text = f"all have entered it, {'started' if started else 'not completed'}"
    return f"{text} for {duration(max(ages))}" if ages and max(ages) >= YOUNG_SECONDS else text


def _more(progress: CollectiveProgress, left: list[GroupProgress]) -> Iterator[Line]:
    """Yield the groups that did not fit, by description: how many groups, and how many ranks wait for how many."""
    alike: dict[str, list[GroupProgress]] = {}
    for group in left:
        alike.setdefault(group_name(progress.group(group.group)), []).append(group)
    for name, ones in alike.items():
        waiting, others = RankSet(), RankSet()
        for group in ones:
            waiting |= group.waiting
            others |= group.awaited
        many = len(waiting)
        does = f"{plural(many, 'rank')} {verb(many, 'wait')} for {len(others):,}" if many else "no rank waits"
        yield ((cut(name, TerminalStyle()), "head"), f"  {plural(len(ones), 'more group')}, {does} (--full, --group)")


def _span(numbers: list[int], sign: str = "", *, plain: bool = False) -> str:
    low, high = min(numbers), max(numbers)
    first, last = (str(low), str(high)) if plain else (f"{low:,}", f"{high:,}")
    return first if low == high else f"{first} to {sign}{last}"


def transfer_lines(
    progress: CollectiveProgress, pending: Sequence[PendingTransfers], style: TerminalStyle
) -> Iterator[Line]:
    """Yield the sends and recvs that have not completed, and whether the other end has made its call."""
    yield (("point to point", "head"), f" · {plural(sum(one.calls for one in pending), 'call')} not completed")
    shown = pending if style.full else pending[:_ROWS_SHOWN]
    rows: list[list[Piece]] = []
    for transfer in shown:
        peer = f"rank {transfer.peer}" if transfer.peer >= 0 else "an unknown rank"
        times = f", {transfer.calls} calls" if transfer.calls > len(transfer.ranks) else ""
        rows.append(
            [
                *rank_cells(transfer.ranks, style),
                f"{'send to' if transfer.sends else 'recv from'} {peer}{times}",
                duration(transfer.seconds) if transfer.seconds is not None else "",
                _answer(transfer),
                (short_name(progress, transfer.group, style), "dim"),
            ]
        )
    yield from columns(rows, right=(3,))
    if len(pending) > len(shown):
        yield (f"  and {len(pending) - len(shown):,} more, with --full",)


def _answer(transfer: PendingTransfers) -> Piece:
    if transfer.answered is None:
        return ("the other end is unknown", "warn")
    if transfer.answered:
        return "both ends have called"
    return (f"rank {transfer.peer} has not called {'recv' if transfer.sends else 'send'}", "verdict")


def unread(snapshot: Snapshot) -> list[tuple[RankSet, str, str]]:
    """Return the live ranks whose recorder could not be read, with the reason and the remedy."""
    by_pid = _recorder_problems(snapshot)
    found: dict[tuple[str, str], list[int]] = {}
    for rank in snapshot.ranks:
        if rank.recorder is None:
            known = [
                (problem.detail, problem.remedy)
                for problem in by_pid.get(rank.process.pid, ())
                if not problem.hosts or rank.host in problem.hosts
            ]
            known += [(problem.what, problem.remedy) for problem in rank.process.problems]
            key = known[0] if known else ("no flight recorder: torch is not loaded or could not be queried", "")
            found.setdefault(key, []).append(rank.rank)
    return [(RankSet(ranks), what, remedy) for (what, remedy), ranks in found.items()]


def _recorder_problems(snapshot: Snapshot) -> dict[int, list[Problem]]:
    """Return the problems with recorders that could not be read, by the pid of their process."""
    found: dict[int, list[Problem]] = {}
    for problem in snapshot.problems:
        if problem.recorder_pid:
            found.setdefault(problem.recorder_pid, []).append(problem)
    return found


def _others(snapshot: Snapshot) -> list[Problem]:
    """Return the problems that do not concern the recorder of one rank."""
    pids = {rank.process.pid for rank in snapshot.ranks if rank.recorder is None}
    return [problem for problem in snapshot.problems if not problem.recorder_pid or problem.recorder_pid not in pids]


def unread_lines(snapshot: Snapshot, style: TerminalStyle) -> Iterator[Line]:
    for ranks, what, remedy in unread(snapshot):
        yield (*rank_pieces(ranks, style), " ", (f"unseen: {what}", "warn"))
        if remedy:
            yield ("    ", remedy)


def _young_lines(progress: CollectiveProgress) -> Iterator[Line]:
    if is_young(progress):
        yield (
            (f"The longest wait has lasted {duration(oldest_wait(progress) or 0)}: ", "bold"),
            "a healthy job looks the same. Run the command again.",
        )
