"""One snapshot in one file: a header, then zlib-compressed msgpack.

The header has the version of the format, the length of the rest and its checksum, so a truncated or foreign file is
recognised before its content is used. A file may come from anyone: sizes are bounded before memory is allocated, and
every index in it is checked before it is used.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import struct
import zlib
from collections.abc import Iterable

import msgspec

from breakranks.errors import SnapshotError, UsageError
from breakranks.rankset import MAX_RANK, RankSet
from breakranks.snapshot.model import FORMAT_VERSION, Process, Snapshot
from breakranks.snapshot.recorder_tables import ROW_BYTES, Track, Transfer, unpack_rows

MAGIC = b"BREAKRANKS"
MAX_SNAPSHOT_BYTES = 1 << 30  # of the file, and of its unpacked content
MAX_FAMILY = 100  # generations of processes
_HEADER = struct.Struct("<HIQQ")  # format version, checksum, packed length, unpacked length
HEADER_BYTES = len(MAGIC) + _HEADER.size

_LAST_TIME_SECONDS = 1e11
_AGAIN = "Make it again with: breakranks snapshot -o FILE"


def save(snapshot: Snapshot, path: str) -> int:
    """Write a snapshot to ``path``, completely or not at all, and return its size in bytes."""
    path = check_place(path)
    data = pack(snapshot)
    part = f"{path}.{os.getpid()}.part"
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            os.unlink(part)
            raise
    except OSError as error:
        raise SnapshotError(f"cannot write {path}: {error.strerror}", _remedy(error)) from error
    return len(data)


def check_place(path: str) -> str:
    """Return the real path to write to. Raise SnapshotError if a snapshot cannot be written there."""
    path = os.path.realpath(path)
    if os.path.isdir(path):
        raise SnapshotError(f"{path} is a folder", "Name the file to write, in that folder or another.")
    if os.path.exists(path) and not os.path.isfile(path):
        raise SnapshotError(f"{path} is not a file that can be replaced", "Name another one.")
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise SnapshotError(f"cannot write {path}: {folder} is not a folder", "Create it, or name another one.")
    if not os.access(folder, os.W_OK):
        raise SnapshotError(f"cannot write {path}: permission denied in {folder}", "Name a file in another folder.")
    return path


def load(path: str) -> Snapshot:
    """Read a snapshot. Any fault of the file is a :class:`SnapshotError` that names it."""
    try:
        # Opening a pipe without a writer would block.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SnapshotError(f"{path} is not a regular file", "Copy the snapshot to a file first.")
            if status.st_size > MAX_SNAPSHOT_BYTES:
                raise SnapshotError(f"{path} is larger than any snapshot ({status.st_size:,} bytes)", _AGAIN)
            data = file.read(status.st_size + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, IsADirectoryError):
            raise SnapshotError(f"{path} is a folder, not a snapshot", "Name the file in it.") from error
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SnapshotError(
            f"cannot read {path}: {reason}", _remedy(error) if isinstance(error, OSError) else ""
        ) from error
    try:
        return unpack(data)
    except SnapshotError as error:
        raise SnapshotError(f"{path} {error.message}", error.help) from error


def pack(snapshot: Snapshot) -> bytes:
    """Return the bytes of a snapshot file."""
    try:
        plain = msgspec.msgpack.encode(snapshot)
    except UnicodeEncodeError:
        # A file name or command line that is not UTF-8 was read with surrogateescape.
        plain = msgspec.msgpack.encode(printable(msgspec.to_builtins(snapshot, builtin_types=(bytes,))))
    packed = zlib.compress(plain, 6)
    return MAGIC + _HEADER.pack(FORMAT_VERSION, zlib.crc32(packed), len(packed), len(plain)) + packed


def unpack(data: bytes) -> Snapshot:
    """Return the snapshot in the bytes of a file. The message of a :class:`SnapshotError` continues its name."""
    if not data:
        raise SnapshotError("is empty", _AGAIN)
    if not data.startswith(MAGIC[: len(data)]):
        raise SnapshotError("is not a breakranks snapshot", "Make one with: breakranks snapshot -o FILE")
    if len(data) < len(MAGIC) + 2:
        raise SnapshotError(f"is truncated after {len(data)} bytes", f"Copy it again. {_AGAIN}")
    (version,) = struct.unpack_from("<H", data, len(MAGIC))
    if version > FORMAT_VERSION:
        raise SnapshotError(
            f"was written by a newer breakranks (format {version}; this one reads up to {FORMAT_VERSION})",
            "Update this one: pip install --upgrade breakranks",
        )
    if len(data) < HEADER_BYTES:
        raise SnapshotError(f"is truncated after {len(data)} bytes", f"Copy it again. {_AGAIN}")
    _, checksum, packed_size, plain_size = _HEADER.unpack_from(data, len(MAGIC))
    packed = memoryview(data)[HEADER_BYTES:]
    if len(packed) < packed_size:
        raise SnapshotError(
            f"is truncated: it has {len(packed):,} of {packed_size:,} bytes", f"Copy it again. {_AGAIN}"
        )
    if len(packed) > packed_size or zlib.crc32(packed) != checksum:
        raise SnapshotError("is damaged: its checksum does not match", f"Copy it again. {_AGAIN}")
    if plain_size > MAX_SNAPSHOT_BYTES:
        raise SnapshotError(f"unpacks to {plain_size:,} bytes, more than any snapshot", _AGAIN)
    snapshot = _decode(_inflate(packed, plain_size))
    wrong = fault(snapshot)
    if wrong:
        raise SnapshotError(f"contradicts itself: {wrong}", _AGAIN)
    return snapshot


def fault(snapshot: Snapshot) -> str:
    """Return what makes a snapshot unsafe to use (an index out of range, a number that is not finite), or ``""``."""
    if not snapshot.stacks or snapshot.stacks[0]:
        return "row 0 of its stacks is not the empty stack"
    frames = len(snapshot.frames)
    for row in snapshot.stacks:
        if row and not (min(row) >= 0 and max(row) < frames):
            return "a stack refers to a frame that does not exist"
    if not 0 <= snapshot.job.world_size <= MAX_RANK + 1:
        return f"a world of {snapshot.job.world_size} ranks"
    for missing in snapshot.missing:
        try:
            RankSet.parse(missing.ranks)
        except (UsageError, ValueError):
            return f"missing ranks {missing.ranks[:40]!r}"
    if not _finite((snapshot.time, snapshot.interval, snapshot.job.started)):
        return "a time that is not a number"
    for host in snapshot.hosts:
        if not _finite((host.load, host.clock, host.clock_error)):
            return f"a clock or load of {host.name} that is not a number"
    for rank in snapshot.ranks:
        if not 0 <= rank.rank <= MAX_RANK:
            return f"rank {rank.rank}"
    wrong = _recorders_fault(snapshot)
    if wrong:
        return wrong
    tops = [rank.process for rank in snapshot.ranks]
    if snapshot.launcher is not None:
        tops.append(snapshot.launcher)
    return _family_fault(tops, len(snapshot.stacks))


def _recorders_fault(snapshot: Snapshot) -> str:
    for group in snapshot.groups:
        try:
            RankSet.parse(group.ranks)
        except (UsageError, ValueError):
            return f"members {group.ranks[:40]!r} of a group"
        if not math.isfinite(group.timeout):
            return "a timeout that is not a number"
    groups, operations, stacks = len(snapshot.groups), len(snapshot.operations), len(snapshot.stacks)
    for rank in snapshot.ranks:
        recorder = rank.recorder
        if recorder is None:
            continue
        if not _finite((recorder.time, recorder.newest)):
            return f"a time of rank {rank.rank}'s recorder that is not a number"
        used: tuple[Track | Transfer, ...] = (*recorder.tracks, *recorder.transfers)
        for track_or_transfer in used:
            if not 0 <= track_or_transfer.group < groups:
                return f"rank {rank.rank} is in a group that does not exist"
        entries = [transfer.entry for transfer in recorder.transfers]
        for track in recorder.tracks:
            entries += (*track.pending, *((track.last,) if track.last is not None else ()))
            if len(track.history) % ROW_BYTES or not _finite((track.since,)):
                return f"a history of rank {rank.rank} that is cut off"
            if track.history and max(unpack_rows(track.history)) >= operations:
                return f"rank {rank.rank} called an operation that does not exist"
            # Rules iterate from one number to the other, so they must not be farther apart than the history is long.
            if not track.first - 1 <= track.completed <= track.reached:
                return f"rank {rank.rank} completed a call that it has not made"
        for entry in entries:
            if not (0 <= entry.operation < operations and 0 <= entry.stack < stacks and _finite((entry.created,))):
                return f"a call of rank {rank.rank} refers to what does not exist"
    return ""


def _family_fault(tops: Iterable[Process], rows: int) -> str:
    level = list(tops)
    for _ in range(MAX_FAMILY):
        below: list[Process] = []
        for process in level:
            wrong = _process_fault(process, rows)
            if wrong:
                return wrong
            below.extend(process.children)
        if not below:
            return ""
        level = below
    return f"more than {MAX_FAMILY} generations of processes"


def _process_fault(process: Process, rows: int) -> str:
    if not _finite((process.started, process.cpu_percent)):
        return f"a time of process {process.pid} that is not a number"
    for lock in process.locks:
        if lock.age is not None and not math.isfinite(lock.age):
            return f"a lock of process {process.pid} whose age is not a number"
    inside = process.inside
    if inside is not None and not math.isfinite(inside.time):
        return f"a time of process {process.pid} that is not a number"
    for loop in inside.loops if inside is not None else ():
        if len(loop.names) != len(loop.values):
            return f"a loop of process {process.pid} with more names than values"
    for sample in process.samples:
        if not _finite((sample.time, sample.cpu, sample.quiet)):
            return f"a time of process {process.pid} that is not a number"
        for thread in sample.threads:
            if not (0 <= thread.stack < rows and 0 <= thread.native < rows):
                return f"thread {thread.tid} has a stack that does not exist"
            if thread.idle is not None and not math.isfinite(thread.idle):
                return f"a time of thread {thread.tid} that is not a number"
            left = thread.call.left if thread.call is not None else None
            if left is not None and not math.isfinite(left):
                return f"a deadline of thread {thread.tid} that is not a number"
    return ""


def _finite(times: Iterable[float]) -> bool:
    return all(map(is_time, times))


def is_time(seconds: float) -> bool:
    """Whether it is a number, and a time within the range of a calendar."""
    return abs(seconds) < _LAST_TIME_SECONDS


def _inflate(packed: memoryview, size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        # One byte more than promised is enough to recognise a bomb.
        plain = inflater.decompress(packed, size + 1)
    except zlib.error as error:
        raise SnapshotError("is damaged: it does not unpack", f"Copy it again. {_AGAIN}") from error
    if len(plain) != size or not inflater.eof:
        raise SnapshotError("is damaged: it unpacks to another size than its header has", _AGAIN)
    return plain


def _decode(plain: bytes) -> Snapshot:
    try:
        return msgspec.msgpack.decode(plain, type=Snapshot)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise SnapshotError(f"is not a snapshot of this format ({error})", _AGAIN) from error


def printable(value: object) -> object:
    """Return plain values whose text can be encoded: what is not UTF-8 becomes ``?``."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {printable(key): printable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable(entry) for entry in value]
    return value


_REMEDIES = {
    errno.ENOENT: "Check the path. The folder must exist.",
    errno.EACCES: "Read it as the user who made it: a snapshot is private (mode 0600).",
    errno.ENOSPC: "Free some space, or name a file on another disk.",
    errno.EROFS: "Name a file on a writable file system.",
    errno.ENOTDIR: "Check the path: part of it is a file, not a folder.",
}


def _remedy(error: OSError) -> str:
    return _REMEDIES.get(error.errno or 0, "Check the path.")
