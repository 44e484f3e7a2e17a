"""The state that ranks share: records that are damaged, lost, or written while the store is away."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest

from breakranks.rank.remote_store import RemoteStore
from breakranks.rank.shared_state import Entry, FolderStore, TorchStore
from support.waiting import wait_for


def test_a_damaged_line_of_the_log_is_skipped(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path), same_host=False)
    store.append({"do": "go"})
    with open(tmp_path / "log", "ab") as log:
        log.write(b'{"do": "o\n[1]\nnull\n\xff\n{"do": "half')
    position, records = store.since(0)
    assert records == [{"do": "go"}]
    with open(tmp_path / "log", "ab") as log:
        log.write(b'"}\n')
    store.append({"do": "off"})
    assert store.since(position)[1] == [{"do": "half"}, {"do": "off"}]


def test_a_record_that_a_full_disk_cuts_is_refused_and_does_not_damage_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(str(tmp_path), same_host=False)
    with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
        write = os.write
        full.setattr(os, "write", lambda handle, data: write(handle, data[:9]))
        store.append({"do": "go", "at": 1})
    store.append({"do": "go", "at": 2})
    assert store.since(0)[1] == [{"do": "go", "at": 2}]


def test_a_store_that_can_only_be_read_still_answers(tmp_path: Path) -> None:
    # GIVEN a rank of another host that is at a prompt, and a shared folder in which nothing can be written
    class Full(FolderStore):
        def publish(self, rank: int, entry: Entry) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    FolderStore(str(tmp_path), same_host=False).publish(1, {"rank": 1, "debugging": True})
    store = RemoteStore(Full(str(tmp_path), same_host=False))
    try:
        # WHEN this rank cannot publish its entry
        store.publish(0, {"rank": 0})
        store.beat()

        # THEN its heartbeat is seen, and the entries of others are read
        wait_for("its heartbeat", (tmp_path / "beat").exists)
        answered = store._answered
        wait_for("a later answer", lambda: store._answered > answered)
        wait_for("the entry of rank 1", lambda: store.entry(1))
    finally:
        store.end(60)


def test_a_record_of_torchs_store_that_could_not_be_set_leaves_no_gap() -> None:
    class Store:
        def __init__(self) -> None:
            self.values: dict[str, object] = {}
            self.fails = True

        def add(self, key: str, count: int) -> int:
            self.values[key] = int(str(self.values.get(key, 0))) + count
            return int(str(self.values[key]))

        def set(self, key: str, value: str) -> None:
            if self.fails:
                raise RuntimeError("timed out")
            self.values[key] = value

        def check(self, keys: list[str]) -> bool:
            return keys[0] in self.values

        def get(self, key: str) -> bytes:
            return str(self.values[key]).encode()

    inner = Store()
    store = TorchStore(inner, "0")
    with pytest.raises(RuntimeError):
        store.append({"do": "go"})
    inner.fails = False
    store.append({"do": "go"})
    store.append({"do": "off"})
    assert store.since(0) == (2, [{"do": "go"}, {"do": "off"}])

    # A record that comes too late for readers, who have skipped its number, gets another one.
    inner.fails = True
    with pytest.raises(RuntimeError):
        store.append({"do": "on"})
    inner.fails = False
    store._reserved = (store._reserved[0], time.monotonic() - 60)
    store.append({"do": "on"})
    assert store.since(3) == (4, [{"do": "on"}])


def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    # GIVEN a shared folder that is away
    folder = tmp_path / "shared"
    tries: list[int] = []

    class Store(FolderStore):
        def publish(self, rank: int, entry: Entry) -> None:
            tries.append(rank)
            super().publish(rank, entry)

    store = RemoteStore(Store(str(folder), same_host=False))
    try:
        # WHEN a rank publishes its entry and sends two records, and the folder comes back
        store.publish(3, {"rank": 3})
        store.append({"do": "go", "at": 1})
        store.append({"do": "off", "at": 2})
        wait_for("two tries", lambda: len(tries) >= 2)
        folder.mkdir()

        # THEN all of it arrives, once and in order
        wait_for("the records", lambda: len(store._records) == 2)
    finally:
        store.end(60)
    lines = filter(None, (folder / "log").read_text().splitlines())
    assert [json.loads(line)["do"] for line in lines] == ["go", "off"]
    assert json.loads((folder / "rank-3.json").read_text()) == {"rank": 3}
