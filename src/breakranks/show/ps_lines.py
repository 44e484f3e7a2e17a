"""Jobs and their ranks as a table: what ``breakranks ps`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from breakranks.rankset import RankSet
from breakranks.show.lost_host_lines import lost_lines, where_text
from breakranks.show.quantities import amount, duration, plural
from breakranks.show.stack_tree import missing_lines, problem_lines, set_text
from breakranks.show.terminal_text import Line, Piece, TerminalStyle, columns, command_text, state_style, state_word
from breakranks.snapshot.model import Problem, Process, Rank, Snapshot, family

FOLD_ABOVE = 40
_NAMES_SHOWN = 3


def ps_lines(
    snapshots: Sequence[Snapshot],
    style: TerminalStyle,
    *,
    ranks: RankSet | None = None,
    problems: Sequence[Problem] = (),
) -> Iterator[Line]:
    """Yield every job: a header, its ranks, the missing ones. ``problems`` concern the whole machine."""
    for index, snapshot in enumerate(snapshots):
        if index:
            yield ()
        yield from job_lines(snapshot, style, ranks=ranks)
    if problems:
        yield ()
        yield from problem_lines(problems)


def job_lines(snapshot: Snapshot, style: TerminalStyle, *, ranks: RankSet | None = None) -> Iterator[Line]:
    yield from job_header(snapshot, style)
    shown = [rank for rank in snapshot.ranks if ranks is None or rank.rank in ranks]
    shown.sort(key=lambda rank: rank.rank)
    if shown:
        hosts = len({rank.host for rank in shown}) > 1
        if len(shown) > FOLD_ABOVE and not style.full:
            yield from _folded(shown, style, snapshot.time, hosts)
        else:
            yield from _each(shown, style, snapshot.time, hosts)
    for line in missing_lines(snapshot, style, ranks):
        yield ("  ", *line)
    for line in lost_lines(snapshot.hosts):
        yield ("  ", *line)
    for problem, members in _problems(shown).items():
        yield ("  ", (f"[{set_text(RankSet(members), style)}]", "rank"), " ", (problem.what, "warn"))
        if problem.remedy:
            yield ("      ", problem.remedy)
    for line in problem_lines(snapshot.problems):
        yield ("  ", *line)


def job_header(snapshot: Snapshot, style: TerminalStyle) -> Iterator[Line]:
    """Yield the job: its key, launcher, size, age and command."""
    job = snapshot.job
    size = job.world_size or len(snapshot.ranks)
    here = len({rank.rank for rank in snapshot.ranks})
    ranks = plural(size, "rank") if here == size else f"{here:,} of {plural(size, 'rank')} here"
    started = f" · started {duration(snapshot.time - job.started)} ago" if job.started else ""
    seen = f" · seen {duration(style.now - snapshot.time)} ago" if style.now - snapshot.time > 60 else ""
    yield (("job " + job.key, "head"), f" · {job.launcher} · {ranks}{where_text(snapshot)}{started}{seen}")
    if job.command:
        yield ("  ", (command_text(job.command, style), "dim"))


def _each(ranks: Iterable[Rank], style: TerminalStyle, now: float, hosts: bool) -> list[Line]:
    head = ["rank", *(["host"] if hosts else []), "pid", "state", "cpu", "memory", "age", "helpers"]
    rows: list[list[Piece]] = [[(name, "dim") for name in head]]
    for rank in ranks:
        process = rank.process
        rows.append(
            [
                (str(rank.rank), "rank"),
                *([rank.host] if hosts else []),
                str(process.pid),
                (state_word(process.state), state_style(process.state)),
                f"{process.cpu_percent:.0f}%",
                amount(process.rss) if process.rss else "-",
                duration(now - process.started) if process.started else "?",
                helpers_text(process, style),
            ]
        )
    first = 2 if hosts else 1
    return columns(rows, right=(0, first, first + 2, first + 3, first + 4))


def _folded(ranks: Iterable[Rank], style: TerminalStyle, now: float, hosts: bool) -> list[Line]:
    """Return one row for ranks that differ only in numbers; the numbers become ranges."""
    groups: dict[tuple[str, str, str], list[Rank]] = {}
    for rank in ranks:
        key = (rank.host if hosts else "", state_word(rank.process.state), helpers_text(rank.process, style))
        groups.setdefault(key, []).append(rank)
    head = ["ranks", "", *(["host"] if hosts else []), "state", "cpu", "memory", "age", "helpers"]
    rows: list[list[Piece]] = [[(name, "dim") for name in head]]
    for (host, state, helpers), members in groups.items():
        processes = [rank.process for rank in members]
        rows.append(
            [
                (set_text(RankSet(rank.rank for rank in members), style), "rank"),
                (f"({len(members):,})", "dim"),
                *([host] if hosts else []),
                (state, state_style(processes[0].state)),
                _span([f"{p.cpu_percent:.0f}%" for p in _ends(processes, lambda p: p.cpu_percent)]),
                _span([amount(p.rss) for p in _ends(processes, lambda p: p.rss)]),
                _span([duration(now - p.started) for p in _ends(processes, lambda p: -p.started)]),
                helpers,
            ]
        )
    first = 4 if hosts else 3
    return columns(rows, right=(first, first + 1, first + 2))


def _ends(processes: list[Process], key: Callable[[Process], float]) -> tuple[Process, Process]:
    return min(processes, key=key), max(processes, key=key)


def _span(ends: list[str]) -> str:
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} - {ends[1]}"


def helpers_text(process: Process, style: TerminalStyle) -> str:
    """Return ``2 pt_data_worker, 1 ninja``: the descendants of a rank, by name."""
    names: dict[str, int] = {}
    for child in family(process):
        if child is not process:
            name = child.name or (child.command[0].rsplit("/", 1)[-1] if child.command else "?")
            names[name] = names.get(name, 0) + 1
    ordered = sorted(names.items(), key=lambda item: (-item[1], item[0]))
    shown = ordered if style.full else ordered[:_NAMES_SHOWN]
    text = ", ".join(f"{number} {name}" for name, number in shown)
    left = sum(number for _, number in ordered[len(shown) :])
    return f"{text}, {left} more" if left else text


def _problems(ranks: Iterable[Rank]) -> dict[Problem, list[int]]:
    found: dict[Problem, list[int]] = {}
    for rank in ranks:
        for problem in rank.process.problems:
            found.setdefault(problem, []).append(rank.rank)
    return found
