"""The flight recorder of a live rank: its dumps, and its groups (see ``rank/payloads/flight_recorder``)."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from breakranks.observe.recorder.dump_columns import Config, configs_of
from breakranks.observe.recorder.dump_parse import Dump, make
from breakranks.observe.recorder.safe_unpickle import DumpError, decode
from breakranks.snapshot.merge_recorders import RecorderMerger
from breakranks.snapshot.model import StackTable
from breakranks.snapshot.recorder_tables import Recorder

_MAX_NOTE_CHARACTERS = 200


def read_answer(data: bytes) -> Dump:
    """Return the dumps of all backends of one rank as one; raise :class:`DumpError` if the answer is invalid."""
    head, _, rest = data.partition(b"\n")
    try:
        answer: dict[str, Any] = json.loads(head)
        sizes = [int(size) for size in answer["sizes"]]
        threads = {int(ident): int(tid) for ident, tid in answer["threads"].items()}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DumpError(f"returned an invalid answer ({type(error).__name__})") from None
    if sum(sizes) != len(rest):
        raise DumpError("returned a truncated answer")
    configs = configs_of(answer.get("groups"))
    notes = answer.get("notes")
    dumps = []
    for size in sizes:
        dumps.append(_dump(rest[:size], configs, threads))
        rest = rest[size:]
    texts = (
        {str(key): str(note)[:_MAX_NOTE_CHARACTERS] for key, note in notes.items()} if isinstance(notes, dict) else {}
    )
    return _merged(dumps, texts)


def _dump(data: bytes, configs: dict[str, Config], threads: dict[int, int]) -> Dump:
    return make(decode(data), configs, threads)


def _merged(dumps: list[Dump], notes: dict[str, str]) -> Dump:
    stacks = StackTable()
    joiner = RecorderMerger(stacks)
    found = Recorder(version="", time=time.time(), notes=notes)
    for dump in dumps:
        table, own = dump.table, dump.stacks
        added = joiner.add(dump.recorder, table.operations, table.groups, own.frames, own.stacks)
        found = replace(
            found,
            version=added.version,
            tracks=(*found.tracks, *added.tracks),
            transfers=(*found.transfers, *added.transfers),
            wrapped=found.wrapped or added.wrapped,
            newest=max(found.newest, added.newest),
        )
    return Dump(found, joiner.table, stacks)
