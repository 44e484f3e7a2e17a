"""The text before each line: ``[host:rank] ``, or what the user wants there instead."""

from __future__ import annotations

import re
import string
import time
from collections.abc import Iterable, Sequence

from breakranks.errors import UsageError
from breakranks.rankset import RankSet
from breakranks.run.output_fold import Speaker
from breakranks.snapshot.host_names import fold

FIELDS = ("host", "rank", "local_rank", "stream", "time")
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_STREAMS = {"out": "stdout", "err": "stderr"}
_TOKEN = re.compile(r"\d+|[^\W\d_]+|.", re.DOTALL)


class LinePrefix:
    """Makes the prefix of a line. Without a template it is ``[rank] `` for one host, ``[host:rank] `` for several."""

    def __init__(self, template: str | None = None, *, color: bool = False) -> None:
        self._template = template if template is None else checked_template(template)
        self._color = color
        self._short: dict[str, str] = {}
        self._made: dict[tuple[tuple[Speaker, ...], str], bytes] = {}

    def set_hosts(self, hosts: Iterable[str]) -> None:
        """Set the hosts of the job, from which the short names follow."""
        hosts = sorted(hosts)
        if hosts != sorted(self._short):
            self._short = short_names(hosts)
            self._made.clear()

    def of(self, speakers: Sequence[Speaker], stream: str, now: float) -> bytes:
        """Return the prefix of a line of these ranks. ``now``: seconds since the epoch."""
        key = (tuple(speakers), stream)
        made = self._made.get(key)
        if made is None:
            made = self._make(key[0], stream, now)
            if "{time" not in (self._template or "") and len(self._made) < 10_000:
                self._made[key] = made
        return made

    def _make(self, speakers: tuple[Speaker, ...], stream: str, now: float) -> bytes:
        ranks = str(RankSet(speaker.rank for speaker in speakers))
        host = _folded_hosts({self._short.get(speaker.host, speaker.host) for speaker in speakers})
        if self._template is None:
            text = f"[{host}:{ranks}] " if len(self._short) > 1 else f"[{ranks}] "
        else:
            local = RankSet(speaker.local_rank for speaker in speakers if speaker.local_rank >= 0)
            text = _filled(self._template, host, ranks, str(local) or "-", _STREAMS.get(stream, stream), now)
        if self._color and text:
            colour = _COLOURS[speakers[0].rank % len(_COLOURS)] if len(speakers) == 1 else 1
            text = f"\x1b[{colour}m{text.rstrip()}\x1b[0m{text[len(text.rstrip()) :]}"
        return text.encode("utf-8", "replace")


def _filled(template: str, host: str, rank: str, local_rank: str, stream: str, now: float) -> str:
    clock = f"{time.strftime('%H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d}"
    return template.format(host=host, rank=rank, local_rank=local_rank, stream=stream, time=clock)


def checked_template(template: str) -> str:
    """Return the template of ``--prefix``, or raise UsageError that names what is wrong with it."""
    names = " ".join(f"{{{name}}}" for name in FIELDS)
    example = f"The fields are {names}. For example: --prefix '{{time}} [{{rank}}] '"
    if not template.replace("\t", "").isprintable():
        raise UsageError(f"--prefix {template!r} has control characters", example)
    try:
        used = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
        unknown = [field for field in used if field not in FIELDS]
        if unknown:
            raise UsageError(f"--prefix has no field {{{unknown[0]}}}", example)
        if len(_filled(template, "n", "0", "0", "stdout", 0.0)) > 1000:
            raise UsageError("--prefix is longer than 1000 characters", example)
    except (ValueError, LookupError, TypeError, OverflowError, MemoryError) as error:
        raise UsageError(f"--prefix {template!r} is not valid: {error}", example) from error
    return template


def short_names(hosts: Sequence[str]) -> dict[str, str]:
    """Return each host name without what all of them begin and end with. Numbers and words stay whole.

    >>> short_names(["node-15.site", "node-5.site"]), short_names(["gpu01"]), short_names(["alpha1", "alpine1"])
    ({'node-15.site': '15', 'node-5.site': '5'}, {'gpu01': 'gpu01'}, {'alpha1': 'alpha', 'alpine1': 'alpine'})
    """
    split = [_TOKEN.findall(host) for host in hosts]
    least = min((len(tokens) for tokens in split), default=0)
    first = _alike(split, least)
    last = _alike([tokens[first:][::-1] for tokens in split], least - first)
    short = ["".join(tokens[first : len(tokens) - last]) for tokens in split]
    # One name may be the beginning of another: n, n1.
    if len(hosts) < 2 or not all(any(c.isalnum() for c in name) for name in short):
        short = list(hosts)
    return dict(zip(hosts, short, strict=True))


def _alike(rows: Sequence[Sequence[str]], most: int) -> int:
    """How many tokens at the beginning are the same in all rows."""
    for at in range(most):
        if any(row[at] != rows[0][at] for row in rows):
            return at
    return most


def _folded_hosts(names: set[str]) -> str:
    text = fold(names)
    # The template has brackets of its own: [1-2:0-7], not [[1-2]:0-7].
    inner = text[1:-1]
    return inner if text[:1] == "[" and text[-1:] == "]" and "[" not in inner else text
