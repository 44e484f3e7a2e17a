"""The state that ranks share: records that are damaged, lost, or written while the store is away."""

from __future__ import annotations

import json
from pathlib import Path

from breakranks.rank.remote_store import RemoteStore
from breakranks.rank.shared_state import Entry, FolderStore
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
    assert [json.loads(line)["do"] for line in (folder / "log").read_text().splitlines()] == ["go", "off"]
    assert json.loads((folder / "rank-3.json").read_text()) == {"rank": 3}
