"""Which files are logs of a job, and what their paths tell: the rank, the attempt, the stream."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from breakranks.errors import UsageError

STANDARD_INPUT = "-"
MAX_FILES = 200_000

# What a source holds: lines of one rank, of a launcher, of several ranks; one JSON record of a rank's failure.
RANK, LAUNCHER, MIXED, RECORD = "rank", "launcher", "mixed", "record"


class LogSource(NamedTuple):
    """One file of lines. ``name`` is shown; numbers are -1 where the path does not tell them."""

    path: str
    name: str
    kind: str = MIXED
    rank: int = -1
    local_rank: int = -1
    attempt: int = -1
    host: str = ""
    stream: str = ""


class _NamePattern(NamedTuple):
    """How a program names its files. ``pattern`` matches the end of a path; ``launcher``: it is the launcher's own."""

    pattern: re.Pattern[str]
    launcher: bool = False
    record: bool = False


def _named(pattern: str, *, launcher: bool = False, record: bool = False) -> _NamePattern:
    return _NamePattern(re.compile(rf"(?:^|/){pattern}\Z", re.IGNORECASE), launcher, record)


_PATTERNS = (
    # torchrun --log-dir: RUNID_RANDOM/attempt_N/LOCAL_RANK/…
    _named(r"attempt_(?P<attempt>\d+)/(?P<local>\d+)/(?P<stream>stdout|stderr)\.log"),
    _named(r"attempt_(?P<attempt>\d+)/(?P<local>\d+)/error\.json", record=True),
    # breakranks run
    _named(r"rank-(?P<rank>\d+)(?:\.attempt-(?P<attempt>\d+))?\.(?P<stream>out|err)"),
    _named(r"ranks/rank-(?P<rank>\d+)\.attempt-(?P<attempt>\d+)\.exception\.json", record=True),
    _named(r"launcher\.(?P<stream>out|err)", launcher=True),
    # msrun: worker_N.log and scheduler.log
    _named(r"worker_(?P<rank>\d+)\.(?:log|txt)"),
    _named(r"scheduler\.(?:log|txt)", launcher=True),
    # Open MPI --output-filename: JOB/rank.N/stdout
    _named(r"rank\.(?P<rank>\d+)/(?P<stream>stdout|stderr)"),
    _named(r"[^/]*?local[-_.]?rank[-_.]?(?P<local>\d{1,6})(?:\.[a-z]{1,6})*"),
    # srun --output=…%t and what people choose themselves: rank3.log, train_rank_3.txt, node-5.rank-3.err, stderr.3
    _named(
        r"[^/]*?(?<![a-z])(?:global[-_.]?)?(?:rank|task|worker|proc|process)[-_.]?(?P<rank>\d{1,6})"
        r"(?:[-_.](?P<stream>stdout|stderr|out|err))?(?:\.[a-z]{1,6})?"
    ),
    _named(r"(?P<stream>stdout|stderr|out|err)[-_.](?P<rank>\d{1,6})(?:\.[a-z]{1,6})?"),
)
# srun --output=job.%t.out, 3.err: a number may also be that of a job, so all from 0 must be there.
_TASK = re.compile(r"(?:^|/)(?P<name>(?:[^/]*\.)?)(?P<rank>\d{1,6})\.(?P<stream>stdout|stderr|out|err|log)\Z")
_HOST = re.compile(r"(?:^|/)(?:host|node)[-_.]?(\w[\w-]*?)(?=[._/-](?:rank|task|worker|local)|/)", re.IGNORECASE)
_NOT_LOGS = re.compile(
    r"\.(?:pt|pth|bin|pkl|pickle|npy|npz|safetensors|ckpt|brk|py|pyc|so|json|jsonl|yaml|yml|toml|sh|csv|parquet|png|svg|zip"
    r"|tar|whl|db|lock|pid|sock|md|cfg|ini|tfevents.*)(?:\.gz)?\Z|(?:^|/)(?:core(?:\.\d+)?|events\.out\.tfevents.*)\Z",
    re.IGNORECASE,
)
_PACKED = re.compile(r"\.(?:gz|xz|bz2)\Z")
_RUN_FOLDER = re.compile(r"\d{8}-\d{6}-\d+\Z")  # of breakranks run
_STREAMS = {"stdout": "out", "stderr": "err", "out": "out", "err": "err"}
_SKIPPED_FOLDERS = ("startup", "__pycache__", ".git")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSources:
    """The files to read. ``older`` are folders of earlier runs that were left out. ``paths``: what was asked for."""

    sources: tuple[LogSource, ...]
    older: tuple[str, ...] = field(default=())
    paths: tuple[str, ...] = field(default=())


