"""Lines of ranks in the output of their launcher, where relays have written them.

A relay puts ``[host:rank] `` before each line of its rank. The launcher may put a tag of its own before that, and both
may have to cut a long line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from breakranks.run.output_lines import MAX_LINE_BYTES


class RelayedLines(NamedTuple):
    """Lines of the launcher's output that follow each other, of one rank; rank -1: the launcher's own."""

    host: str
    rank: int
    lines: bytes


_PREFIX = re.compile(rb"\[([\w.:-]{1,255}):(\d{1,8})\] ")
# A relay cuts what does not fit into one write to a pipe, at a whole character. Each piece but the last ends like this.
_CUT = b" \\\n"
_MIN_CUT_BYTES = 4096 - 4
_TAG = re.compile(rb"\[[^\s\[\],]{0,80}\d,\d+\]<std(?:out|err)>:")  # mpirun --tag-output
_LABEL = re.compile(rb"\s{0,8}\d{1,8}: (?=(.?))")  # srun --label
_LABELLED_BYTES = 1024  # in one message from a task to srun. It ends each with a newline.
IsRelay = Callable[[str, int], bool]


class RelayedStream:
    """Takes one stream of the launcher apart, and joins what was cut."""

    def __init__(self) -> None:
        self._tags = _LauncherTags()
        self._begun: dict[tuple[str, int], list[bytes]] = {}

    def split(self, lines: bytes, is_relay: IsRelay) -> Iterator[RelayedLines]:
        """Return runs of lines of one rank. ``is_relay`` tells of a host and rank whether a relay writes for it."""
        return self._runs(self._tags.lines(lines), is_relay)

    def close(self, is_relay: IsRelay) -> Iterator[RelayedLines]:
        """Return the beginnings of lines whose last piece did not come."""
        yield from self._runs(self._tags.close(), is_relay)
        begun, self._begun = self._begun, {}
        for speaker, parts in begun.items():
            yield RelayedLines(*speaker, b"".join(parts) + b"\n")

    def _runs(self, lines: Iterator[tuple[bytes, bytes]], is_relay: IsRelay) -> Iterator[RelayedLines]:
        whose, run = ("", -1), list[bytes]()
        for tag, line in lines:
            speaker, text = self._of(tag, line, is_relay)
            if speaker != whose and run:
                yield RelayedLines(*whose, b"".join(run))
                run = []
            whose = speaker
            if text:
                run.append(text)
        if run:
            yield RelayedLines(*whose, b"".join(run))

    def _of(self, tag: bytes, line: bytes, is_relay: IsRelay) -> tuple[tuple[str, int], bytes]:
        match = _PREFIX.match(line)
        if match is None or not is_relay(match[1].decode(), int(match[2])):
            return ("", -1), tag + line
        speaker, text = (match[1].decode(), int(match[2])), line[match.end() :]
        begun = self._begun.pop(speaker, [])
        if not (line.endswith(_CUT) and len(line) >= _MIN_CUT_BYTES):
            return speaker, b"".join([*begun, text])
        parts = [*begun, text.removesuffix(_CUT)]
        if len(parts) * _MIN_CUT_BYTES >= MAX_LINE_BYTES:
            return speaker, b"".join(parts) + b"\n"
        self._begun[speaker] = parts
        return speaker, b""


class _LauncherTags:
    """Takes off the tags of launchers. Lines that a launcher has cut are whole again.

    mpirun reads the output of a rank in pieces. Where one ends in mid-line, the next has a tag there, or there comes
    the piece of another rank.
    """

    def __init__(self) -> None:
        self._open: dict[bytes, bytes] = {}

    def lines(self, lines: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return each line with its tag."""
        for line in lines.removesuffix(b"\n").split(b"\n"):
            if b"<std" in line and _TAG.search(line):
                yield from self._tagged(line)
            elif (label := _LABEL.match(line)) is not None and (label[1] == b"[" or label[0] in self._open):
                yield from self._labelled(label[0], line[label.end() :])
            else:
                yield b"", line + b"\n"

    def close(self) -> Iterator[tuple[bytes, bytes]]:
        yield from [(tag, text + b"\n") for tag, text in self._open.items()]
        self._open.clear()

    def _tagged(self, line: bytes) -> Iterator[tuple[bytes, bytes]]:
        parts = re.split(b"(" + _TAG.pattern + b")", line)
        if parts[0]:
            yield b"", parts[0] + b"\n"
        tags, texts = parts[1::2], parts[2::2]
        for at, (tag, text) in enumerate(zip(tags, texts, strict=True)):
            yield from self._add(tag, text, is_whole=at == len(tags) - 1)

    def _labelled(self, label: bytes, text: bytes) -> Iterator[tuple[bytes, bytes]]:
        is_cut = len(text) == _LABELLED_BYTES and (label in self._open or _PREFIX.match(text) is not None)
        return self._add(label, text, is_whole=not is_cut)

    def _add(self, tag: bytes, text: bytes, *, is_whole: bool) -> Iterator[tuple[bytes, bytes]]:
        text = self._open.pop(tag, b"") + text
        if is_whole or len(text) >= MAX_LINE_BYTES:
            yield tag, text + b"\n"
        else:
            self._open[tag] = text
