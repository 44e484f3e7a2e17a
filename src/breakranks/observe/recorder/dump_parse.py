"""From the decoded dump of one rank to its tracks.

Known are versions 1 and 2 as far as 2.10. What is missing is done without, what is new is passed over: torch adds
fields from release to release. All columns are taken at once where every entry has them, which is what makes
two million entries a matter of seconds.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

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
_PEER = re.compile(r"(send|recv)\s+(\d+)\s*(?:->|<-)\s*(\d+)")
_MAX_SIZES = 400  # characters of sizes that are kept: a coalesced call may list thousands of tensors
_MAX_PENDING = 256
_WITH_STACKS = 3  # pending calls of a group whose stacks are kept: what holds a rank up is the first
_MAX_TENSORS = 64  # of one call whose sizes are kept whole
_MAX_GAP = 100_000
_LEAST, _MOST = -1, 1 << 62  # of a counter, and of nanoseconds
_NS = 1e-9


class Dump(NamedTuple):
    """One rank's dump, with tables of its own."""

    recorder: Recorder
    table: RecorderTable
    stacks: StackTable


class Config(NamedTuple):
    """What is known of a group besides its calls."""

    description: str
    ranks: RankSet
    timeout: float = 0.0


class _Columns(NamedTuple):
    """A value for each entry."""

    records: Sequence[int]
    groups: Sequence[tuple[str, str]]
    numbers: Sequence[int]
    names: Sequence[str]
    states: Sequence[str]
    retired: Sequence[bool]
    p2p: Sequence[bool]
    created: Sequence[int]
    keys: Sequence[bytes]


_LOCAL = "ranks "
_UNKNOWN = Config("", RankSet())
_FIELDS = (
    "record_id", "process_group", "collective_seq_id", "profiling_name", "state", "retired", "is_p2p",
    "time_created_ns", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes",
)  # fmt: skip


def read(data: bytes) -> Dump:
    """Everything that matters of a dump; raises :class:`DumpError`."""
    return make(decode(data))


def make(top: dict[str, Any], groups: dict[str, Config] | None = None, threads: dict[int, int] | None = None) -> Dump:
    """``groups``: what the process itself says of its groups. ``threads``: pthread's ids to the kernel's."""
    version = str(top.get("version", ""))
    if version.split(".")[0] not in KNOWN_MAJORS:
        raise DumpError(
            f"is of version {version[:20] or 'none'}, which is not known here",
            "Known are 1 and 2; a newer breakranks may read it.",
        )
    entries = [entry for entry in top["entries"] if isinstance(entry, dict)]
    if not entries and top["entries"]:
        raise DumpError("has entries that are not records")
    columns = _columns(entries)
    configs = {**configs_of(top.get("pg_config")), **(groups or {})}
    return _Maker(entries, columns, configs, threads or {}).make(version)


def _columns(entries: list[dict[str, Any]]) -> _Columns:
    """Column by column, so that the loops are C's; what does not fit is left to ``_slow_columns``."""
    try:
        records, pairs, numbers, names, states, retired, p2p, created, *sizes = (
            list(map(itemgetter(field), entries)) for field in _FIELDS
        )
        if entries and type(pairs[0]) is list:
            pairs = list(map(tuple, pairs))
        kinds = [set(map(type, column)) for column in (records, numbers, names, states, created)]
        if (
            kinds == [{int}, {int}, {str}, {str}, {int}]
            and all(len(pair) == 2 and {type(one) for one in pair} == {str} for pair in set(pairs))
            and max(map(len, sizes[0])) < _MAX_TENSORS
            and all(min(column) >= _LEAST and max(column) < _MOST for column in (records, numbers, created))
        ):
            # Version 2: later ones write the same value differently when it is shared.
            keys = list(map(marshal.dumps, zip(names, *sizes, strict=True), repeat(2)))
            return _Columns(
                records=records,
                groups=pairs,
                numbers=numbers,
                names=names,
                states=states,
                retired=retired,
                p2p=p2p,
                created=created,
                keys=keys,
            )
    except (KeyError, TypeError, ValueError, IndexError):
        pass
    return _slow_columns(entries)


