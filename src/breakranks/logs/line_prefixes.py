"""Who wrote a line: the prefixes of launchers, of torch and of log collectors, and time stamps. Rows are tried again
until none fits, since one launcher may run below another."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple

from breakranks.logs.log_events import LogLine
from breakranks.logs.log_sources import LogSource

_MAX_PREFIXES = 4
_MAX_LEARNED_BLOCKS = 8
_MAX_TORN_BYTES = 64 << 10  # between the pieces of a line
_SAMPLE_BYTES = 128 << 10
_MAX_LINE_CHARACTERS = 64 << 10
_MAX_REDRAWS = 50  # states of a progress bar that are kept of one line
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]")

# Each row: one prefix. Groups: rank, local (rank), host, tag (anything else that tells voices apart).
_ROWS = tuple(
    re.compile(pattern)
    for pattern in (
        # Open MPI --tag-output: [1,3]<stdout>:   horovodrun: [1]<stderr>:   Open MPI 5: [prterun-n1-42@1,3]<stderr>:
        r"(?:\w{3} \w{3} +\d+ [\d:]{8} \d{4})?\[(?:\d+,)?(?P<rank>\d+)\]<std(?:out|err|diag)>:",
        r"\[[\w.-]+@\d+,(?P<rank>\d+)\]<std(?:out|err|diag)>: ?",
        # torch's own exception hook and C++ logger; torchrun with a template of "rank"
        r"\[rank[ :=]?(?P<rank>\d+)\]:? ?",
        # breakranks run
        r"\[(?:(?P<host>[\w.-]+):)?(?P<rank>\d+)\] ",
        # torchrun --tee: [default0]:   with --role trainer: [trainer0]:
        r"\[(?P<tag>[A-Za-z_][\w.-]*?)(?P<local>\d+)\]:",
        # kubectl logs --prefix: [pod/train-worker-3/pytorch]
        r"\[(?P<tag>pod/[\w./-]+)\] ",
        # Ray: (train pid=42, ip=10.0.0.5)
        r"\((?P<tag>[^()]{0,80}\bpid=\d+(?:, ip=[\d.]+)?)\) ",
        # Megatron and others: [Rank 3], (rank 3), rank 3:, Rank: 3 |
        r"[\[(]?[Rr](?:ank|ANK)[ :=]{0,2}(?P<rank>\d{1,6})[\])]?(?::| \||(?<=[\])]))[ \t]?(?!.*(?:atchdog|NCCL))",
    )
)
# What log collectors put before every line of a file. Single lines that begin so are text.
_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_OUTER_ROWS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_STAMP} std(?:out|err) [FP] ",  # Kubernetes: /var/log/pods
        rf"\[?{_STAMP}\]?:?[ \t]",  # kubectl and docker logs --timestamps, ts
        rf"[^\t]{{1,80}}\t[^\t]{{1,80}}\t{_STAMP} ",  # GitHub: gh run view --log
        r"(?P<tag>[\w.-]{1,80}) +\| ?",  # docker compose logs
        r"\w{3} [ \d]\d [\d:]{8} (?P<host>[\w.-]+) (?P<tag>[^\s:\[]+(?:\[\d+\])?): ?",  # syslog, journalctl
    )
)
_JSON_HEAD = '{"log":"'  # Docker's json-file driver
_OUTER_SHARE = 0.9  # of the lines of a file
_LABEL = re.compile(r" {0,5}(?P<rank>\d{1,6}): ?")  # srun --label
_HOST = re.compile(r"(?P<host>[A-Za-z][\w.-]{0,80}): ?")  # pdsh, deepspeed on several hosts
_MPI_TAG = re.compile(r"\[(?:[\w.@-]*?\d+,)?(\d+)\]<std(?:out|err|diag)>:")
# Behind a progress bar or a line whose end another rank interrupted.
_RANK_WITHIN = re.compile(r"\[rank\d+\]:(?= |\[[WEIF]\d{4} )")
_NOT_HOSTS = re.compile(
    r"(?i)(?:\w*error|\w*warning|info|debug|critical|fatal|epoch|step|loss|srun|slurmstepd|mpirun|note)\Z"
)

_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?\d*(Z|[+-]\d\d:?\d\d)?")
_ISO_BYTES = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?")
_GLOG = re.compile(r"[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,6})")
_TIME_WINDOW_BYTES = 8192


class _Style(NamedTuple):
    """Prefixes that only the whole file can tell from text: ``3: `` of srun, ``n1: `` of pdsh, collectors' ones."""

    outer: tuple[re.Pattern[str], ...] = ()
    json: bool = False
    labels: bool = False
    hosts: frozenset[str] = frozenset()


