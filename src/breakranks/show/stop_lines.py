"""Ranks in the debugger as text: who stopped where and why, and the table of where all ranks are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from breakranks.rank_messages import CodePlace, RankState, ShardedModule, StateEvent, WhereEvent
from breakranks.rankset import RankSet, ranks_text, short_text
from breakranks.show.terminal_text import Line, TerminalStyle, short_path

_MAX_NOTES = 4
_MAX_PIDS = 4
_MAIN_THREAD = "MainThread"
# Reasons that the user who sees the stop knows already.
_PLAIN_REASONS = ("", "breakpoint", "step", "interrupt", "attach", "hold")
_NOWHERE = CodePlace()


class _Standing(NamedTuple):
    """What a rank is doing, in which style that is shown, and where."""

    text: str
    style: str
    place: str


def stopped_lines(states: Iterable[RankState], look: TerminalStyle) -> list[Line]:
    """Ranks that have stopped, one paragraph for those of one place and reason."""
    groups: dict[tuple[object, ...], list[RankState]] = {}
    for state in states:
        where = state.where or _NOWHERE
        key = (state.role, state.reason, where.file, where.line, _held_for(state))
        groups.setdefault(key, []).append(state)
    ordered = sorted(groups.values(), key=lambda group: (group[0].is_held, _ranks(group).first))
    return [line for group in ordered for line in _stopped(group, look)]


def _held_for(state: RankState) -> str:
    """The ranks that a rank is held for; "" where that is itself."""
    stoppers = state.stoppers or "" if state.is_held else ""
    return "" if stoppers == str(state.rank) else stoppers


def _stopped(group: Sequence[RankState], look: TerminalStyle) -> Iterator[Line]:
    state = group[0]
    ranks = _ranks(group)
    place = _place(state.where, look)
    who = ranks_text(ranks)
    if state.helper:
        pids = ", ".join(str(member.pid) for member in group[:_MAX_PIDS])
        who = f"{who} (helper, pid {pids})"
    if state.is_held:
        awaited = _held_for(state)
        verb = "is" if len(ranks) == 1 else "are"
        names = f", for {ranks_text(RankSet.parse(awaited))}" if awaited and awaited != str(ranks) else ""
        yield [(who, "rank"), f" {verb} held, {place}{names}"]
        return
    reason = state.reason or ""
    what = (reason, "bad") if state.crashed else ("stopped", "own")
    why = "" if state.crashed or reason in _PLAIN_REASONS else f" ({reason})"
    yield [(who, "rank"), " ", what, f", {place}{why}"]
    if state.where is not None and state.where.source:
        yield ["  -> ", state.where.source]
    # What pdb has printed besides the place: --Return--, or the output of a breakpoint's commands.
    printed = state.text or "" if isinstance(state, StateEvent) else ""
    for line in printed.splitlines():
        if not line.startswith(("> ", "-> ")):
            yield [("  " + line, "dim")]
    if state.thread and state.thread != _MAIN_THREAD:
        yield [f"  in thread {state.thread}"]
    if state.inside is not None:
        yield from _inside(state.inside)
    for note in (state.notes or ())[:_MAX_NOTES]:
        yield [(f"  {note}", "warn")]


def _inside(inside: ShardedModule) -> Iterator[Line]:
    """Within the forward or backward of a sharded module: what can safely be evaluated there."""
    module = inside.get("module") or "the root module"
    text = f"inside the {inside.get('pass')} of {inside.get('kind')} module {module} ({inside.get('class')})"
    yield [(f"  {text}", "warn")]
    for sentence in inside.get("safe", ()):
        yield [(f"    {sentence}", "dim")]


def inspected_lines(states: Iterable[WhereEvent], look: TerminalStyle) -> list[Line]:
    """Ranks that are not stopped and can be inspected: whether they are blocked, and in what."""
    groups: dict[tuple[bool, str], list[int]] = {}
    for state in states:
        place = _running_place(state, look)
        at = place if state.collective is not None or not place else f"at {place}"
        groups.setdefault((bool(state.blocked), at), []).append(state.rank)
    return [
        [
            (ranks_text(RankSet(ranks)), "rank"),
            ": ",
            ("blocked" if blocked else "running", "warn"),
            f" {at}" if at else "",
            (" (inspect only)", "dim"),
        ]
        for (blocked, at), ranks in groups.items()
    ]


def place(where: CodePlace, look: TerminalStyle) -> Line:
    """The line of a hit."""
    return [(_place(where, look), "dim")]


def where_lines(places: Iterable[tuple[int, CodePlace, str]], look: TerminalStyle) -> list[Line]:
    """In which frames and threads something was evaluated: one line per place, with its ranks."""
    groups: dict[str, list[int]] = {}
    for rank, where, thread in places:
        more = f", thread {thread}" if thread and thread != _MAIN_THREAD else ""
        groups.setdefault(f"in {where.function}, {_file(where, look)}{more}", []).append(rank)
    alone = len(groups) == 1
    return [[(text if alone else f"{ranks_text(RankSet(ranks))} {text}", "dim")] for text, ranks in groups.items()]


def standing_lines(states: Iterable[RankState], absent: RankSet, look: TerminalStyle) -> list[Line]:
    """One row per class: the ranks, what they are doing, and where."""
    groups: dict[_Standing, list[int]] = {}
    for state in states:
        groups.setdefault(_standing(state, look), []).append(state.rank)
    rows = [(short_text(RankSet(ranks)), standing) for standing, ranks in groups.items()]
    if absent:
        rows.append((short_text(absent), _Standing("not connected", "dim", "on another host, or at no breakpoint yet")))
    ranks_width = max((len(ranks) for ranks, _ in rows), default=0)
    text_width = max((len(standing.text) for _, standing in rows), default=0)
    return [
        [
            (f"{ranks:<{ranks_width}}", "rank"),
            "  ",
            (f"{standing.text:<{text_width}}", standing.style),
            f"  {standing.place}",
        ]
        for ranks, standing in rows
    ]


def _standing(state: RankState, look: TerminalStyle) -> _Standing:
    if not state.is_stopped:
        place = _running_place(state, look)
        if isinstance(state, WhereEvent) and state.blocked:
            return _Standing("blocked", "warn", place)
        return _Standing("running to a breakpoint" if state.tracing else "running", "good", place)
    place = _place(state.where, look)
    if state.state == "busy":
        return _Standing("evaluating", "warn", place)
    if state.crashed:
        return _Standing("crashed", "bad", f"{place}: {state.exception or 'crashed'}")
    return _Standing("held", "warn", place) if state.is_held else _Standing("prompt", "own", place)


def _running_place(state: RankState, look: TerminalStyle) -> str:
    if not isinstance(state, WhereEvent):
        return ""
    if state.collective is not None:
        place = state.collective if state.collective.line is not None else next(iter(state.frames), None)
        return f"in {state.collective.op}, {_place(place, look)}"
    return _place(state.frames[0], look) if state.frames else ""


def _ranks(group: Iterable[RankState]) -> RankSet:
    return RankSet(state.rank for state in group)


def _place(where: CodePlace | None, look: TerminalStyle) -> str:
    where = where or _NOWHERE
    return f"{_file(where, look)} in {where.function}"


def _file(where: CodePlace, look: TerminalStyle) -> str:
    return f"{short_path(where.file, look)}:{where.line if where.line is not None else '?'}"
