"""Where the ranks of a job tell one another what they are at: a folder on their host, the job's own store beyond it.

A rank puts up an entry of its own, and reads those of the ranks it holds for. What concerns all (go, off, on, hold) is
appended to a log. A beat that moves says that somebody, somewhere in the job, is in the debugger.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Protocol

from breakranks.rank import run_dir

SILENT_SECONDS = 8.0  # seconds without a beat from another host after which a rank counts as dead
_AWAY_SECONDS = 3.0  # seconds without a look, and we ourselves stood still: nobody was silent then
_QUIET_SECONDS = 4.0  # seconds without a beat of anybody after which nobody is in the debugger
_STORE_SECONDS = 3
_MAX_REMEMBERED = 256
Entry = dict[str, Any]


class StateStore(Protocol):
    """One place to put things up. Whatever it is, it may vanish: every call may raise OSError or RuntimeError."""

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
        found = run_dir.read(f"{self.path}/rank-{rank}.json")
        if not isinstance(found, dict) or (self.same_host and not run_dir.alive(found)):
            return None if not isinstance(found, dict) else {**found, "dead": True}
        return found

    def beat(self) -> None:
        with open(f"{self.path}/beat", "ab"):
            os.utime(f"{self.path}/beat")

    def beats(self) -> int:
        try:
            return os.stat(f"{self.path}/beat").st_mtime_ns
        except FileNotFoundError:
            return 0

    def debugging(self) -> bool | None:
        """Whether a live process of this host is in the debugger; None where entries of other hosts are among them."""
        if not self.same_host:
            return None
        names = [name for name in os.listdir(self.path) if name.endswith(".json")]
        entries = (run_dir.read(f"{self.path}/{name}") for name in names)
        return any(isinstance(one, dict) and one.get("debugging") and run_dir.alive(one) for one in entries)

    def append(self, record: Entry) -> None:
        handle = os.open(f"{self.path}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            os.write(handle, json.dumps(record).encode() + b"\n")
        finally:
            os.close(handle)

    def since(self, position: int) -> tuple[int, list[Entry]]:
        try:
            with open(f"{self.path}/log", "rb") as file:
                file.seek(position)
                whole = file.read(1 << 20).rpartition(b"\n")
        except FileNotFoundError:
            return 0, []
        records = [json.loads(line) for line in whole[0].splitlines() if line]
        return position + len(whole[0]) + len(whole[1]), records


class TorchStore:
    """torch's own store, through a connection of ours: the job's are each behind a lock that a wait would hold."""

    same_host = False

    def __init__(self, store: Any, attempt: str) -> None:
        self._store = store
        self._prefix = f"breakranks/{attempt}"

    def _get(self, name: str) -> bytes | None:
        key = f"{self._prefix}/{name}"
        return bytes(self._store.get(key)) if self._store.check([key]) else None

    def publish(self, rank: int, entry: Entry) -> None:
        self._store.set(f"{self._prefix}/rank-{rank}", json.dumps(entry))

    def entry(self, rank: int) -> Entry | None:
        found = self._get(f"rank-{rank}")
        return None if found is None else dict(json.loads(found))

    def beat(self) -> None:
        self._store.add(f"{self._prefix}/beat", 1)

    def beats(self) -> int:
        return int(self._get("beat") or 0)

    def debugging(self) -> bool | None:
        return None

    def append(self, record: Entry) -> None:
        number = self._store.add(f"{self._prefix}/log", 1)
        self._store.set(f"{self._prefix}/log-{number}", json.dumps(record))

    def since(self, position: int) -> tuple[int, list[Entry]]:
        last = int(self._get("log") or 0)
        records: list[Entry] = []
        for number in range(position + 1, last + 1):
            found = self._get(f"log-{number}")
            if found is None:  # counted, not yet written
                return number - 1, records
            records.append(json.loads(found))
        return last, records


class StateStores:
    """All places of one job, read and written as one. A place that fails is left out, and said in ``lost``."""

    def __init__(self, places: list[StateStore]) -> None:
        self._places = places
        self._positions = [0] * len(places)
        self._heard: dict[int, tuple[Any, float, float]] = {}  # the last beat, since when, when looked at
        self._moved: dict[int, tuple[int, float]] = {}
        self.watching = False  # look at every entry, also while no beat moves
        self._seen: dict[str, None] = {}
        self.lost = ""

    def publish(self, rank: int, entry: Entry) -> None:
        self._each(lambda place: place.publish(rank, entry))

    def append(self, record: Entry) -> None:
        self._each(lambda place: place.append(record))

    def beat(self) -> None:
        self._each(lambda place: place.beat())

    def news(self) -> list[Entry]:
        """What was appended since the last time, oldest first; what stands in two places comes once."""
        found: list[Entry] = []
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
                    found.append(record)
        for key in list(self._seen)[:-_MAX_REMEMBERED]:
            del self._seen[key]
        return found

    def entry(self, rank: int) -> Entry | None:
        """A rank's entry, with ``dead`` in it where its process is gone or has been silent for too long."""
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
        """Whether somebody in the job is in the debugger: an entry says so, or the beat moves."""
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

    def _each(self, what: Any) -> None:
        for place in self._places:
            try:
                what(place)
            except Exception as error:
                self.lost = str(error)


def shared_folder(job: str) -> FolderStore | None:
    """The folder on a shared file system that BREAKRANKS_DIR names, for jobs whose hosts have no store in common."""
    path = os.environ.get("BREAKRANKS_DIR")
    if not path:
        return None
    return FolderStore(run_dir.private(f"{run_dir.private(path)}/{job}"), same_host=False)


def store_of_torch() -> TorchStore | None:
    """A connection of our own to the store that the job's default group was made with; None where there is none."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return None
    try:
        store = c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        from datetime import timedelta

        wait = timedelta(seconds=_STORE_SECONDS)
        mine = type(store)(store.host, store.port, None, False, wait, False)
    except Exception:  # not initialised yet, or a store of another kind
        return None
    return TorchStore(mine, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
