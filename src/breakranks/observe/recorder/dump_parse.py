"""Convert the decoded dump of one rank to tracks, one per group.

Versions 1 and 2, up to 2.10, are supported. Missing fields are tolerated and unknown fields ignored: torch adds fields
from release to release.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from breakranks.observe.recorder.dump_columns import (
    LOCAL,
    MAX_SIZES_CHARACTERS,
    PEER,
    Config,
    DumpColumns,
    columns_of,
    configs_of,
    whole,
)
from breakranks.observe.recorder.safe_unpickle import DumpError, decode
from breakranks.rankset import RankSet, short_text
from breakranks.snapshot.model import Frame, StackTable
from breakranks.snapshot.recorder_tables import (
    COMPLETED,
    NOT_RECORDED,
    SCHEDULED,
    STARTED,
    Entry,
    Group,
    Operation,
    Recorder,
    RecorderTable,
    Track,
    Transfer,
    pack_rows,
)

KNOWN_MAJORS = ("1", "2")
_MAX_PENDING = 256
# Pending calls of a group whose stacks are kept. The first one is what the rank waits for.
_MAX_STACKS = 3
_MAX_GAP = 100_000
_MAX_FRAMES = 200
_NANOSECOND = 1e-9
_UNKNOWN = Config("", RankSet())


class Dump(NamedTuple):
    """One rank's dump, with tables of its own."""

    recorder: Recorder
    table: RecorderTable
    stacks: StackTable


def read(data: bytes) -> Dump:
    """Parse a dump; raise :class:`DumpError` if it cannot be used."""
    return make(decode(data))


def make(top: dict[str, Any], groups: dict[str, Config] | None = None, threads: dict[int, int] | None = None) -> Dump:
    """Convert a decoded dump; raise :class:`DumpError` if it cannot be used.

    ``groups`` has the configuration of groups that the process itself reported. ``threads`` maps the ids of pthread to
    those of the kernel.
    """
    version = str(top.get("version", ""))
    if version.split(".")[0] not in KNOWN_MAJORS:
        raise DumpError(
            f"has version {version[:20] or 'none'}, which is not supported",
            "Versions 1 and 2 are supported. A newer breakranks may read it.",
        )
    entries = [entry for entry in top["entries"] if isinstance(entry, dict)]
    if not entries and top["entries"]:
        raise DumpError("has entries that are not records")
    columns = columns_of(entries)
    configs = {**configs_of(top.get("pg_config")), **(groups or {})}
    return _Maker(entries, columns, configs, threads or {}).make(version)


