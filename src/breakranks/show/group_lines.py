"""One group whole: a row for each stand, where those are that the others wait for, and its last calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from breakranks.explain.collectives import call_facts
from breakranks.explain.collectives.progress import CollectiveProgress, PendingCall
from breakranks.explain.values import where_of
from breakranks.rankset import RankSet, ranks_text
from breakranks.show.call_names import WORLD, call_text, cut, group_name, rank_cells, short_name, strided
from breakranks.show.group_progress import DONE, GroupProgress, Moment, ProgressRow
from breakranks.show.quantities import duration, plural
from breakranks.show.terminal_text import Line, Piece, TerminalStyle, columns, wrap
from breakranks.show.wording.value_wording import place
from breakranks.snapshot.code_owner import innermost_own

_ROWS_SHOWN = 12
_REMARKS_SHOWN = 3
_FEW = 12  # characters of a set that a title has room for
_HEAD = ("ranks", "", "at", "done", "state", "age", "call")


def group_lines(ledger: CollectiveProgress, one: GroupProgress, look: TerminalStyle) -> Iterator[Line]:
    """A group whole: its title, a row for each stand, and where those are that the others wait for."""
    yield _title(ledger, one, look)
    rows: list[list[Piece]] = [[(name, "dim") for name in _HEAD]]
    remarks: dict[int, list[str]] = {}
    front, back = _ends(one.rows, look)
    for row in (*front, *back):
        if row.awaited and row.state == DONE:
            remarks[len(rows)] = _whereabouts(ledger, one.group, row.ranks, look)
        rows.append(_row(ledger, one, row, look))
    if one.nothing:
        remarks[len(rows)] = _whereabouts(ledger, one.group, one.nothing, look)
        rows.append([*rank_cells(one.nothing, look), "-", "-", ("not entered: nothing recorded", "verdict"), "", ""])
    for ranks, state in ((one.unseen, "unseen"), (one.awaited - one.members, "unseen, perhaps a member")):
        if ranks:
            rows.append([*rank_cells(ranks, look), "?", "?", (state, "warn"), "", ""])
    between = len(one.rows) - len(front) - len(back)
    for index, line in enumerate(columns(rows, right=(2, 3, 5))):
        if between and index == len(front) + 1:
            left = one.rows[len(front) : len(front) + between]
            yield (f"  … {plural(sum(len(row.ranks) for row in left), 'rank')} between, with --full",)
        yield line
        for remark in remarks.get(index, ()):
            yield from ((text,) for text in wrap(remark, look.width, "      "))
    if one.behind:
        yield ("  ", ("entered behind another call that is pending:", "verdict"))
        for remark in _whereabouts(ledger, one.group, one.behind, look):
            yield from ((text,) for text in wrap(remark, look.width, "      "))
    yield from _difference(ledger, one, look)


def _title(ledger: CollectiveProgress, one: GroupProgress, look: TerminalStyle) -> Line:
    group = ledger.group(one.group)
    name = group_name(group)
    facts = [] if name.startswith("group ") else [f"group {cut(group.name, look)}"]
    if name == WORLD:
        facts[-1] += f", {group.description}"
    facts += [group.backend] if group.backend else []
    facts += [f"timeout {duration(group.timeout)}"] if group.timeout else []
    facts += ["members as far as seen"] if group.source == "seen" else []
    tail = "".join(f" · {fact}" for fact in facts)
    pieces: list[Piece] = [(cut(name, look), "head"), " ", *_bracketed(one.members, look), (tail, "dim")]
    if one.waiting:
        others = one.awaited
        verb = "waits" if len(one.waiting) == 1 else "wait"
        who = ranks_text(others) if len(str(others)) <= _FEW else f"{len(others):,} others"
        pieces += [" · ", (f"{len(one.waiting):,} {verb} for {who}", "verdict")]
    return tuple(pieces)


def _ends(
    rows: tuple[ProgressRow, ...], look: TerminalStyle
) -> tuple[tuple[ProgressRow, ...], tuple[ProgressRow, ...]]:
    """Of very many stands the front line and the farthest behind."""
    if look.full or len(rows) <= _ROWS_SHOWN:
        return rows, ()
    return rows[: _ROWS_SHOWN // 2], rows[-_ROWS_SHOWN // 2 :]


def _row(ledger: CollectiveProgress, one: GroupProgress, row: ProgressRow, look: TerminalStyle) -> list[Piece]:
    operations = row.waits_operations or row.operations
    number = row.waits_in or row.number
    wrong = one.mismatch is not None and one.mismatch.number == number
    seconds = row.waits_seconds if row.waits_in else row.seconds
    return [
        *rank_cells(row.ranks, look),
        f"#{row.number}",
        f"#{row.completed}" if row.completed > 0 else "-",
        _state(row),
        duration(seconds) if seconds is not None else "",
        (call_text(ledger, operations, look), "bad" if wrong else ""),
    ]


def _state(row: ProgressRow) -> Piece:
    if row.stale:
        return (f"{row.state}, seen earlier", "dim")
    if row.state == DONE:
        return (f"not entered #{row.awaited}", "verdict") if row.awaited else (DONE, "")
    where = f" in #{row.waits_in}" if row.waits_in != row.number else ""
    behind = f", not in #{row.awaited}" if row.awaited else ""
    return (f"{row.state}{where}{behind}", "warn")


def _whereabouts(ledger: CollectiveProgress, group: int, ranks: RankSet, look: TerminalStyle) -> list[str]:
    """Where those are that have not come: in a call of another group, or in none since their last."""
    found: dict[str, list[int]] = {}
    for rank in ranks:
        found.setdefault(_whereabout(ledger, group, rank, look), []).append(rank)
    texts = [f"{_named(RankSet(ranks), look)}: {text}" for text, ranks in found.items()]
    shown = texts if look.full else texts[:_REMARKS_SHOWN]
    more = len(texts) - len(shown)
    return [*shown, f"and {more} other places, with --full"] if more else shown


def _whereabout(ledger: CollectiveProgress, group: int, rank: int, look: TerminalStyle) -> str:
    head = held_up(ledger, rank)
    if head is not None and head.is_transfer:
        return f"{'sends to' if head.sends else 'waits for a send of'} rank {head.peer}"
    if head is not None:
        call = f"{ledger.name(head.entry.operation)} #{head.entry.number}"
        return f"waits in {call}{_of(ledger, head.group, group, look)}{_from(ledger, head.entry.stack)}"
    last = call_facts.newest(ledger, rank)
    if last is None:
        return "in no call, and none is recorded"
    entry = last[1]
    call = f"{ledger.name(entry.operation)} #{entry.number}"
    return f"in no call; its last was {call}{_of(ledger, last[0], group, look)}{_from(ledger, entry.stack)}"


def held_up(ledger: CollectiveProgress, rank: int) -> PendingCall | None:
    """The call that holds a rank up, if one does."""
    return ledger.head(rank) if rank in ledger.waits else None


def _of(ledger: CollectiveProgress, other: int, here: int, look: TerminalStyle) -> str:
    return "" if other == here else f" of {short_name(ledger, other, look)}"


def _from(ledger: CollectiveProgress, stack: int) -> str:
    frame = innermost_own(ledger.snapshot.stack(stack))
    return f", from {place(where_of(frame))}" if frame is not None else ""


def _difference(ledger: CollectiveProgress, one: GroupProgress, look: TerminalStyle) -> Iterator[Line]:
    """The first call that is not the same on all, with its sides where the rows above do not show them."""
    if one.mismatch is None:
        return
    number = one.mismatch.number
    yield ("  ", (f"call #{number} is not the same on all members", "verdict"))
    shown = {row for stand in one.rows if (stand.waits_in or stand.number) == number for row in stand.ranks}
    if one.mismatch.ranks <= RankSet(shown):
        return
    sides = [[*rank_cells(ranks, look), (call_text(ledger, (row,), look), "bad")] for ranks, row in one.mismatch.sides]
    yield from columns(sides, indent="    ")


def _bracketed(ranks: RankSet, look: TerminalStyle) -> tuple[Piece, ...]:
    return ((f"[{strided(ranks, look)}]", "rank"), (f" ({len(ranks):,})", "dim"))


def _named(ranks: RankSet, look: TerminalStyle) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {strided(ranks, look)}"


def history_lines(
    ledger: CollectiveProgress, found: Sequence[Moment], members: RankSet, look: TerminalStyle
) -> list[Line]:
    """A row for each number, newest last; more where members did different things."""
    rows: list[list[Piece]] = [[(name, "dim") for name in ("call", "", "ranks", "", "")]]
    before = 0
    for moment in found:
        if before and moment.number != before + 1:
            rows.append([("…", "dim"), "", "", "", ""])
        before = moment.number
        rows += _moment(ledger, moment, members, look)
    return columns(rows, right=(0,), indent="  ")


def _moment(ledger: CollectiveProgress, moment: Moment, members: RankSet, look: TerminalStyle) -> list[list[Piece]]:
    sides: dict[tuple[str, ...], tuple[RankSet, tuple[int, ...]]] = {}
    for ranks, row in moment.calls:
        # What may differ from rank to rank, such as the sizes of an all_to_all, is one side.
        key = ledger.what_counts(row)
        before, rows = sides.get(key, (RankSet(), ()))
        sides[key] = (before | ranks, (*rows, row))
    style = "bad" if moment.differs else ""
    parts: list[list[Piece]] = [
        [*rank_cells(ranks, look, members), (call_text(ledger, rows, look), style)] for ranks, rows in sides.values()
    ]
    if moment.not_entered:
        parts.append([*rank_cells(moment.not_entered, look, members), ("not entered", "verdict")])
    if moment.forgotten:
        parts.append([*rank_cells(moment.forgotten, look, members), ("no longer recorded", "dim")])
    mark: Piece = ("differs", "verdict") if moment.differs else ""
    head: list[Piece] = [(f"#{moment.number}", "verdict" if moment.differs else ""), mark]
    return [[*(head if index == 0 else ["", ""]), *part] for index, part in enumerate(parts)]
