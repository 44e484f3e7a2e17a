"""What ``breakranks stacks`` prints: one folded tree with rank sets, or one block per class.

A branch is a set of ranks and the frames that they share. Where their stacks differ, branches follow. Ranks without a
stack and missing ranks have lines of their own, because they are often the cause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from breakranks.rankset import RankSet
from breakranks.show.lost_host_lines import lost_lines, where_text
from breakranks.show.quantities import duration
from breakranks.show.terminal_text import Line, Piece, TerminalStyle, short_path, state_style, state_word
from breakranks.show.wording.grammar import noun, verb
from breakranks.snapshot.code_owner import innermost_own
from breakranks.snapshot.model import Frame, Missing, Problem, Process, Snapshot, Thread
from breakranks.snapshot.prefix_tree import StackNode, classes, fold, fold_threads, frames_of

_REASONS = {
    "exited": "exited",
    "absent": "not found on this machine",
    "elsewhere": "on another host",
    "unreachable": "could not be reached",
    "no-dump": "left no readable dump",
}
_MAYBE = {"no-dump": "it may have died before it wrote one, or its file is elsewhere"}
_PROBLEM_LINES = 8
_COLUMN = 40  # the column of places, at every depth
_SET_WIDTH = 60


def stacks_lines(
    snapshot: Snapshot,
    style: TerminalStyle,
    *,
    ranks: RankSet | None = None,
    threads: bool = False,
    native: bool = False,
    flat: bool = False,
) -> Iterator[Line]:
    """Yield what ``breakranks stacks`` prints."""
    yield header(snapshot, style)
    yield ()
    if flat:
        yield from _flat(snapshot, style, ranks, threads, native)
    elif threads:
        for tree in fold_threads(snapshot, ranks=ranks, native=native, full=style.full):
            several = tree.count != len(tree.root.ranks)
            yield ((tree.name + (f" ({tree.count} threads)" if several else ""), "head"),)
            yield from tree_lines(tree.root, style, _no_notes if several else _notes(snapshot, tree.name))
            yield ()
    else:
        yield from tree_lines(fold(snapshot, ranks=ranks, native=native, full=style.full), style, _notes(snapshot))
        yield ()
    yield from stackless_lines(snapshot, style, ranks, native)
    yield from missing_lines(snapshot, style, ranks)
    yield from lost_lines(snapshot.hosts)
    yield from problem_lines(snapshot.problems, style)


def _no_notes(ranks: RankSet) -> str:
    return ""


def _notes(snapshot: Snapshot, thread: str = "") -> Callable[[RankSet], str]:
    """Return a function that says what introspection shows for a set of ranks: which lock they wait for, and their loop
    counters."""
    if all(rank.process.inside is None for rank in snapshot.ranks):
        return _no_notes
    # 10 ms, for what findings are made of.
    from breakranks.explain.wait_chains import common_report, reporting_processes
    from breakranks.show.wording.introspection_wording import report_text

    reporting = reporting_processes(snapshot)
    name = "" if thread == "main thread" else thread
    return lambda ranks: report_text(common_report(reporting, ranks, name))


def header(snapshot: Snapshot, style: TerminalStyle) -> Line:
    """Return one line about the job: its name, how many of its ranks are here, how long it has run."""
    job = snapshot.job
    here = len({rank.rank for rank in snapshot.ranks})
    of = f" of {job.world_size:,}" if job.world_size and job.world_size != here else ""
    ranks = f"{here:,}{of} {noun(2 if of else here, 'rank')}"
    if snapshot.of_dumps:
        # The start of the job and the time of the inspection are not known. The time is in UTC, because dumps come from
        # other machines.
        newest = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(snapshot.time))
        return (("dumps", "head"), f" · {ranks} · newest call {newest}")
    ran = f" · up {duration(snapshot.time - job.started)}" if job.started else ""
    seen = f" · seen {duration(style.now - snapshot.time)} ago" if style.now - snapshot.time > 60 else ""
    hosts = where_text(snapshot)
    return (
        ("job " + job.key, "head"),
        f" · {job.launcher} · {ranks}{hosts}{ran}{seen}",
    )


def tree_lines(root: StackNode, style: TerminalStyle, notes: Callable[[RankSet], str] = _no_notes) -> Iterator[Line]:
    """Yield the tree below a root. Frames that all ranks of a branch share are in one column. Only a fork is indented,
    so a deep stack still fits."""
    # An explicit stack: a program can recurse deeper than Python allows.
    left: list[tuple[str, str, StackNode]] = [("", "", child) for child in reversed(root.children)]
    while left:
        first, rest, node = left.pop()
        chain = [node]
        below = node.children
        while len(below) == 1 and not chain[-1].ends:
            chain.append(below[0])
            below = below[0].children
        ends = chain[-1].ends
        yield (first, *rank_pieces(node.ranks, style), *(_note_pieces(notes(ends)) if ends and not below else ()))
        # The innermost frame of the user's code is highlighted where ranks are, and not above a fork.
        own = innermost_own(tuple(node.frame for node in chain)) if ends else None
        bar = rest + ("│ " if below else "  ")
        for one in chain:
            yield (bar, *frame_pieces(one.frame, style, own, indent=len(bar)))
        if ends and below:
            yield (
                rest,
                "├─ ",
                *rank_pieces(ends, style),
                (f" {verb(len(ends), 'are')} here", "dim"),
                *_note_pieces(notes(ends)),
            )
        for child in reversed(below):
            final = child is below[-1]
            left.append((rest + ("└─ " if final else "├─ "), rest + ("   " if final else "│  "), child))


def _note_pieces(note: str) -> tuple[Piece, ...]:
    return (f"  {note}",) if note else ()


def rank_pieces(ranks: RankSet, style: TerminalStyle) -> tuple[Piece, ...]:
    """Return ``[0-1,3] (3)``, cut if the set is large."""
    return ((f"[{set_text(ranks, style)}]", "rank"), (f" ({len(ranks):,})", "dim"))


def set_text(ranks: RankSet, style: TerminalStyle) -> str:
    """Return a rank set, cut if it is long, unless all is shown."""
    text = str(ranks)
    if style.full or len(text) <= _SET_WIDTH:
        return text
    return text[: text.rfind(",", 0, _SET_WIDTH)] + ",…"


def frame_pieces(
    frame: Frame, terminal: TerminalStyle, own: Frame | None = None, *, indent: int = 4
) -> tuple[Piece, ...]:
    """Return ``load_batch   data.py:88``. The innermost frame of the user's code is highlighted."""
    name, where = function_name(frame, terminal), place(frame, terminal)
    gap = max(2, _COLUMN - indent - len(name))
    if terminal.width:
        # The end of a path matters most: shorten the gap first, then cut the path from the left.
        room = terminal.width - indent - len(name)
        gap = max(2, min(gap, room - len(where)))
        if 8 < room - gap < len(where):
            where = "…" + where[len(where) - (room - gap) + 1 :]
    style = "own" if frame is own else "dim" if frame.native else ""
    return ((name, style), " " * gap, (where, "dim"))


