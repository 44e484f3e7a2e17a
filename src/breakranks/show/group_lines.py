"""One group in full: a row for each state of its members, where those are that others wait for, and its last calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from breakranks.explain.collectives import call_facts
from breakranks.explain.collectives.collective_progress import CollectiveProgress, PendingCall
from breakranks.explain.collectives.group_progress import DONE, CallTime, GroupProgress, ProgressRow
from breakranks.explain.finding_parts import where_of
from breakranks.rankset import RankSet, ranks_text
from breakranks.show.call_names import WORLD, call_text, cut, group_name, rank_cells, short_name, strided
from breakranks.show.quantities import duration, plural
from breakranks.show.terminal_text import Line, Piece, TerminalStyle, columns, wrap
from breakranks.show.wording.grammar import noun, verb
from breakranks.show.wording.value_wording import place
from breakranks.snapshot.code_owner import innermost_own

_ROWS_SHOWN = 12
_REMARKS_SHOWN = 3
_TITLE_CHARACTERS = 12
_HEAD = ("ranks", "", "at", "done", "state", "age", "call")


def group_lines(progress: CollectiveProgress, group: GroupProgress, style: TerminalStyle) -> Iterator[Line]:
    """Yield a group in full: its title, a row for each state of its members, and where those are that others wait
    for."""
    yield _title(progress, group, style)
    rows: list[list[Piece]] = [[(name, "dim") for name in _HEAD]]
    remarks: dict[int, list[str]] = {}
    front, back = _ends(group.rows, style)
    for row in (*front, *back):
        if row.awaited and row.state == DONE:
            remarks[len(rows)] = _whereabouts(progress, group.group, row.ranks, style)
        rows.append(_row(progress, group, row, style))
    if group.nothing:
        remarks[len(rows)] = _whereabouts(progress, group.group, group.nothing, style)
        rows.append([*rank_cells(group.nothing, style), "-", "-", ("not entered: nothing recorded", "verdict"), "", ""])
    for ranks, state in ((group.unseen, "unseen"), (group.awaited - group.members, "unseen, perhaps a member")):
        if ranks:
            rows.append([*rank_cells(ranks, style), "?", "?", (state, "warn"), "", ""])
    between = len(group.rows) - len(front) - len(back)
    for index, line in enumerate(columns(rows, right=(2, 3, 5))):
        if between and index == len(front) + 1:
            left = group.rows[len(front) : len(front) + between]
            yield (f"  … {plural(sum(len(row.ranks) for row in left), 'rank')} in between, with --full",)
        yield line
        for remark in remarks.get(index, ()):
            yield from ((text,) for text in wrap(remark, style.width, "      "))
    if group.behind:
        yield ("  ", ("queued behind another pending call:", "verdict"))
        for remark in _whereabouts(progress, group.group, group.behind, style):
            yield from ((text,) for text in wrap(remark, style.width, "      "))
    yield from _difference(progress, group, style)


def _title(progress: CollectiveProgress, standing: GroupProgress, style: TerminalStyle) -> Line:
    group = progress.group(standing.group)
    name = group_name(group)
    facts = [f"group {cut(group.name, style)}"] if call_facts.has_description(group) else []
    if name == WORLD:
        facts[-1] += f", {group.description}"
    facts += [group.backend] if group.backend else []
    facts += [f"timeout {duration(group.timeout)}"] if group.timeout else []
    facts += ["members as far as known"] if group.source == "seen" else []
    tail = "".join(f" · {fact}" for fact in facts)
    pieces: list[Piece] = [(cut(name, style), "head"), " ", *_bracketed(standing.members, style), (tail, "dim")]
    if standing.waiting:
        others = standing.awaited
        who = ranks_text(others) if len(str(others)) <= _TITLE_CHARACTERS else f"{len(others):,} others"
        pieces += [" · ", (f"{len(standing.waiting):,} {verb(len(standing.waiting), 'wait')} for {who}", "verdict")]
    return tuple(pieces)


def _ends(
    rows: tuple[ProgressRow, ...], style: TerminalStyle
) -> tuple[tuple[ProgressRow, ...], tuple[ProgressRow, ...]]:
    """Return the first and the last rows, if there are very many."""
    if style.full or len(rows) <= _ROWS_SHOWN:
        return rows, ()
    return rows[: _ROWS_SHOWN // 2], rows[-_ROWS_SHOWN // 2 :]


def _row(progress: CollectiveProgress, group: GroupProgress, row: ProgressRow, style: TerminalStyle) -> list[Piece]:
    operations = row.waits_operations or row.operations
    number = row.waits_in or row.number
    wrong = group.mismatch is not None and group.mismatch.number == number
    seconds = row.waits_seconds if row.waits_in else row.seconds
    return [
        *rank_cells(row.ranks, style),
        f"#{row.number}",
        f"#{row.completed}" if row.completed > 0 else "-",
        _state(row),
        duration(seconds) if seconds is not None else "",
        (call_text(progress, operations, style), "bad" if wrong else ""),
    ]


def _state(row: ProgressRow) -> Piece:
    if row.stale:
        return (f"{row.state}, seen earlier", "dim")
    if row.state == DONE:
        return (f"not entered #{row.awaited}", "verdict") if row.awaited else (DONE, "")
    where = f" in #{row.waits_in}" if row.waits_in != row.number else ""
    behind = f", not in #{row.awaited}" if row.awaited else ""
    return (f"{row.state}{where}{behind}", "warn")


def _whereabouts(progress: CollectiveProgress, group: int, ranks: RankSet, style: TerminalStyle) -> list[str]:
    """Return where the ranks are that have not entered: in a call of another group, or in no call since their last."""
    found: dict[str, list[int]] = {}
    for rank in ranks:
        found.setdefault(_whereabout(progress, group, rank, style), []).append(rank)
    texts = [f"{_named(RankSet(ranks), style)}: {text}" for text, ranks in found.items()]
    shown = texts if style.full else texts[:_REMARKS_SHOWN]
    more = len(texts) - len(shown)
    return [*shown, f"and {plural(more, 'other place')}, with --full"] if more else shown


def _whereabout(progress: CollectiveProgress, group: int, rank: int, style: TerminalStyle) -> str:
    head = held_up(progress, rank)
    if head is not None and head.is_transfer:
        return f"{'sends to' if head.sends else 'waits for a send from'} rank {head.peer}"
    if head is not None:
        call = f"{progress.name(head.entry.operation)} #{head.entry.number}"
        return f"waits in {call}{_of(progress, head.group, group, style)}{_from(progress, head.entry.stack)}"
    last = call_facts.newest(progress, rank)
    if last is None:
        return "in no call, and none is recorded"
    entry = last[1]
    call = f"{progress.name(entry.operation)} #{entry.number}"
    return f"in no call; its last was {call}{_of(progress, last[0], group, style)}{_from(progress, entry.stack)}"


def held_up(progress: CollectiveProgress, rank: int) -> PendingCall | None:
    """Return the call that blocks a rank, if one does."""
    return progress.head(rank) if rank in progress.waits else None


def _of(progress: CollectiveProgress, other: int, here: int, style: TerminalStyle) -> str:
    return "" if other == here else f" of {short_name(progress, other, style)}"


def _from(progress: CollectiveProgress, stack: int) -> str:
    frame = innermost_own(progress.snapshot.stack(stack))
    return f", from {place(where_of(frame))}" if frame is not None else ""


def _difference(progress: CollectiveProgress, group: GroupProgress, style: TerminalStyle) -> Iterator[Line]:
    """Yield the first call that differs between members, with its sides if the rows above do not show them."""
    if group.mismatch is None:
        return
    number = group.mismatch.number
    yield ("  ", (f"call #{number} differs between members", "verdict"))
    shown = {rank for row in group.rows if (row.waits_in or row.number) == number for rank in row.ranks}
    if group.mismatch.ranks <= RankSet(shown):
        return
    sides = [
        [*rank_cells(ranks, style), (call_text(progress, (row,), style), "bad")] for ranks, row in group.mismatch.sides
    ]
    yield from columns(sides, indent="    ")


def _bracketed(ranks: RankSet, style: TerminalStyle) -> tuple[Piece, ...]:
    return ((f"[{strided(ranks, style)}]", "rank"), (f" ({len(ranks):,})", "dim"))


def _named(ranks: RankSet, style: TerminalStyle) -> str:
    return f"{noun(len(ranks), 'rank')} {strided(ranks, style)}"


def history_lines(
    progress: CollectiveProgress, found: Sequence[CallTime], members: RankSet, style: TerminalStyle
) -> list[Line]:
    """Return a row for each number, newest last; several rows where members did different things."""
    rows: list[list[Piece]] = [[(name, "dim") for name in ("call", "", "ranks", "", "")]]
    before = 0
    for moment in found:
        if before and moment.number != before + 1:
            rows.append([("…", "dim"), "", "", "", ""])
        before = moment.number
        rows += _moment(progress, moment, members, style)
    return columns(rows, right=(0,), indent="  ")


def _moment(
    progress: CollectiveProgress, moment: CallTime, members: RankSet, terminal: TerminalStyle
) -> list[list[Piece]]:
    sides: dict[tuple[str, ...], tuple[RankSet, tuple[int, ...]]] = {}
    for ranks, row in moment.calls:
        # Calls whose differences are allowed, such as the sizes of an all_to_all, are one side.
        key = progress.what_counts(row)
        before, rows = sides.get(key, (RankSet(), ()))
        sides[key] = (before | ranks, (*rows, row))
    style = "bad" if moment.differs else ""
    parts: list[list[Piece]] = [
        [*rank_cells(ranks, terminal, members), (call_text(progress, rows, terminal), style)]
        for ranks, rows in sides.values()
    ]
    if moment.not_entered:
        parts.append([*rank_cells(moment.not_entered, terminal, members), ("not entered", "verdict")])
    if moment.forgotten:
        parts.append([*rank_cells(moment.forgotten, terminal, members), ("no longer recorded", "dim")])
    mark: Piece = ("differs", "verdict") if moment.differs else ""
    head: list[Piece] = [(f"#{moment.number}", "verdict" if moment.differs else ""), mark]
    return [[*(head if index == 0 else ["", ""]), *part] for index, part in enumerate(parts)]
