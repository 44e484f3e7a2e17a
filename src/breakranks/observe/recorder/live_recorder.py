"""What a live rank answered: its dumps, and what it knows of its groups (see ``rank/payloads/flight_recorder``)."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec.structs import replace

from breakranks.observe.recorder.dump_parse import Config, Dump, configs_of, make
from breakranks.observe.recorder.safe_unpickle import DumpError, decode
from breakranks.snapshot.merge_recorders import RecorderMerger
from breakranks.snapshot.model import StackTable
from breakranks.snapshot.recorder_tables import Recorder

_MAX_WORDS = 200


def read_answer(data: bytes) -> Dump:
    """The dumps of all backends of one rank as one; raises :class:`DumpError`."""
    head, _, rest = data.partition(b"\n")
    try:
        said: dict[str, Any] = msgspec.json.decode(head, type=dict)
        sizes = [int(size) for size in said["sizes"]]
        threads = {int(ident): int(tid) for ident, tid in said["threads"].items()}
    except (msgspec.DecodeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DumpError(f"gave an answer that is not understood ({type(error).__name__})") from None
    if sum(sizes) != len(rest):
        raise DumpError("gave an answer that is cut off")
    configs = configs_of(said.get("groups"))
    notes = said.get("notes")
    dumps = []
    for size in sizes:
        dumps.append(_dump(rest[:size], configs, threads))
        rest = rest[size:]
    return _together(dumps, {str(k): str(v)[:_MAX_WORDS] for k, v in notes.items()} if isinstance(notes, dict) else {})


def _dump(data: bytes, configs: dict[str, Config], threads: dict[int, int]) -> Dump:
    return make(decode(data), configs, threads)


def _together(dumps: list[Dump], notes: dict[str, str]) -> Dump:
    stacks = StackTable()
    joiner = RecorderMerger(stacks)
    found = Recorder(version="", time=time.time(), notes=notes)
    for one in dumps:
        added = joiner.add(one.recorder, one.table.operations, one.table.groups, one.stacks.frames, one.stacks.stacks)
        found = replace(
            found,
            version=added.version,
            tracks=(*found.tracks, *added.tracks),
            transfers=(*found.transfers, *added.transfers),
            wrapped=found.wrapped or added.wrapped,
            newest=max(found.newest, added.newest),
        )
    return Dump(found, joiner.table, stacks)