def function_name(frame: Frame, style: TerminalStyle) -> str:
    """Return the function; of C++ functions without arguments and template parameters, unless all is shown."""
    name = frame.function or "?"
    if style.full or not frame.native or not name.endswith((")", ">", "const")):
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


def place(frame: Frame, style: TerminalStyle) -> str:
    """Return ``data.py:88``, or the library of a native frame."""
    if frame.native and not style.full:
        file = frame.file.rsplit("/", 1)[-1]
    else:
        file = short_path(frame.file, style)
    return f"{file}:{frame.line}" if frame.line else file


def _flat(
    snapshot: Snapshot, style: TerminalStyle, ranks: RankSet | None, threads: bool, native: bool
) -> Iterator[Line]:
    """Yield one block per class, innermost frame first, as py-spy prints it."""
    if threads:
        for tree in fold_threads(snapshot, ranks=ranks, native=native, full=style.full):
            several = tree.count != len(tree.root.ranks)
            notes = _no_notes if several else _notes(snapshot, tree.name)
            for frames, found in _paths(tree.root):
                yield (*rank_pieces(found, style), " ", (tree.name, "head"), *_note_pieces(notes(found)))
                yield from _block(frames, style)
        return
    examples = {rank.rank: rank.process for rank in snapshot.ranks}
    notes = _notes(snapshot)
    for row, found in classes(snapshot, ranks=ranks, native=native):
        if row == 0:
            continue
        yield (
            *rank_pieces(found, style),
            *_seen(examples[found.first], len(found)),
            *_note_pieces(notes(found)),
        )
        yield from _block(frames_of(snapshot, row, full=style.full), style)