def _slow_columns(entries: list[dict[str, Any]]) -> _Columns:
    """The same from entries of older versions, or with holes."""
    rows = []
    for index, entry in enumerate(entries):
        pair = entry.get("process_group")
        if isinstance(pair, (tuple, list)) and pair:
            group = (str(pair[0])[:200], str(pair[1])[:200] if len(pair) > 1 else "")
        else:
            # Version 1: a count of the groups of this process. Only 0, the world's, is the same on all ranks.
            local = str(entry.get("pg_id", 0))[:200]
            group = ("0", "default_pg") if local == "0" else (_LOCAL + local, "")
        name = str(entry.get("profiling_name", "unknown"))[:200]
        number = entry.get("collective_seq_id", entry.get("seq_id", entry.get("op_id", 0)))
        sizes = (str(entry.get(field, []))[:_MAX_SIZES] for field in ("input_sizes", "output_sizes"))
        types = (str(entry.get(field, []))[:_MAX_SIZES] for field in ("input_dtypes", "output_dtypes"))
        rows.append(
            (
                _whole(entry.get("record_id", entry.get("id", index)), index),
                group,
                _whole(number, 0),
                name,
                str(entry.get("state", SCHEDULED)),
                entry.get("retired") is True,
                bool(entry.get("is_p2p", bool(_PEER.search(name)))),
                _whole(entry.get("time_created_ns", 0), 0),
                marshal.dumps((name, *sizes, *types), 2),
            )
        )
    return _Columns(*zip(*rows, strict=True)) if rows else _Columns(*([()] * 9))


def _whole(value: object, otherwise: int) -> int:
    """A number however it is written (JSON has some as strings), within what a counter can be."""
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if _LEAST <= number < _MOST else otherwise


def configs_of(value: object) -> dict[str, Config]:
    """Name to description and members, as far as the dump says; gloo's says nothing."""
    found = {}
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    keys = list(value) if isinstance(value, dict) else None
    for index, one in enumerate(items):
        if isinstance(one, list) and keys is not None:  # version 1: the members alone
            one = {"name": str(keys[index]), "ranks": one}
        if not isinstance(one, dict):
            continue
        name = str(one.get("name") or (keys[index] if keys is not None else ""))
        ranks = one.get("ranks")
        members = [int(word) for word in re.findall(r"\d+", ranks if isinstance(ranks, str) else str(ranks))]
        if members and max(members) < 10_000_000:
            timeout = one.get("timeout", 0.0)
            found[name] = Config(
                str(one.get("desc", "")),
                RankSet(members),
                float(timeout) if isinstance(timeout, (int, float)) else 0.0,
            )
    return found


