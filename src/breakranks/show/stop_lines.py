"""How ranks at a prompt look: who stopped where and why, and the table of where everyone is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from breakranks.rankset import RankSet, ranks_text, short_text
from breakranks.show.terminal_text import Line, TerminalStyle, short_path

_MAX_NOTES = 4
# Whoever sees the stop knows these already.
_PLAIN_REASONS = ("", "breakpoint", "step", "interrupt", "attach", "hold")


def stopped_lines(states: Iterable[Mapping[str, Any]], look: TerminalStyle) -> list[Line]:
    """Ranks that have stopped, those of one place and reason in one paragraph."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for state in states:
        where = _where(state)
        held_for = _held_for(state)
        key = (state.get("role"), state.get("reason"), where.get("file"), where.get("line"), held_for)
        groups.setdefault(key, []).append(state)
    ordered = sorted(groups.values(), key=lambda group: (group[0].get("role") == "held", _ranks(group).first))
    return [line for group in ordered for line in _stopped(group, look)]


def _held_for(state: Mapping[str, Any]) -> str:
    """The ranks that a rank is held for; nothing where that is itself."""
    stoppers = str(state.get("stoppers", "")) if state.get("role") == "held" else ""
    return "" if stoppers == str(state.get("rank")) else stoppers


def _stopped(group: list[Mapping[str, Any]], look: TerminalStyle) -> Iterator[Line]:
    state = group[0]
    ranks = _ranks(group)
    where = _where(state)
    verb = "is" if len(ranks) == 1 else "are"
    reason = str(state.get("reason", ""))
    place = f"{_file(where, look)} in {where.get('function', '?')}"
    if state.get("helper"):
        pids = ", ".join(str(one.get("pid")) for one in group[:4])
        who = f"{ranks_text(ranks)} (helper, pid {pids})"
    else:
        who = ranks_text(ranks)
    if state.get("role") == "held":
        awaited = _held_for(state)
        text = f"{verb} held, {place}" + (f", for rank {awaited}" if awaited and awaited != str(ranks) else "")
        yield [(who, "rank"), f" {text}"]
        return
    said = reason if reason.startswith("crashed") else "stopped"
    style = "bad" if reason.startswith("crashed") else "own"
    why = f" ({reason})" if said == "stopped" and reason not in _PLAIN_REASONS else ""
    yield [(who, "rank"), " ", (said, style), f", {place}{why}"]
    if where.get("source"):
        yield ["  -> ", str(where["source"])]
    # What pdb said besides the place: --Return--, or the commands of a breakpoint.
    for line in str(state.get("text", "")).splitlines():
        if not line.startswith(("> ", "-> ")):
            yield [("  " + line, "dim")]
    thread = str(state.get("thread", ""))
    if thread and thread != "MainThread":
        yield [f"  in thread {thread}"]
    yield from _inside(state)
    notes = state.get("notes")
    for note in notes[:_MAX_NOTES] if isinstance(notes, list) else []:
        yield [(f"  {note}", "warn")]


def _inside(state: Mapping[str, Any]) -> Iterator[Line]:
    """Within the forward of a sharded module: what is safe to look at there."""
    inside = state.get("inside")
    if not isinstance(inside, dict):
        return
    module = str(inside.get("module", "")) or "the root module"
    yield [
        (f"  inside the {inside.get('pass')} of {inside.get('kind')} module {module} ({inside.get('class')})", "warn")
    ]
    safe = inside.get("safe")
    for sentence in safe if isinstance(safe, list) else []:
        yield [("    " + str(sentence), "dim")]


