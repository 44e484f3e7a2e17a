"""The live view of ``breakranks top``: one line per class, drawn again after each sample.

:func:`frame_lines` computes a frame. Only :func:`watch` touches the terminal, and it restores it in every case.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from breakranks.explain.diagnosis import Diagnosis
from breakranks.rankset import RankSet
from breakranks.show.lost_host_lines import lost_lines
from breakranks.show.quantities import duration, plural
from breakranks.show.stack_tree import header, missing_lines, set_text, stackless_lines
from breakranks.show.terminal_text import (
    Line,
    Piece,
    TerminalStyle,
    clean,
    columns,
    render,
    state_style,
    state_word,
    wrap,
)
from breakranks.show.verdict_lines import motion, where_text
from breakranks.show.wording.finding_wording import label, summary
from breakranks.snapshot.model import Snapshot

if TYPE_CHECKING:
    from rich.text import Text as RichText

    Handler = Callable[[int, FrameType | None], Any] | int | None

Take = Callable[[], tuple[Snapshot, Diagnosis]]
_RICH = {
    "bold": "bold",
    "dim": "dim",
    "rank": "cyan",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
    "verdict": "bold red",
    "own": "bold yellow",
    "head": "bold",
}
_ENDED_STATES = ("Z", "X", "")
_SUSPEND = "\x1a"
_LEAVE = ("q", "Q", "\x04")


def frame_lines(
    snapshot: Snapshot, diagnosis: Diagnosis, style: TerminalStyle, *, height: int = 0, footer: str = ""
) -> list[Line]:
    """Return one frame: the job, the verdict in a sentence, the classes. It is never taller than ``height``."""
    head: list[Line] = [header(snapshot, style), *_headline(diagnosis, style), ()]
    rows = _class_rows(snapshot, diagnosis, style)
    sections = (stackless_lines(snapshot, style), missing_lines(snapshot, style), lost_lines(snapshot.hosts))
    unseen: list[Line] = [("  ", *line) for lines in sections for line in lines]
    foot: list[Line] = [(), ((footer, "dim"),)] if footer else []
    body = [*rows, *unseen]
    room = height - len(head) - len(foot)
    if height and len(body) > room:
        kept = max(1, room - 1)
        body = [*body[:kept], ((f"  … {plural(len(body) - kept, 'more line')}; make the window taller", "dim"),)]
    lines = [*head, *body, *foot]
    return lines[:height] if height else lines


def _headline(diagnosis: Diagnosis, style: TerminalStyle) -> list[Line]:
    verdict = diagnosis.verdict
    if verdict is not None:
        text = f"{summary(verdict)} ({verdict.confidence})"
        return [((line, "verdict"),) for line in wrap(text, style.width)[:2]]
    if any(rank_class.moving for rank_class in diagnosis.classes):
        return [(("no problem found", "good"),)]
    pending = f"not certain yet: {summary(diagnosis.pending)}" if diagnosis.pending is not None else "no verdict yet"
    return [((pending, "dim"),)]


def _class_rows(snapshot: Snapshot, diagnosis: Diagnosis, style: TerminalStyle) -> list[Line]:
    cpu = {rank.rank: rank.process.cpu_percent for rank in snapshot.ranks}
    rows: list[list[Piece]] = [[(name, "dim") for name in ("ranks", "", "cpu", "motion", "state", "doing", "where")]]
    for rank_class in diagnosis.classes:
        ranks = RankSet.parse(rank_class.ranks)
        shares = [cpu[rank] for rank in ranks if rank in cpu]
        state = rank_class.state
        rows.append(
            [
                (set_text(ranks, style), "rank"),
                (f"({len(ranks):,})", "dim"),
                f"{max(0.0, sum(shares) / len(shares)):.0f}%" if shares else "-",
                motion(rank_class),
                (state_word(state) if len(state) == 1 else state, state_style(state)),
                label(rank_class),
                where_text(rank_class, style),
            ]
        )
    return columns(rows, right=(2,), width=style.width)


def ended(snapshot: Snapshot) -> bool:
    """Whether no live rank is left, or the launcher of a job without ranks has ended."""
    if not snapshot.ranks:
        return snapshot.launcher is None or snapshot.launcher.state in _ENDED_STATES
    return all(rank.process.state in _ENDED_STATES for rank in snapshot.ranks)


def watch(
    take: Take,
    *,
    stream: TextIO,
    look: Callable[[], TerminalStyle],
    interval: float,
    once: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Diagnosis:
    """Draw frames until the job ends or the user quits. Return the diagnosis of the last one."""
    if once or not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return _print_frames(take, stream, look, interval, once, clock, sleep)
    return _draw_frames(take, stream, look, interval, clock)


def _print_frames(
    take: Take,
    stream: TextIO,
    look: Callable[[], TerminalStyle],
    interval: float,
    once: bool,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Diagnosis:
    while True:
        began = clock()
        snapshot, diagnosis = take()
        how = look()
        stream.write(render(frame_lines(snapshot, diagnosis, how), how))
        done = ended(snapshot)
        stream.write("the job has ended\n" if done else "" if once else "\n")
        stream.flush()
        if once or done:
            return diagnosis
        sleep(max(0.0, interval - (clock() - began)))


def _draw_frames(
    take: Take, stream: TextIO, look: Callable[[], TerminalStyle], interval: float, clock: Callable[[], float]
) -> Diagnosis:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    with _Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(Text("sampling …", style="dim"), refresh=True)
        while True:
            began = clock()
            snapshot, diagnosis = take()
            if ended(snapshot):
                break
            took = clock() - began
            footer = f"q quits · every {interval:g} s · this sample took {duration(took)}"
            size = None
            while clock() < began + max(interval, took + 0.2):
                if console.size != size:
                    size, how = console.size, look()
                    lines = frame_lines(snapshot, diagnosis, how, height=size.height, footer=footer)
                    live.update(_to_rich(lines, how), refresh=True)
                key = keys.read(0.2)
                if key == _SUSPEND:
                    live.stop()
                    keys.suspend()
                    live.start()
                    size = None
                elif key in _LEAVE:
                    return diagnosis
    how = look()
    stream.write(render([*frame_lines(snapshot, diagnosis, how), ("the job has ended",)], how))
    return diagnosis


def _to_rich(lines: list[Line], terminal: TerminalStyle) -> RichText:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    for index, line in enumerate(lines):
        text.append("\n" if index else "")
        for piece in line:
            plain, style = (piece, "") if isinstance(piece, str) else piece
            text.append(clean(plain), _RICH.get(style) if terminal.color else None)
    return text


class _Keys:
    """Single keys from the terminal, without Return. The terminal is restored at the end.

    Ctrl-Z is read as a key too: as a signal it would stop py-spy during a sample, and leave the process paused.
    """

    def __init__(self) -> None:
        self._saved: list[int | list[bytes | int]] | None = None
        self._handlers: dict[int, Handler] = {}

    def __enter__(self) -> _Keys:
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, _leave)
        if sys.stdin is not None and sys.stdin.isatty():
            self._saved = termios.tcgetattr(sys.stdin)
            self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _take(self) -> None:
        mode = termios.tcgetattr(sys.stdin)
        mode[3] &= ~(termios.ECHO | termios.ICANON)
        mode[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, mode)

    def _give_back(self) -> None:
        if self._saved is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._saved)

    def read(self, seconds: float) -> str:
        """Return the next key, or an empty text after some seconds."""
        if self._saved is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        if not ready:
            return ""
        data = os.read(sys.stdin.fileno(), 1)
        # It is ready and has nothing to read: the terminal is gone.
        return data.decode("latin-1") if data else "q"

    def suspend(self) -> None:
        """Stop as Ctrl-Z does everywhere, until ``fg`` in the shell."""
        self._give_back()
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        self._take()


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
