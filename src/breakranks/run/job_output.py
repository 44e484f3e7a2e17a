"""The output of a job while it runs: the files of its launcher and of the ranks of this host, as lines on the screen.

Ranks of other hosts, and ranks behind a pipe, have a relay that writes their lines to the launcher's output.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from breakranks.log import Log
from breakranks.rankset import RankSet
from breakranks.run.file_tail import FileTail
from breakranks.run.output_fold import FoldedLine, OutputFold, Speaker
from breakranks.run.output_lines import LineAssembler, terminal_safe
from breakranks.run.output_prefix import LinePrefix
from breakranks.run.output_printer import OutputPrinter
from breakranks.run.rank_registry import RankRegistration, RankRegistry, is_running
from breakranks.run.relayed_lines import RelayedLines, RelayedStream
from breakranks.run.run_folder import RunFolder

REGISTRY_SECONDS = 0.05
_COPY = re.compile(rb"^\[\w*?(\d{1,6})\]:.*\n", re.MULTILINE)  # role and local rank: [default0]:
_MAX_COPIES, _MAX_COPY_BYTES = 50_000, 400
_log = Log("run")


class OutputOptions(NamedTuple):
    """What of the output is shown. ``only`` None: every rank. ``debug_rank`` -1: no rank has the terminal."""

    fold: bool = False
    only: RankSet | None = None
    quiet: bool = False
    debug_rank: int = -1


@dataclass(slots=True)
class _Source:
    """One file. ``speaker`` None: the launcher's. ``is_copied``: the launcher prints its lines as well."""

    tail: FileTail
    stream: str
    speaker: Speaker | None = None
    is_shown: bool = True
    is_copied: bool = False
    assembler: LineAssembler = field(default_factory=LineAssembler)
    relayed: RelayedStream = field(default_factory=RelayedStream)