class _Maker:
    """Split the columns of one rank by group."""

    def __init__(
        self,
        entries: list[dict[str, Any]],
        columns: DumpColumns,
        configs: dict[str, Config],
        threads: dict[int, int],
    ) -> None:
        self._entries = entries
        self._columns = columns
        self._configs = configs
        self._threads = threads
        self._table = RecorderTable()
        self._stacks = StackTable()
        rows = {key: self._operation(key) for key in dict.fromkeys(columns.keys)}
        self._operations = [rows[key] for key in columns.keys]
        self._order: dict[int, list[int]] = {}
        # gloo only marks calls as "retired", never as "completed". NCCL also retires calls that it gave up.
        self._by_retired = COMPLETED not in columns.states

    def make(self, version: str) -> Dump:
        columns = self._columns
        by_group: dict[int, list[int]] = {}
        transfers: list[Transfer] = []
        done = self._done()
        if set(columns.groups) == {("", "")}:
            raise DumpError(
                "has groups without names, as torch records them under TORCH_DISTRIBUTED_DEBUG=DETAIL",
                "Set it to INFO or OFF. With DETAIL, torch checks collectives itself and reports errors in the log.",
            )
        members: dict[tuple[str, str], list[int]] = {pair: [] for pair in columns.groups}
        for index, pair in enumerate(columns.groups):
            members[pair].append(index)
        has_transfers = any(columns.p2p)
        nameless = 0
        for pair, indexes in members.items():
            named = self._named(pair)
            if not named[0]:
                nameless += len(indexes)
                continue
            # Only a group that the dump does not name gets another name.
            row = self._group(named, columns.names[indexes[0]], unnamed=named is not pair)
            if has_transfers:
                for index in indexes:
                    if columns.p2p[index] and not done[index] and len(transfers) < _MAX_PENDING:
                        transfers += self._transfer(row, index)
                indexes = [index for index in indexes if not columns.p2p[index]]
            if indexes:
                by_group[row] = indexes
        tracks = tuple(self._track(row, indexes, done) for row, indexes in by_group.items())
        recorder = Recorder(
            version=version,
            time=0.0,
            tracks=tracks,
            transfers=tuple(transfers),
            wrapped=bool(columns.records) and min(columns.records) > 0,
            newest=max(columns.created, default=0) * _NANOSECOND,
            notes={"nameless": str(nameless)} if nameless else {},
        )
        return Dump(recorder, self._table, self._stacks)

    def _done(self) -> Sequence[bool]:
        columns = self._columns
        if self._by_retired:
            return columns.retired
        return [state == COMPLETED for state in columns.states]

    def _named(self, pair: tuple[str, str]) -> tuple[str, str]:
        """A name that is the same on all members: in version 1 the members, if the dump contains them."""
        if not pair[0].startswith(LOCAL):
            return pair
        config = self._configs.get(pair[0].removeprefix(LOCAL))
        if config is None:
            return ("", "")
        name = f"{LOCAL}{config.ranks}"
        self._configs[name] = config
        return (name, "")

    def _group(self, pair: tuple[str, str], name: str, *, unnamed: bool) -> int:
        config = self._configs.get(pair[0], _UNKNOWN)
        backend = name.partition(":")[0] if ":" in name else ""
        source = "config" if config.ranks else "seen"
        description = pair[1] or config.description
        return self._table.group(
            Group(
                name=pair[0],
                description=description,
                ranks=short_text(config.ranks, None),
                source=source,
                backend=backend,
                timeout=config.timeout,
                unnamed=unnamed,
            )
        )

    def _track(self, group: int, indexes: list[int], done: Sequence[bool]) -> Track:
        numbers = [self._columns.numbers[index] for index in indexes]
        first = numbers[0]
        rows = [self._operations[index] for index in indexes]
        if numbers != list(range(first, first + len(numbers))):
            start, rows = self._uneven(numbers, rows)
            first, indexes = numbers[start], indexes[start:]
        open_calls = [index for index in indexes if not done[index]]
        # Numbers only grow, so the last completed call has the highest.
        last_done = next((index for index in reversed(indexes) if done[index]), None)
        completed = first - 1 if last_done is None else self._columns.numbers[last_done]
        return Track(
            group=group,
            first=first,
            history=pack_rows(rows),
            completed=completed,
            pending=tuple(self._entry(index, at < _MAX_STACKS) for at, index in enumerate(open_calls[:_MAX_PENDING])),
            last=self._entry(indexes[-1]),
            since=self._columns.created[indexes[0]] * _NANOSECOND,
        )

    def _uneven(self, numbers: list[int], rows: list[int]) -> tuple[int, list[int]]:
        """The index of the last restart, and the rows since: for numbers that have gaps, repeat or restart."""
        # A group that was destroyed and created again under the same name restarts its numbers.
        start = max((at for at in range(1, len(numbers)) if numbers[at] < numbers[at - 1]), default=0)
        first, reached = numbers[start], numbers[-1]
        if reached - first > _MAX_GAP:
            raise DumpError(f"is not plausible: its call numbers run from {first} to {reached} in one group")
        found = [NOT_RECORDED] * (reached - first + 1)
        for at in range(start, len(numbers)):
            place = numbers[at] - first
            found[place] = rows[at] if not found[place] else self._coalesced(found[place], rows[at])
        return start, found

    def _operation(self, key: bytes) -> int:
        name, inputs, outputs, in_types, out_types = marshal.loads(key)
        return self._table.operation(
            Operation(name.partition(":")[2] or name, _sizes(inputs), _sizes(outputs), _types(in_types, out_types))
        )

    def _coalesced(self, row: int, other: int) -> int:
        """Coalesced calls share one number: keep all their names."""
        before, more = self._table.operations[row], self._table.operations[other]
        if len(before.name) > MAX_SIZES_CHARACTERS:
            return row
        return self._table.operation(
            Operation(
                f"{before.name}+{more.name}",
                f"{before.inputs}+{more.inputs}"[:MAX_SIZES_CHARACTERS],
                f"{before.outputs}+{more.outputs}"[:MAX_SIZES_CHARACTERS],
                before.types if before.types == more.types else f"{before.types}+{more.types}"[:MAX_SIZES_CHARACTERS],
            )
        )

    def _entry(self, index: int, with_stack: bool = True) -> Entry:
        columns = self._columns
        entry = self._entries[index]
        return Entry(
            number=columns.numbers[index],
            operation=self._operations[index],
            record=columns.records[index],
            state=columns.states[index] if columns.states[index] in (STARTED, COMPLETED) else SCHEDULED,
            created=columns.created[index] * _NANOSECOND,
            stack=self._stacks.add(_frames(entry.get("frames"))) if with_stack else 0,
            thread=self._thread(whole(entry.get("thread_id", 0), 0)),
        )

    def _thread(self, ident: int) -> int:
        return self._threads.get(ident, 0) if self._threads else ident

    def _transfer(self, group: int, index: int) -> list[Transfer]:
        """A pending send or recv. Its text has ranks of the group, which the members map to ranks of the job."""
        match = PEER.search(self._columns.names[index])
        if match is None:
            return []
        peer = int(match[3])
        members = self._order.get(group)
        if members is None:
            members = self._order[group] = list(RankSet.parse(self._table.groups[group].ranks))
        if members:
            peer = members[peer] if peer < len(members) else -1
        elif self._table.groups[group].name != "0":
            peer = -1
        return [Transfer(group, match[1] == "send", peer, self._entry(index))]


def _sizes(value: object) -> str:
    """Format sizes. ``[[1024]]`` is one tensor, and written ``[1024]``."""
    text = value if isinstance(value, str) else str(value)
    text = text.replace(" ", "")
    if text.startswith("[[") and text.endswith("]]") and "],[" not in text:
        text = text[1:-1]
    return "" if text == "[]" else text[:MAX_SIZES_CHARACTERS]


def _types(inputs: object, outputs: object) -> str:
    texts = []
    for value in (inputs, outputs):
        names = value if isinstance(value, (list, tuple)) else re.findall(r"\w+", str(value))
        texts.append(",".join(dict.fromkeys(map(str, names))))
    return (texts[0] if texts[0] == texts[1] else "→".join(text for text in texts if text))[:MAX_SIZES_CHARACTERS]


def _frames(value: object) -> tuple[Frame, ...]:
    """A recorded stack, outermost frame first."""
    if not isinstance(value, list):
        return ()
    found = []
    for frame in value[:_MAX_FRAMES]:
        if isinstance(frame, dict):
            name, file = str(frame.get("name", "?"))[:500], str(frame.get("filename", ""))[:4000]
            found.append(Frame(name, file, whole(frame.get("line", 0), 0)))
    return tuple(reversed(found))
