"""Stacks as people read them: one folded tree with rank sets, or one block a class.

A branch is a set of ranks and the frames they share; where they part, branches follow. Ranks that have
no stack and ranks that are not there are lines of their own: they are usually the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from breakranks.explain.wait_chains import said_together, spoken
from breakranks.rankset import RankSet
from breakranks.show.lost_hosts import lost_lines, where_text
from breakranks.show.quantities import duration
from breakranks.show.terminal_text import Line, Piece, TerminalStyle, short_path, state_style, state_word
from breakranks.show.wording.said_wording import said_text
from breakranks.snapshot.code_owner import innermost_own
from breakranks.snapshot.model import Frame, Problem, Process, Rank, Snapshot, Thread
from breakranks.snapshot.prefix_tree import StackNode, classes, fold, fold_threads, frames_of

_REASONS = {
    "exited": "exited",
    "absent": "never seen on this machine",
    "elsewhere": "on another host",
    "unreachable": "could not be reached",
    "no-dump": "left no dump that can be read",
}
_MAYBE = {"no-dump": "it may have died before it wrote one, or its file is elsewhere"}
_PROBLEM_LINES = 8
_COLUMN = 40  # where places start, so that they stand below one another at every depth
_SET_WIDTH = 60


def stacks_lines(
    snapshot: Snapshot,
    look: TerminalStyle,
    *,
    ranks: RankSet | None = None,
    threads: bool = False,
    native: bool = False,
    flat: bool = False,
) -> Iterator[Line]:
    """What ``breakranks stacks`` prints."""
    yield header(snapshot, look)
    yield ()
    if flat:
        yield from _flat(snapshot, look, ranks, threads, native)
    elif threads:
        for tree in fold_threads(snapshot, ranks=ranks, native=native, full=look.full):
            several = tree.count != len(tree.root.ranks)
            yield ((tree.name + (f" ({tree.count} threads)" if several else ""), "head"),)
            yield from tree_lines(tree.root, look, _no_notes if several else _notes(snapshot, tree.name))
            yield ()
    else:
        yield from tree_lines(fold(snapshot, ranks=ranks, native=native, full=look.full), look, _notes(snapshot))
        yield ()
    yield from stackless_lines(snapshot, look, ranks, native)
    yield from missing_lines(snapshot, look, ranks)
    yield from lost_lines(snapshot.hosts)
    yield from problem_lines(snapshot.problems, look)


def _no_notes(ranks: RankSet) -> str:
    return ""


def _notes(snapshot: Snapshot, thread: str = "") -> Callable[[RankSet], str]:
    """What ranks that stand together have said of themselves: whose lock it is, at which step they are."""
    if all(rank.process.inside is None for rank in snapshot.ranks):
        return _no_notes

    spoke = spoken(snapshot)
    name = "" if thread == "main thread" else thread
    return lambda ranks: said_text(said_together(spoke, ranks, name))


def header(snapshot: Snapshot, look: TerminalStyle) -> Line:
    """One line on the job: what it is, how many of its ranks are here, how long it has run."""
    job = snapshot.job
    here = len({rank.rank for rank in snapshot.ranks})
    of = f" of {job.world_size:,}" if job.world_size and job.world_size != here else ""
    if of_dumps(snapshot):
        # Neither when the job began nor when it was looked at is known. In UTC: dumps come from elsewhere.
        newest = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(snapshot.time))
        return (("dumps", "head"), f" · {here:,}{of} {_ranks(here if not of else 2)} · newest call {newest}")
    ran = f" · up {duration(snapshot.time - job.started)}" if job.started else ""
    seen = f" · seen {duration(look.now - snapshot.time)} ago" if look.now - snapshot.time > 60 else ""
    hosts = where_text(snapshot)
    return (("job " + job.key, "head"), f" · {job.launcher} · {here:,}{of} {_ranks(here)}{hosts}{ran}{seen}")


def only_recorded(rank: Rank) -> bool:
    """Whether nothing is known of a rank but what its flight recorder wrote."""
    return rank.recorder is not None and not rank.process.pid


def of_dumps(snapshot: Snapshot) -> bool:
    """Whether that is so of all ranks: there are no processes to speak of."""
    return bool(snapshot.ranks) and all(map(only_recorded, snapshot.ranks))


def _ranks(number: int) -> str:
    return "rank" if number == 1 else "ranks"


def tree_lines(root: StackNode, look: TerminalStyle, notes: Callable[[RankSet], str] = _no_notes) -> Iterator[Line]:
    """The tree below a root. Frames that all ranks of a branch share stand below one another; only a
    parting of the ways goes one step to the right, so a deep stack still fits."""
    # An explicit stack: a program can recurse deeper than Python lets us.
    left: list[tuple[str, str, StackNode]] = [("", "", child) for child in reversed(root.children)]
    while left:
        first, rest, node = left.pop()
        chain = [node]
        below = node.children
        while len(below) == 1 and not chain[-1].ends:
            chain.append(below[0])
            below = below[0].children
        ends = chain[-1].ends
        yield (first, *rank_pieces(node.ranks, look), *(_note_pieces(notes(ends)) if ends and not below else ()))
        # Where ranks stand, the frame to open first stands out; above a parting nothing does.
        own = innermost_own(tuple(one.frame for one in chain)) if ends else None
        bar = rest + ("│ " if below else "  ")
        for one in chain:
            yield (bar, *frame_pieces(one.frame, look, own, indent=len(bar)))
        if ends and below:
            yield (rest, "├─ ", *rank_pieces(ends, look), (" stand here", "dim"), *_note_pieces(notes(ends)))
        for child in reversed(below):
            final = child is below[-1]
            left.append((rest + ("└─ " if final else "├─ "), rest + ("   " if final else "│  "), child))


def _note_pieces(note: str) -> tuple[Piece, ...]:
    return (f"  {note}",) if note else ()


def rank_pieces(ranks: RankSet, look: TerminalStyle) -> tuple[Piece, ...]:
    """``[0-1,3] (3)``; of a set that would fill a screen, the beginning."""
    return ((f"[{set_text(ranks, look)}]", "rank"), (f" ({len(ranks):,})", "dim"))


def set_text(ranks: RankSet, look: TerminalStyle) -> str:
    """A rank set, whole where it is wanted whole or is short."""
    text = str(ranks)
    if look.full or len(text) <= _SET_WIDTH:
        return text
    return text[: text.rfind(",", 0, _SET_WIDTH)] + ",…"


def frame_pieces(frame: Frame, look: TerminalStyle, own: Frame | None = None, *, indent: int = 4) -> tuple[Piece, ...]:
    """``load_batch   data.py:88``; the frame that a person would open first stands out."""
    name, where = function_name(frame, look), place(frame, look)
    gap = max(2, _COLUMN - indent - len(name))
    if look.width:
        # The end of a path is the part that is looked for: cut it from the left, and the gap first.
        room = look.width - indent - len(name)
        gap = max(2, min(gap, room - len(where)))
        if 8 < room - gap < len(where):
            where = "…" + where[len(where) - (room - gap) + 1 :]
    style = "own" if frame is own else "dim" if frame.native else ""
    return ((name, style), " " * gap, (where, "dim"))


def function_name(frame: Frame, look: TerminalStyle) -> str:
    """The function; of a C++ one, without its arguments and template parameters unless all is wanted."""
    name = frame.function or "?"
    if look.full or not frame.native or not name.endswith((")", ">", "const")):
        return name
    short = _without(_without(name, "(", ")"), "<", ">").removesuffix(" const").strip()
    return short.rsplit(" ", 1)[-1] or name


def _without(text: str, opening: str, closing: str) -> str:
    kept = []
    depth = 0
    for char in text:
        if char == opening:
            depth += 1
        elif char == closing and depth:
            depth -= 1
        elif not depth:
            kept.append(char)
    return "".join(kept)


def place(frame: Frame, look: TerminalStyle) -> str:
    """``data.py:88``, or the library of a native frame."""
    if frame.native and not look.full:
        file = frame.file.rsplit("/", 1)[-1]
    else:
        file = short_path(frame.file, look)
    return f"{file}:{frame.line}" if frame.line else file


def _flat(
    snapshot: Snapshot, look: TerminalStyle, ranks: RankSet | None, threads: bool, native: bool
) -> Iterator[Line]:
    """One block a class, innermost frame first, as py-spy prints it."""
    if threads:
        for tree in fold_threads(snapshot, ranks=ranks, native=native, full=look.full):
            several = tree.count != len(tree.root.ranks)
            notes = _no_notes if several else _notes(snapshot, tree.name)
            for frames, found in _paths(tree.root):
                yield (*rank_pieces(found, look), " ", (tree.name, "head"), *_note_pieces(notes(found)))
                yield from _block(frames, look)
        return
    examples = {rank.rank: rank.process for rank in snapshot.ranks}
    notes = _notes(snapshot)
    for row, found in classes(snapshot, ranks=ranks, native=native):
        if row == 0:
            continue
        yield (
            *rank_pieces(found, look),
            *_seen(examples[found.first], len(found)),
            *_note_pieces(notes(found)),
        )
        yield from _block(frames_of(snapshot, row, full=look.full), look)


def _paths(root: StackNode) -> Iterator[tuple[tuple[Frame, ...], RankSet]]:
    path: list[Frame] = []
    for depth, node in root.walk():
        path[depth:] = [node.frame]
        if node.ends:
            yield tuple(path), node.ends


def _block(frames: tuple[Frame, ...], look: TerminalStyle) -> Iterator[Line]:
    own = innermost_own(frames)
    for frame in reversed(frames):
        yield ("    ", *frame_pieces(frame, look, own))
    yield ()


def _seen(process: Process, members: int) -> tuple[Piece, ...]:
    """Of one rank: its pid and state. Of many, nothing that only one of them has."""
    if members > 1 or not process.pid:
        return ()
    state = process.samples[-1].state if process.samples else process.state
    main = process.samples[-1].threads[0] if process.samples and process.samples[-1].threads else None
    idle = f", idle {duration(main.idle)}" if main is not None and main.idle is not None else ""
    return (f"  pid {process.pid}, ", (state_word(state), state_style(state)), idle)


def stackless_lines(
    snapshot: Snapshot, look: TerminalStyle, ranks: RankSet | None = None, native: bool = False
) -> Iterator[Line]:
    """Ranks that are there and whose stack could not be read, with the reason, folded by reason."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank in snapshot.ranks:
        if (ranks is not None and rank.rank not in ranks) or only_recorded(rank):
            continue
        process = rank.process
        last = process.samples[-1] if process.samples else None
        if last is not None and any(thread.stack or (native and thread.native) for thread in last.threads[:1]):
            continue
        found.setdefault(_why_not(process, last.threads if last else ()), []).append(rank.rank)
    for (what, remedy), members in found.items():
        yield (*rank_pieces(RankSet(members), look), " ", (what, "warn"))
        if remedy:
            yield ("    ", remedy)