class JobOutput:
    """Follows the files of a run and prints them. Call ``turn`` again and again, and ``finish`` at the end."""

    def __init__(
        self,
        folder: RunFolder,
        registry: RankRegistry,
        printer: OutputPrinter,
        prefix: LinePrefix,
        options: OutputOptions,
    ) -> None:
        self._folder = folder
        self._registry = registry
        self._printer = printer
        self._prefix = prefix
        self._options = options
        self._fold = OutputFold() if options.fold else None
        self._launcher = [
            _Source(FileTail(folder.launcher_out), "out"),
            _Source(FileTail(folder.launcher_err), "err"),
        ]
        self._ranks: list[_Source] = []
        self._paths: set[Path] = set()
        self._tagged_copies: set[tuple[int, str]] = set()  # local ranks whose file is their launcher's
        self._copies = _CopiedLines()
        self._relays: set[tuple[str, int, str]] = set()
        self._world = 0
        self._debugged: RankRegistration | None = None
        self._next_registry = 0.0
        self._warned = False

    def turn(self) -> int:
        """Read what is new, and print it. Return the number of bytes; -1 if the reader of the output is behind."""
        now = time.monotonic()
        if now >= self._next_registry:
            self.refresh()
            self._next_registry = now + REGISTRY_SECONDS
        if self._printer.is_full:
            self._printer.flush()
            return -1
        # What the launcher prints of a rank's file was in that file before.
        launcher = [(source, source.tail.read()) for source in self._shown_of_launcher()]
        if any(data for _, data in launcher):
            self.refresh()
        count = sum(self._take(source, source.tail.read(), now) for source in self._ranks)
        count += sum(self._take(source, data, now) for source, data in launcher)
        self._show_folded(now)
        self._printer.flush()
        return count

    def refresh(self) -> None:
        """Read new registrations, and follow the files of their ranks."""
        new = self._registry.refresh()
        for found in new:
            if found.ready:
                self._register(found)
        if new:
            self._prefix.set_hosts(self._registry.hosts)

    def finish(self) -> None:
        """Show the rest, when the command has ended."""
        while not self._printer.is_lost:
            self.refresh()
            count = self.turn()
            if count == 0:
                break
            if count < 0:
                self._printer.drain()
        self._debugged = None
        for source in (*self._ranks, *self._shown_of_launcher()):
            self._show(source, source.assembler.close())
            self._show_relayed(source, source.relayed.close(partial(self._is_relay, source.stream)))
            source.tail.close()
        if self._fold is not None:
            self._print_folded(self._fold.close())
        self._printer.drain()

    def _register(self, found: RankRegistration) -> None:
        _log.debug("rank", rank=found.rank, attempt=found.attempt, host=found.host, pid=found.pid, shown=found.shown)
        self._world = max(self._world, found.world)
        if 0 < found.world <= self._options.debug_rank and not self._warned:
            self._warned = True
            self._printer.write("err", _no_such_rank(self._options.debug_rank, found.world))
        if found.shown == "terminal":
            self._debugged = found
        speaker = Speaker(found.rank, found.host, found.local_rank)
        for stream, shown in (("out", found.shown_out), ("err", found.shown_err)):
            if shown == "relay":
                self._relays.add((found.host, found.rank, stream))
            elif shown == "tail":
                path = self._folder.rank_file(found.rank, found.attempt, stream)
                is_link, is_shown = path.is_symlink(), self._is_wanted(found.rank)
                if is_link:
                    self._tagged_copies.add((found.local_rank, stream))
                is_copied = is_link and found.launcher == "msrun"
                if is_shown or is_copied:
                    self._follow(_Source(FileTail(path), stream, speaker, is_shown, is_copied))

    def _follow(self, source: _Source) -> None:
        # A second program of the rank goes on in its file, and a launcher's file may have both streams.
        path = Path(os.path.realpath(source.tail.path))
        if path not in self._paths:
            self._paths.add(path)
            self._ranks.append(source)

    def _is_wanted(self, rank: int) -> bool:
        only = self._options.only
        debugged = self._options.debug_rank
        return not self._options.quiet and debugged in (-1, rank) and (only is None or rank in only)

    def _shown_of_launcher(self) -> list[_Source]:
        return [] if self._options.quiet or self._terminal_is_taken() else self._launcher

    def _terminal_is_taken(self) -> bool:
        """The launcher's messages wait while a rank has the terminal."""
        if self._debugged is not None and not is_running(self._debugged):
            self._debugged = None
        return self._debugged is not None

    def _take(self, source: _Source, data: bytes, now: float) -> int:
        self._show(source, source.assembler.feed(data, now) if data else source.assembler.overdue(now))
        return len(data)

    def _show(self, source: _Source, lines: bytes) -> None:
        if not lines:
            return
        if source.speaker is None:
            self._show_relayed(source, source.relayed.split(lines, partial(self._is_relay, source.stream)))
            return
        if source.is_copied:
            self._copies.add(lines)
        if source.is_shown:
            self._show_rank(source.speaker, source.stream, lines)

    def _show_relayed(self, source: _Source, parts: Iterable[RelayedLines]) -> None:
        for host, rank, lines in parts:
            if rank < 0:
                self._printer.write(
                    source.stream, self._safe(self._copies.without(self._without_tagged(source.stream, lines)))
                )
            elif self._is_wanted(rank):
                self._show_rank(self._speaker(host, rank), source.stream, lines)

    def _without_tagged(self, stream: str, lines: bytes) -> bytes:
        """Drop what `torchrun --tee` prints of a rank's file, which is shown already."""
        if not any(of_stream == stream for _, of_stream in self._tagged_copies):
            return lines
        return _COPY.sub(lambda match: b"" if (int(match[1]), stream) in self._tagged_copies else match[0], lines)

    def _is_relay(self, stream: str, host: str, rank: int) -> bool:
        if (host, rank, stream) not in self._relays:
            self.refresh()  # the rank registered before its relay wrote anything
        return (host, rank, stream) in self._relays

    def _speaker(self, host: str, rank: int) -> Speaker:
        found = self._registry.latest(rank)
        return Speaker(rank, host, found.local_rank if found is not None else -1)

    def _show_rank(self, speaker: Speaker, stream: str, lines: bytes) -> None:
        lines = self._safe(lines)
        if self._fold is not None:
            now = time.monotonic()
            for line in lines[:-1].split(b"\n"):
                self._fold.add(speaker, stream, line, now)
            return
        prefix = self._prefix.of((speaker,), stream, time.time())
        self._printer.write(stream, prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n")

    def _show_folded(self, now: float) -> None:
        if self._fold is not None:
            self._print_folded(self._fold.ready(now, self._world))

    def _print_folded(self, lines: list[FoldedLine]) -> None:
        now = time.time()
        for line in lines:
            prefix = self._prefix.of(line.speakers, line.stream, now)
            self._printer.write(line.stream, prefix + line.text + b"\n")

    def _safe(self, lines: bytes) -> bytes:
        return terminal_safe(lines) if self._printer.is_terminal else lines


class _CopiedLines:
    """Lines that msrun copies from its workers' files to its own output, without a word of whose they are."""

    def __init__(self) -> None:
        self._waiting: Counter[bytes] = Counter()

    def add(self, lines: bytes) -> None:
        """Add lines of a worker's file. Copies that do not come (`--tail_worker_log`) are forgotten after a while."""
        if len(self._waiting) > _MAX_COPIES:
            self._waiting.clear()
        self._waiting.update(line[:_MAX_COPY_BYTES] for line in lines[:-1].split(b"\n"))

    def without(self, lines: bytes) -> bytes:
        """Return the launcher's lines without copies."""
        return (
            b"".join(line for line in lines.splitlines(keepends=True) if not self._takes(line))
            if self._waiting
            else lines
        )

    def _takes(self, line: bytes) -> bool:
        key = line.rstrip(b"\n")[:_MAX_COPY_BYTES]
        if not self._waiting[key]:
            del self._waiting[key]
            return False
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]
        return True


def _no_such_rank(rank: int, world: int) -> bytes:
    return f"breakranks: the job has no rank {rank}: its ranks are 0 to {world - 1}\n".encode()