def find_sources(paths: Iterable[str], *, expected: bool = False) -> FoundSources:
    """Return the logs that these paths name: files, folders, ``-``. Raise UsageError if one cannot be a log.
    ``expected``: a file may be created later, and a folder may still be empty."""
    paths = tuple(paths)
    found: dict[str, LogSource] = {}
    older: list[str] = []
    for path in paths:
        if path == STANDARD_INPUT:
            found[path] = LogSource(path, "standard input")
        elif os.path.isdir(path):
            folder, left_out = newest_run(path)
            older += left_out
            inside = {source.path: source for source in _in_folder(folder)}
            if not inside and not expected:
                raise UsageError(f"{path} has no log files", "Name the files themselves, or the folder of one run.")
            found.update(inside)
        elif not os.path.exists(path) and not expected:
            raise UsageError(f"{path} does not exist", "Name log files, a folder of them, or - for standard input.")
        else:
            found[path] = source_of(path, path)
    return FoundSources(sources=_with_tasks(found.values()), older=tuple(older), paths=paths)


def _with_tasks(sources: Iterable[LogSource]) -> tuple[LogSource, ...]:
    """Give ranks to files that are numbered from 0 without a gap."""
    sources = tuple(sources)
    names = {source.path: _TASK.search(_plain(source.path)) for source in sources if source.kind == MIXED}
    numbers: dict[tuple[str, ...], set[int]] = {}
    for path, match in names.items():
        if match is not None:
            numbers.setdefault(_task_series(path, match), set()).add(int(match["rank"]))

    def numbered(source: LogSource) -> LogSource:
        match = names.get(source.path)
        found = numbers[_task_series(source.path, match)] if match is not None else set()
        if match is None or len(found) < 2 or found != set(range(len(found))):
            return source
        stream = _STREAMS.get(match["stream"], "")
        return source._replace(kind=RANK, rank=int(match["rank"]), attempt=0, stream=stream)

    return tuple(numbered(source) for source in sources)


def _task_series(path: str, match: re.Match[str]) -> tuple[str, ...]:
    return os.path.dirname(path), match["name"], match["stream"]


def _plain(path: str) -> str:
    return _PACKED.sub("", path.replace(os.sep, "/"))


def source_of(path: str, name: str) -> LogSource:
    """Return what the path of a file tells."""
    plain = _plain(path)
    for row in _PATTERNS:
        match = row.pattern.search(plain)
        if match is None:
            continue
        parts = match.groupdict()
        host = _HOST.search(plain)
        return LogSource(
            path,
            name,
            kind=LAUNCHER if row.launcher else RECORD if row.record else RANK,
            rank=_number(parts.get("rank")),
            local_rank=_number(parts.get("local")),
            attempt=-1 if row.launcher else int(parts.get("attempt") or 0),
            host=host[1] if host else "",
            stream=_STREAMS.get(parts.get("stream") or "", ""),
        )
    return LogSource(path, name)


def newest_run(folder: str) -> tuple[str, list[str]]:
    """Return the folder of the newest run, if a folder holds several runs of ``breakranks run`` or torchrun, and the
    older ones."""
    try:
        below = [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}", "Check its permissions.") from None
    runs = [path for path in below if _RUN_FOLDER.search(path)] or [path for path in below if _is_torchrun(path)]
    if len(runs) < 2:
        return (runs[0] if runs else folder), []
    runs.sort(key=lambda path: (os.stat(path).st_mtime_ns, path))
    return runs[-1], runs[:-1]


def _is_torchrun(folder: str) -> bool:
    return os.path.isdir(f"{folder}/attempt_0")


def _in_folder(folder: str) -> Iterator[LogSource]:
    count = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = os.path.join(parent, name)
            source = source_of(path, os.path.relpath(path, folder))
            if (source.kind == RECORD or not _NOT_LOGS.search(path)) and os.path.isfile(path):
                count += 1
                if count > MAX_FILES:
                    raise UsageError(f"{folder} has more than {MAX_FILES:,} files", "Name the folder of one run.")
                yield source


def _number(text: str | None) -> int:
    return int(text) if text else -1