def _why_not(process: Process, threads: tuple[Thread, ...]) -> tuple[str, str]:
    state = process.samples[-1].state if process.samples else process.state
    if state == "Z":
        return "no stack: it has exited (a zombie that its parent has not collected)", ""
    if state == "X":
        return "no stack: it has ended", ""
    if process.problems:
        problem = process.problems[0]
        return f"no Python stack: {problem.what}", problem.remedy
    if threads:
        return "no Python stack: its main thread runs no Python", "breakranks stacks --native shows C frames"
    return "no Python stack", ""


def missing_lines(snapshot: Snapshot, look: TerminalStyle, ranks: RankSet | None = None) -> Iterator[Line]:
    """Ranks that should exist and were not seen, one line a reason."""
    for missing in snapshot.missing:
        gone = RankSet.parse(missing.ranks)
        if ranks is not None:
            gone &= ranks
        if gone:
            why = _REASONS.get(missing.reason, missing.reason)
            if missing.reason == "absent" and snapshot.remote_ranks:
                why = (
                    "never seen on these hosts"
                    if len(snapshot.hosts) > 1
                    else f"never seen on {snapshot.hosts[0].name}"
                )
            more = _MAYBE.get(missing.reason, missing.detail)
            detail = f": {more}" if more else ""
            yield (*rank_pieces(gone, look), " ", (f"missing, {why}{detail}", "bad"))


def problem_lines(problems: Iterable[Problem], look: TerminalStyle | None = None) -> Iterator[Line]:
    """What could not be seen, each thing once, with its remedy; of a screenful the beginning."""
    lines: list[tuple[bool, Line]] = []
    remedies = set()
    for problem in dict.fromkeys(problems):
        lines.append((True, (("not seen: ", "warn"), problem.what)))
        if problem.remedy and problem.remedy not in remedies:
            remedies.add(problem.remedy)
            lines.append((False, ("    ", problem.remedy)))
    whole = (look is not None and look.full) or len(lines) <= _PROBLEM_LINES
    shown = lines if whole else lines[: _PROBLEM_LINES - 1]
    yield from (line for _, line in shown)
    left = sum(1 for first, _ in lines[len(shown) :] if first)
    if left:
        yield (("not seen: ", "warn"), f"and {left:,} more, with --full")


__all__ = [
    "frame_pieces",
    "function_name",
    "header",
    "missing_lines",
    "of_dumps",
    "only_recorded",
    "place",
    "problem_lines",
    "rank_pieces",
    "set_text",
    "stackless_lines",
    "stacks_lines",
    "tree_lines",
]