class PrefixReader:
    """Makes lines of one source: finds out its style from its first block, and the rank of a voice once told.
    ``keep_times``: the time stamps of a log collector stay in the text."""

    def __init__(self, source: LogSource, year: int = 0, *, keep_times: bool = False) -> None:
        self.source = source
        self._year = year
        self._keep_times = keep_times
        self._style: _Style | None = None
        self._learned = 0
        self._unended: dict[str, tuple[str, int]] = {}  # by tag of Open MPI
        self._ranks: dict[str, int] = {}  # by voice: what a line of it has told

    def learn(self, data: bytes) -> set[int]:
        """Find out the style of the file from a block, unless it is known. Return the ranks that its lines name."""
        if self._learned >= _MAX_LEARNED_BLOCKS:
            return set()
        self._learned += 1
        sample = data[:_SAMPLE_BYTES]
        if self._style is None or self._style == _Style():
            self._style = _style_of(sample)
        lines = (line for raw in sample.split(b"\n") for line in self.lines(raw, 0))
        return {line.rank for line in lines if line.rank >= 0}

    def lines(self, raw: bytes, position: int) -> Iterator[LogLine]:
        """Yield the lines in one line of a file: several if a progress bar was redrawn or tags stand within it."""
        text = raw[:_MAX_LINE_CHARACTERS].decode("utf-8", "replace").rstrip("\r\n")
        if "\r" in text:
            parts = [part for part in text.split("\r") if part]
            for part in parts[:1] + parts[max(1, len(parts) - _MAX_REDRAWS) :]:
                yield from self._whole(part, position)
        elif "]<std" in text and (len(tags := list(_MPI_TAG.finditer(text))) > 1 or (self._unended and tags)):
            yield from self._torn(text, tags, position)
        else:
            yield from self._whole(text, position)

    def _whole(self, text: str, position: int) -> Iterator[LogLine]:
        """Yield a line, or two where a rank's own prefix stands within it: ``step 3 done[rank1]: Traceback``."""
        line = self._line(text, position)
        within = _RANK_WITHIN.search(line.text, 1) if "[rank" in line.text else None
        if within is None or not line.text[: within.start()].strip():
            yield line
            return
        text = _CONTROL.sub("", text)
        prefix = text[: len(text) - len(line.text)] if not (self._style or _Style()).json else ""
        yield line._replace(text=line.text[: within.start()])
        yield from self._whole(prefix + line.text[within.start() :], position)

    def _torn(self, text: str, tags: list[re.Match[str]], position: int) -> Iterator[LogLine]:
        """Open MPI puts a tag before each piece that it reads. Pieces of the same rank in a row are one line."""
        joined: list[tuple[str, str]] = [("", text[: tags[0].start()])] if tags[0].start() else []
        for at, tag in enumerate(tags):
            piece = text[tag.end() : tags[at + 1].start() if at + 1 < len(tags) else len(text)]
            if joined and joined[-1][0] == tag[0]:
                joined[-1] = (tag[0], joined[-1][1] + piece)
            else:
                joined.append((tag[0], piece))
        for name, piece in joined[:-1]:  # without its end: the next piece with this tag goes on with it
            begun = self._begun(name, position) + piece
            self._unended[name] = (begun, position)
        name, piece = joined[-1]
        yield self._line(name + self._begun(name, position) + piece, position)

    def _begun(self, tag: str, position: int) -> str:
        """Return the beginning of a line that had no end, and forget it."""
        text, at = self._unended.pop(tag, ("", 0))
        return text if position - at <= _MAX_TORN_BYTES else ""

    def _line(self, text: str, position: int) -> LogLine:
        text = _CONTROL.sub("", text)
        source, style = self.source, self._style or _Style()
        rank, local, host, tags, stamps = source.rank, source.local_rank, source.host, [], []
        if style.json:
            text, stamp = _unpacked(text)
            stamps.append(stamp)
        for _ in range(_MAX_PREFIXES):
            match, outer = _prefix(text, style)
            if match is None:
                break
            parts = match.groupdict()
            rank = int(parts["rank"]) if parts.get("rank") else rank
            local = int(parts["local"]) if parts.get("local") else local
            host = parts.get("host") or host
            if not outer:
                tags.append(match[0].strip())
            elif parts.get("tag"):
                tags.append(parts["tag"])
            else:
                stamps.append(match[0])
            text = text[match.end() :]
        own = source.rank >= 0 or source.local_rank >= 0
        voice = source.name if own else f"{source.name}|{'|'.join(tags)}" if tags else ""
        if voice and rank >= 0:
            self._ranks[voice] = rank
        time = time_of(text, self._year) or next((moment for stamp in stamps if (moment := time_of(stamp))), 0.0)
        return LogLine(
            "".join(stamps) + text if self._keep_times else text,
            rank=rank if rank >= 0 else self._ranks.get(voice, -1),
            host=host,
            local_rank=local,
            attempt=max(source.attempt, 0),
            voice=voice,
            source=source.name,
            position=position,
            time=time,
        )