def inspected_lines(replies: Mapping[int, Mapping[str, Any]], look: TerminalStyle) -> list[Line]:
    """Ranks that are not stopped and can be looked at: whether they are blocked, and in what."""
    groups: dict[tuple[bool, str], list[int]] = {}
    for rank, reply in replies.items():
        frames = reply.get("frames")
        row = {"state": {**reply, "state": "running"}, "frames": frames if isinstance(frames, list) else ()}
        groups.setdefault((bool(reply.get("blocked")), _standing(row, look)[1]), []).append(rank)
    found: list[Line] = []
    for (blocked, place), members in groups.items():
        ranks = RankSet(members)
        verb = "is" if len(ranks) == 1 else "are"
        why = "blocked" if blocked else "running"
        found.append([(ranks_text(ranks), "rank"), " ", (f"{verb} inspected", "warn"), f", {why}: {place}"])
    return found


def place(where: Mapping[str, Any], look: TerminalStyle) -> Line:
    """Where somebody came by."""
    return [(f"{_file(where, look)} in {where.get('function', '?')}", "dim")]


def where_lines(places: Iterable[tuple[int, Mapping[str, Any], str]], look: TerminalStyle) -> list[Line]:
    """In which frames something was evaluated: a line a place, with its ranks."""
    groups: dict[str, list[int]] = {}
    for rank, where, thread in places:
        name = thread.rpartition(" (")[0] or thread
        more = f", thread {name}" if name and name != "MainThread" else ""
        groups.setdefault(f"in {where.get('function', '?')}, {_file(where, look)}{more}", []).append(rank)
    alone = len(groups) == 1
    return [[(text if alone else f"{ranks_text(RankSet(ranks))} {text}", "dim")] for text, ranks in groups.items()]


def standing_lines(rows: Iterable[Mapping[str, Any]], absent: RankSet, look: TerminalStyle) -> list[Line]:
    """A row a class: the ranks, their state, and where they are. ``rows`` have ``rank``, ``state`` and ``frames``."""
    groups: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        groups.setdefault(_standing(row, look), []).append(int(row["rank"]))
    texts = [(short_text(RankSet(ranks)), what, place) for (what, place), ranks in groups.items()]
    if absent:
        texts.append((short_text(absent), "not here", "on another host, or at no breakpoint yet"))
    wide = [max((len(text[column]) for text in texts), default=0) for column in (0, 1)]
    return [
        [
            (f"{ranks:<{wide[0]}}", "rank"),
            "  ",
            (f"{what:<{wide[1]}}", _STYLES.get(what.partition(" ")[0], "")),
            f"  {place}",
        ]
        for ranks, what, place in texts
    ]


_STYLES = {
    "prompt": "own",
    "held": "warn",
    "crashed": "bad",
    "running": "good",
    "blocked": "warn",
    "evaluating": "warn",
    "not": "dim",
}


def _style(what: str) -> str:
    return _STYLES.get(what.partition(" ")[0], "")


def _standing(row: Mapping[str, Any], look: TerminalStyle) -> tuple[str, str]:
    state = row["state"]
    if state.get("state") == "running":
        frames: Any = row.get("frames") or ({},)
        collective = state.get("collective")
        place = f"{_file(frames[0], look)} in {frames[0].get('function', '?')}" if frames[0] else ""
        if isinstance(collective, dict):
            place = f"in {collective.get('op')}, {_file(collective, look)} in {collective.get('function', '?')}"
        if state.get("blocked"):
            return "blocked", place
        return "running to a breakpoint" if state.get("tracing") else "running", place
    where = _where(state)
    place = f"{_file(where, look)} in {where.get('function', '?')}"
    if state.get("state") == "busy":
        return "evaluating", place
    reason = str(state.get("reason", ""))
    if reason.startswith("crashed"):
        return "crashed", f"{place}: {reason.removeprefix('crashed: ')}"
    return str(state.get("role", "stopped")), place


def _ranks(group: Iterable[Mapping[str, Any]]) -> RankSet:
    return RankSet(int(state["rank"]) for state in group)


def _where(state: Mapping[str, Any]) -> Mapping[str, Any]:
    where = state.get("where")
    return where if isinstance(where, dict) else {}


def _file(where: Mapping[str, Any], look: TerminalStyle) -> str:
    return f"{short_path(str(where.get('file', '?')), look)}:{where.get('line', '?')}"