class _Maker:
    """Splits the columns of one rank by group."""

    def __init__(
        self,
        entries: list[dict[str, Any]],
        columns: _Columns,
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
        # gloo never says "completed", only "retired"; NCCL also retires what it gave up on.
        self._by_retired = COMPLETED not in columns.states

    def make(self, version: str) -> Dump:
        columns = self._columns
        by_group: dict[int, list[int]] = {}
        transfers: list[Transfer] = []
        done = self._done()
        if set(columns.groups) == {("", "")}:
            raise DumpError(
                "has groups without names, as torch records them under TORCH_DISTRIBUTED_DEBUG=DETAIL",
                "Set it to INFO or OFF: with DETAIL torch checks collectives itself, and what it finds is in the log.",
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
            row = self._group(named, columns.names[indexes[0]])
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
            newest=max(columns.created, default=0) * _NS,
            notes={"nameless": str(nameless)} if nameless else {},
        )
        return Dump(recorder, self._table, self._stacks)

    def _done(self) -> Sequence[bool]:
        columns = self._columns
        if self._by_retired:
            return columns.retired
        return [state == COMPLETED for state in columns.states]

    def _named(self, pair: tuple[str, str]) -> tuple[str, str]:
        """A name that is the same on all members. In version 1 that is who they are, if the dump says it at all."""
        if not pair[0].startswith(_LOCAL):
            return pair
        config = self._configs.get(pair[0].removeprefix(_LOCAL))
        if config is None:
            return ("", "")
        name = f"{_LOCAL}{config.ranks}"
        self._configs[name] = config
        return (name, "")

    def _group(self, pair: tuple[str, str], name: str) -> int:
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
            )
        )

    def _track(self, group: int, indexes: list[int], done: Sequence[bool]) -> Track:
        numbers = [self._columns.numbers[index] for index in indexes]
        first = numbers[0]
        rows = [self._operations[index] for index in indexes]
        if numbers != list(range(first, first + len(numbers))):
            start, rows = self._uneven(numbers, rows, indexes)
            first, indexes = numbers[start], indexes[start:]
        open_calls = [index for index in indexes if not done[index]]
        # Numbers only grow, so the last that is done has the highest.
        last_done = next((index for index in reversed(indexes) if done[index]), None)
        completed = first - 1 if last_done is None else self._columns.numbers[last_done]
        return Track(
            group=group,
            first=first,
            history=pack_rows(rows),
            completed=completed,
            pending=tuple(self._entry(index, at < _WITH_STACKS) for at, index in enumerate(open_calls[:_MAX_PENDING])),
            last=self._entry(indexes[-1]),
            since=self._columns.created[indexes[0]] * _NS,
        )

    def _uneven(self, numbers: list[int], rows: list[int], indexes: list[int]) -> tuple[int, list[int]]:
        """The same where numbers are left out, or come twice, or begin again; and where they last began."""
        # A group that was destroyed and made anew under the same name counts from the beginning again.
        start = max((at for at in range(1, len(numbers)) if numbers[at] < numbers[at - 1]), default=0)
        first, reached = numbers[start], numbers[-1]
        if reached - first > _MAX_GAP:
            raise DumpError(f"is not believable: it counts from {first} to {reached} in one group")
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
        """Calls that were made as one bear one number: keep all their names."""
        before, more = self._table.operations[row], self._table.operations[other]
        if len(before.name) > _MAX_SIZES:
            return row
        return self._table.operation(
            Operation(
                f"{before.name}+{more.name}",
                f"{before.inputs}+{more.inputs}"[:_MAX_SIZES],
                f"{before.outputs}+{more.outputs}"[:_MAX_SIZES],
                before.types if before.types == more.types else f"{before.types}+{more.types}"[:_MAX_SIZES],
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
            created=columns.created[index] * _NS,
            stack=self._stacks.add(_frames(entry.get("frames"))) if with_stack else 0,
            thread=self._thread(_whole(entry.get("thread_id", 0), 0)),
        )

    def _thread(self, ident: int) -> int:
        return self._threads.get(ident, 0) if self._threads else ident

    def _transfer(self, group: int, index: int) -> list[Transfer]:
        """A send or recv that is under way. Its text has ranks of the group; members turn them into the job's."""
        match = _PEER.search(self._columns.names[index])
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
    """``[[1024]]`` is one tensor, and written ``[1024]``."""
    text = value if isinstance(value, str) else str(value)
    text = text.replace(" ", "")
    if text.startswith("[[") and text.endswith("]]") and "],[" not in text:
        text = text[1:-1]
    return "" if text == "[]" else text[:_MAX_SIZES]


def _types(inputs: object, outputs: object) -> str:
    texts = []
    for value in (inputs, outputs):
        names = value if isinstance(value, (list, tuple)) else re.findall(r"\w+", str(value))
        texts.append(",".join(dict.fromkeys(map(str, names))))
    return (texts[0] if texts[0] == texts[1] else "→".join(text for text in texts if text))[:_MAX_SIZES]


def _frames(value: object) -> tuple[Frame, ...]:
    """A recorded stack, outermost first as all of ours are."""
    if not isinstance(value, list):
        return ()
    found = []
    for one in value[:200]:
        if isinstance(one, dict):
            name, file = str(one.get("name", "?"))[:500], str(one.get("filename", ""))[:4000]
            found.append(Frame(name, file, _whole(one.get("line", 0), 0)))
    return tuple(reversed(found))
