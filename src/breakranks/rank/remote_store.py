"""A state store shared with other hosts, read and written by its own thread: if the network is cut, only that hangs.

torch's store and a network file system have no deadline for an answer that never comes. So writes are queued, reads
return the last values, and the age of these tells a silent rank from a cut connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from breakranks.rank.shared_state import SILENT_SECONDS, Entry, StateStore

_BUSY_SECONDS, _IDLE_SECONDS = 0.25, 2.0  # between two readings
_ACTIVE_SECONDS = 5.0


class RemoteStore:
    """The calls of a state store; none of them blocks."""

    same_host = False

    def __init__(self, place: StateStore, *, from_now: bool = False) -> None:
        self._place = place
        self._from_now = from_now  # ignore records from before this agent connected
        self._changed = threading.Condition()
        self._work: list[Callable[[], None]] = []
        self._publish: tuple[int, Entry] | None = None
        self._beat = False
        self._entries: dict[int, Entry | None] = {}  # of the ranks that were queried
        self._records: list[Entry] = []
        self._position = 0
        self._beats = 0
        self._asked = self._answered = time.monotonic()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="breakranks remote", daemon=True)
        self._thread.start()

    @property
    def silent(self) -> bool:
        """Whether the store has not answered for so long that the other hosts count as unreachable."""
        return time.monotonic() - self._answered > SILENT_SECONDS

    def publish(self, rank: int, entry: Entry) -> None:
        with self._changed:
            self._publish = (rank, entry)
            self._rouse()

    def append(self, record: Entry) -> None:
        with self._changed:
            self._work.append(lambda: self._place.append(record))
            self._rouse()

    def beat(self) -> None:
        with self._changed:
            self._beat = True
            self._rouse()

    def beats(self) -> int:
        return self._beats

    def debugging(self) -> bool | None:
        return None

    def entry(self, rank: int) -> Entry | None:
        with self._changed:
            self._asked = time.monotonic()
            if rank not in self._entries:
                self._entries[rank] = None
                self._rouse()
            entry = self._entries[rank]
        return {**(entry or {}), "dead": True} if self.silent else entry

    def since(self, position: int) -> tuple[int, list[Entry]]:
        return len(self._records), self._records[position:]

    def end(self, wait: float) -> None:
        """Write what is queued, and wait for that at most ``wait`` seconds."""
        with self._changed:
            self._ending = True
            self._rouse()
        self._thread.join(wait)

    def _rouse(self) -> None:
        self._asked = time.monotonic()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                ending = self._ending
                work, self._work = self._work, []
                publish, self._publish = self._publish, None
                beat, self._beat = self._beat, False
                ranks = list(self._entries)
            failed = False
            try:
                if beat:  # first: a full disk accepts it
                    self._place.beat()
                if publish is not None:
                    self._place.publish(*publish)
                    publish = None
                while work:
                    work[0]()
                    work.pop(0)
            except Exception:  # it is written when the store accepts it again: a full disk still answers
                failed = True
                with self._changed:
                    self._work = work + self._work
                    self._publish = self._publish or publish
            try:
                self._read(ranks)
                self._answered = time.monotonic()
            except Exception:  # the store is gone or not created yet: see `silent`
                failed = True
            if failed:
                time.sleep(_BUSY_SECONDS)
            if ending:
                return
            with self._changed:
                if not (self._work or self._publish or self._beat or self._ending):
                    self._changed.wait(
                        _BUSY_SECONDS if time.monotonic() - self._asked < _ACTIVE_SECONDS else _IDLE_SECONDS
                    )

    def _read(self, ranks: list[int]) -> None:
        self._beats = self._place.beats()
        self._position, records = self._place.since(self._position)
        if not self._from_now:
            self._records += records
        self._from_now = False
        for rank in ranks:
            self._entries[rank] = self._place.entry(rank)