def _prefix(text: str, style: _Style) -> tuple[re.Match[str] | None, bool]:
    """Return the first prefix, and whether it is a log collector's."""
    for row in style.outer:
        if match := row.match(text):
            return match, True
    if text[:1] in "[(Rr" or text[3:4] == " ":
        for row in _ROWS:
            if match := row.match(text):
                return match, False
    if style.labels and (match := _LABEL.match(text)):
        return match, False
    if style.hosts and (match := _HOST.match(text)) and match["host"] in style.hosts:
        return match, False
    return None, False


def _unpacked(text: str) -> tuple[str, str]:
    """Return the line in a JSON record of Docker, and its time stamp."""
    try:
        record = json.loads(text)
        return str(record["log"]).rstrip("\r\n"), f"{record.get('time', '')} "
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text, ""


def _style_of(data: bytes) -> _Style:
    lines = [_CONTROL.sub("", line) for line in data.decode("utf-8", "replace").splitlines()[:5000] if line.strip()]
    style = _Style(json=_share(lines, lambda line: line.startswith(_JSON_HEAD)) >= _OUTER_SHARE)
    if style.json:
        lines = [_unpacked(line)[0] for line in lines]
    for _ in range(_MAX_PREFIXES):
        lines = [_stripped(line, style) for line in lines]
        row = next((row for row in _OUTER_ROWS if _share(lines, row.match) >= _OUTER_SHARE), None)
        if row is None or row in style.outer:
            break
        style = style._replace(outer=(*style.outer, row))
    return _with_labels(style, [line for line in lines if line.strip()])


def _with_labels(style: _Style, lines: list[str]) -> _Style:
    lines = [line for line in lines if not line.startswith(("srun:", "slurmstepd:"))]
    if len(lines) < 2:
        return style
    if _share(lines, _LABEL.match) >= _OUTER_SHARE:
        return style._replace(labels=True)
    named = Counter(match["host"] for line in lines if (match := _HOST.match(line)))
    hosts = frozenset(name for name in named if not _NOT_HOSTS.match(name))
    if sum(named[name] for name in hosts) >= _OUTER_SHARE * len(lines) and all(_is_host(name) for name in hosts):
        return style._replace(hosts=hosts)
    return style


def _share(lines: list[str], fits: Callable[[str], object]) -> float:
    return sum(bool(fits(line)) for line in lines) / len(lines) if len(lines) > 1 else 0.0


def _stripped(line: str, style: _Style) -> str:
    for _ in range(_MAX_PREFIXES):
        match, _outer = _prefix(line, style)
        if match is None:
            break
        line = line[match.end() :]
    return line


def _is_host(name: str) -> bool:
    return any(letter.isdigit() for letter in name) or "-" in name or "." in name or name == "localhost"


def time_of(text: str, year: int = 0) -> float:
    """Return the time stamp of a line in seconds since the epoch, 0 if it has none. Without a zone it is local."""
    head = text[:120]
    if (match := _ISO.search(head)) is not None:
        return _seconds(match.groups()[:7], match[8])
    if year and (match := _GLOG.search(head)) is not None:
        return _seconds((str(year), *match.groups()), None)
    return 0.0


class StampMemory:
    """The newest ISO time stamp before an offset of a block: lines of a traceback have none. Offsets only grow, so no
    byte is searched twice."""

    def __init__(self) -> None:
        self._time = 0.0
        self._at = 0  # offset in its file
        self._searched = 0

    def before(self, data: bytes, position: int, at: int) -> float:
        """Return the time of the newest stamp in the bytes before ``at``, of a block that begins at ``position``."""
        begin = max(0, at - _TIME_WINDOW_BYTES, self._searched - position)
        stamps = list(_ISO_BYTES.finditer(data, begin, at))
        if stamps:
            self._time, self._at = time_of(stamps[-1][0].decode()), position + stamps[-1].start()
        self._searched = position + at
        return self._time if position + at - self._at <= _TIME_WINDOW_BYTES else 0.0


def _seconds(parts: tuple[str, ...], zone: str | None) -> float:
    year, month, day, hour, minute, second = (int(part) for part in parts[:6])
    try:
        moment = datetime(year, month, day, hour, minute, second)
        if zone is not None:
            moment = moment.replace(tzinfo=timezone.utc)
            if zone != "Z":
                sign = -1 if zone[0] == "-" else 1
                digits = zone[1:].replace(":", "")
                return moment.timestamp() - sign * (int(digits[:2]) * 3600 + int(digits[2:]) * 60) + _fraction(parts[6])
        return moment.timestamp() + _fraction(parts[6])
    except (ValueError, OverflowError, OSError):
        return 0.0


def _fraction(digits: str | None) -> float:
    return float(f"0.{digits}") if digits else 0.0