def _paths(root: StackNode) -> Iterator[tuple[tuple[Frame, ...], RankSet]]:
    path: list[Frame] = []
    for depth, node in root.walk():
        path[depth:] = [node.frame]
        if node.ends:
            yield tuple(path), node.ends


def _block(frames: tuple[Frame, ...], style: TerminalStyle) -> Iterator[Line]:
    own = innermost_own(frames)
    for frame in reversed(frames):
        yield ("    ", *frame_pieces(frame, style, own))
    yield ()


def _seen(process: Process, members: int) -> tuple[Piece, ...]:
    """Return the pid and state of a single rank; nothing for several."""
    if members > 1 or not process.pid:
        return ()
    state = process.samples[-1].state if process.samples else process.state
    main = process.samples[-1].threads[0] if process.samples and process.samples[-1].threads else None
    idle = f", idle {duration(main.idle)}" if main is not None and main.idle is not None else ""
    return (f"  pid {process.pid}, ", (state_word(state), state_style(state)), idle)


def stackless_lines(
    snapshot: Snapshot, style: TerminalStyle, ranks: RankSet | None = None, native: bool = False
) -> Iterator[Line]:
    """Yield the live ranks whose stack could not be read, folded by reason."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank in snapshot.ranks:
        if (ranks is not None and rank.rank not in ranks) or rank.only_recorded:
            continue
        process = rank.process
        last = process.samples[-1] if process.samples else None
        if last is not None and any(thread.stack or (native and thread.native) for thread in last.threads[:1]):
            continue
        found.setdefault(_why_not(process, last.threads if last else ()), []).append(rank.rank)
    for (what, remedy), members in found.items():
        yield (*rank_pieces(RankSet(members), style), " ", (what, "warn"))
        if remedy:
            yield ("    ", remedy)


def _why_not(process: Process, threads: tuple[Thread, ...]) -> tuple[str, str]:
    state = process.samples[-1].state if process.samples else process.state
    if state == "Z":
        return "no stack: it has exited (a zombie that its parent has not reaped)", ""
    if state == "X":
        return "no stack: it has ended", ""
    if process.problems:
        problem = process.problems[0]
        return f"no Python stack: {problem.what}", problem.remedy
    if threads:
        return "no Python stack: its main thread runs no Python", "breakranks stacks --native shows C frames"
    return "no Python stack", ""


def missing_lines(snapshot: Snapshot, style: TerminalStyle, ranks: RankSet | None = None) -> Iterator[Line]:
    """Yield the ranks that should exist and were not seen, one line per reason."""
    for missing in snapshot.missing:
        gone = RankSet.parse(missing.ranks)
        if ranks is not None:
            gone &= ranks
        if gone:
            yield (*rank_pieces(gone, style), " ", (f"missing, {why_missing(snapshot, missing)}", "bad"))


def why_missing(snapshot: Snapshot, missing: Missing) -> str:
    """``on another host``: why ranks were not seen."""
    why = _REASONS.get(missing.reason, missing.reason)
    if missing.reason == "absent" and snapshot.spans_hosts:
        why = "not found on these hosts" if len(snapshot.hosts) > 1 else f"not found on {snapshot.hosts[0].name}"
    more = _MAYBE.get(missing.reason, missing.detail)
    return f"{why}: {more}" if more else why


def problem_lines(problems: Iterable[Problem], style: TerminalStyle | None = None) -> Iterator[Line]:
    """Yield the problems, each once, with its remedy; of very many the first ones."""
    lines: list[tuple[bool, Line]] = []
    remedies = set()
    for problem in dict.fromkeys(problems):
        lines.append((True, (("not seen: ", "warn"), problem.what)))
        if problem.remedy and problem.remedy not in remedies:
            remedies.add(problem.remedy)
            lines.append((False, ("    ", problem.remedy)))
    whole = (style is not None and style.full) or len(lines) <= _PROBLEM_LINES
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
    "place",
    "problem_lines",
    "rank_pieces",
    "set_text",
    "stackless_lines",
    "stacks_lines",
    "tree_lines",
]
