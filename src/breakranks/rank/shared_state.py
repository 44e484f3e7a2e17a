"""The state that the ranks of a job share: in a folder on one host, in the job's own store between hosts.

A rank publishes its entry, and reads the entries of the ranks that it is held for. Records for all ranks (go, off, on,
hold) are appended to a log. A heartbeat that changes means that some rank of the job is in the debugger.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any, Protocol

from breakranks.rank import run_dir

SILENT_SECONDS = 8.0  # without a heartbeat from another host, after which a rank counts as dead
_AWAY_SECONDS = 3.0  # between two readings: longer means that this process was suspended, not that others were silent
_QUIET_SECONDS = 4.0  # without any heartbeat, after which no rank is in the debugger
_STORE_SECONDS = 3
_MAX_REMEMBERED_RECORDS = 256
Entry = dict[str, Any]


class StateStore(Protocol):
    """One store. It may vanish: every call may raise OSError or RuntimeError."""

    same_host: bool

    def publish(self, rank: int, entry: Entry) -> None: ...
    def entry(self, rank: int) -> Entry | None: ...
    def beat(self) -> None: ...
    def beats(self) -> int: ...
    def debugging(self) -> bool | None: ...
    def append(self, record: Entry) -> None: ...
    def since(self, position: int) -> tuple[int, list[Entry]]: ...


class FolderStore:
    """A folder that the ranks share: that of their host, or one on a shared file system (BREAKRANKS_DIR)."""

    def __init__(self, path: str, *, same_host: bool) -> None:
        self.path = path
        self.same_host = same_host

    def publish(self, rank: int, entry: Entry) -> None:
        run_dir.write(f"{self.path}/rank-{rank}.json", entry)

    def entry(self, rank: int) -> Entry | None:
        entry = run_dir.read(f"{self.path}/rank-{rank}.json")
        if not isinstance(entry, dict) or (self.same_host and not run_dir.alive(entry)):
            return None if not isinstance(entry, dict) else {**entry, "dead": True}
        return entry

    def beat(self) -> None:
        with open(f"{self.path}/beat", "ab"):
            os.utime(f"{self.path}/beat")

    def beats(self) -> int:
        try:
            return os.stat(f"{self.path}/beat").st_mtime_ns
        except FileNotFoundError:
            return 0

    def debugging(self) -> bool | None:
        """Whether a live process of this host is in the debugger; None if there are entries of other hosts."""
        if not self.same_host:
            return None
        names = [name for name in os.listdir(self.path) if name.endswith(".json")]
        entries = (run_dir.read(f"{self.path}/{name}") for name in names)
        return any(isinstance(entry, dict) and entry.get("debugging") and run_dir.alive(entry) for entry in entries)

    def append(self, record: Entry) -> None:
        handle = os.open(f"{self.path}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            # Another writer's line may have been cut by a full disk, so a record also begins with a line break.
            line = b"\n" + json.dumps(record).encode() + b"\n"
            if os.write(handle, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(handle)

    def since(self, position: int) -> tuple[int, list[Entry]]:
        try:
            with open(f"{self.path}/log", "rb") as file:
                file.seek(position)
                whole = file.read(1 << 20).rpartition(b"\n")
        except FileNotFoundError:
            return 0, []
        records = map(_record, whole[0].splitlines())
        return position + len(whole[0]) + len(whole[1]), [record for record in records if record]


def _record(data: bytes) -> Entry:
    """Return a record, or an empty one if it is damaged: a full disk cuts a line, and some file systems mix two."""
    try:
        record = json.loads(data)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


class TorchStore:
    """torch's own store, through a new connection: the job's connections have a lock, which a wait would hold."""

    same_host = False

    def __init__(self, store: Any, attempt: str) -> None:
        self._store = store
        self._prefix = f"breakranks/{attempt}"
        self._reserved = (0, 0.0)  # the number of a record that could not be written, and since when
        self._gap = (0, 0.0)  # a record that is counted and not there, and since when it is missed

    def _get(self, name: str) -> bytes | None:
        key = f"{self._prefix}/{name}"
        return bytes(self._store.get(key)) if self._store.check([key]) else None

    def publish(self, rank: int, entry: Entry) -> None:
        self._store.set(f"{self._prefix}/rank-{rank}", json.dumps(entry))

    def entry(self, rank: int) -> Entry | None:
        data = self._get(f"rank-{rank}")
        return None if data is None else dict(json.loads(data))

    def beat(self) -> None:
        self._store.add(f"{self._prefix}/beat", 1)

    def beats(self) -> int:
        return int(self._get("beat") or 0)

    def debugging(self) -> bool | None:
        return None

    def append(self, record: Entry) -> None:
        number, since = self._reserved
        if number and time.monotonic() - since > SILENT_SECONDS / 2:  # readers are about to skip it
            self._set(number, {})
            number = 0
        if not number:
            number = self._store.add(f"{self._prefix}/log", 1)
            self._reserved = (number, time.monotonic())
        self._set(number, record)

    def _set(self, number: int, record: Entry) -> None:
        self._store.set(f"{self._prefix}/log-{number}", json.dumps(record))
        self._reserved = (0, 0.0)

    def since(self, position: int) -> tuple[int, list[Entry]]:
        last = int(self._get("log") or 0)
        records: list[Entry] = []
        for number in range(position + 1, last + 1):
            data = self._get(f"log-{number}")
            if data is None and not self._is_lost(number):
                return number - 1, records
            record = _record(data or b"")
            if record:
                records.append(record)
        return last, records

    def _is_lost(self, number: int) -> bool:
        """Whether a record that is counted has not come for so long that its writer must have died in between."""
        now = time.monotonic()
        if self._gap[0] != number:
            self._gap = (number, now)
        return now - self._gap[1] > SILENT_SECONDS


class StateStores:
    """All stores of one job, read and written as one. A store that fails is skipped; ``lost`` has the error."""

    def __init__(self, places: list[StateStore]) -> None:
        self._places = places
        self._positions = [0] * len(places)
        self._heard: dict[int, tuple[Any, float, float]] = {}  # by rank: its heartbeat, since when, when it was read
        self._moved: dict[int, tuple[int, float]] = {}
        self.watching = False  # read every entry, also while no heartbeat changes
        self._seen: dict[str, None] = {}
        self.lost = ""

    def publish(self, rank: int, entry: Entry) -> None:
        self._each(lambda place: place.publish(rank, entry))

    def append(self, record: Entry) -> None:
        self._each(lambda place: place.append(record))

    def beat(self) -> None:
        self._each(lambda place: place.beat())

    def news(self) -> list[Entry]:
        """Return the records appended since the last call, oldest first, each once even if two stores have it."""
        news: list[Entry] = []
        for index, place in enumerate(self._places):
            try:
                self._positions[index], records = place.since(self._positions[index])
            except Exception as error:
                self.lost = str(error)
                continue
            for record in records:
                key = json.dumps(record, sort_keys=True)
                if key not in self._seen:
                    self._seen[key] = None
                    news.append(record)
        for key in list(self._seen)[:-_MAX_REMEMBERED_RECORDS]:
            del self._seen[key]
        return news

    def entry(self, rank: int) -> Entry | None:
        """Return a rank's entry, with ``dead`` if its process has ended or was silent for too long."""
        for place in self._places:
            try:
                found = place.entry(rank)
            except Exception as error:
                self.lost = str(error)
                found = None
            if found is None:
                continue
            gone = found.get("dead") or found.get("ended") or (not place.same_host and self._silent(rank, found))
            return {**found, "dead": True} if gone else found
        return None

    def busy(self) -> bool:
        """Whether a rank of the job is in the debugger: by its entry, or because the heartbeat changes."""
        return any(self._busy(index, place) for index, place in enumerate(self._places))

    def _busy(self, index: int, place: StateStore) -> bool:
        try:
            beats = place.beats()
            now = time.monotonic()
            known, moved = self._moved.setdefault(index, (beats, 0.0))
            if beats != known:
                self._moved[index] = (beats, moved := now)
            exact = place.debugging() if self.watching or (moved and now - moved < _QUIET_SECONDS) else False
        except Exception as error:
            self.lost = str(error)
            return False
        return bool(moved) and now - moved < _QUIET_SECONDS if exact is None else exact

    def _silent(self, rank: int, found: Entry) -> bool:
        mark = (found.get("pid"), found.get("beat"))
        now = time.monotonic()
        known, since, looked = self._heard.get(rank, (None, now, now))
        if mark != known:
            since = now
        elif now - looked > _AWAY_SECONDS:
            since += now - looked
        self._heard[rank] = (mark, since, now)
        return bool(found.get("debugging")) and now - since > SILENT_SECONDS

    def _each(self, action: Any) -> None:
        for place in self._places:
            try:
                action(place)
            except Exception as error:
                self.lost = str(error)


def shared_folder(job: str) -> FolderStore | None:
    """Return the folder on a shared file system in BREAKRANKS_DIR, for jobs whose hosts share no store."""
    path = os.environ.get("BREAKRANKS_DIR")
    if not path:
        return None
    return FolderStore(run_dir.private(f"{run_dir.private(path)}/{job}"), same_host=False)


def store_of_torch() -> TorchStore | None:
    """Return a new connection to the store of the job's default group; None if there is none."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return None
    try:
        store = c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        wait = timedelta(seconds=_STORE_SECONDS)
        connection = type(store)(store.host, store.port, None, False, wait, False)
    except Exception:  # not initialised yet, or a store of another kind
        return None
    return TorchStore(connection, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
