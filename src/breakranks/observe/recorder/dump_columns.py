"""The entries of one rank's dump as columns, with a value for each entry, and the groups that the dump describes.

If every entry has all fields, whole columns are extracted at once: so two million entries take only seconds.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from breakranks.rankset import RankSet
from breakranks.snapshot.recorder_tables import SCHEDULED

PEER = re.compile(r"(send|recv)\s+(\d+)\s*(?:->|<-)\s*(\d+)")
# Of the sizes of one call: a coalesced call may list thousands of tensors.
MAX_SIZES_CHARACTERS = 400
_MAX_TENSORS = 64
_MAX_NAME_CHARACTERS = 200
_LEAST, _MOST = -1, 1 << 62  # of a counter, and of nanoseconds
# Begins the name of a group in version 1, in which groups have no names that are the same on all ranks.
LOCAL = "ranks "
_FIELDS = (
    "record_id", "process_group", "collective_seq_id", "profiling_name", "state", "retired", "is_p2p",
    "time_created_ns", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes",
)  # fmt: skip


class Config(NamedTuple):
    """The configuration of a group."""

    description: str
    ranks: RankSet
    timeout: float = 0.0


class DumpColumns(NamedTuple):
    """A value for each entry. ``keys`` has the marshalled name, sizes and types of its call."""

    records: Sequence[int]
    groups: Sequence[tuple[str, str]]
    numbers: Sequence[int]
    names: Sequence[str]
    states: Sequence[str]
    retired: Sequence[bool]
    p2p: Sequence[bool]
    created: Sequence[int]
    keys: Sequence[bytes]


def columns_of(entries: list[dict[str, Any]]) -> DumpColumns:
    """Return the columns of the entries. The loops run in C; entries that do not fit go to ``_slow_columns``."""
    try:
        records, pairs, numbers, names, states, retired, p2p, created, *sizes = (
            list(map(itemgetter(field), entries)) for field in _FIELDS
        )
        if entries and type(pairs[0]) is list:
            pairs = list(map(tuple, pairs))
        kinds = [set(map(type, column)) for column in (records, numbers, names, states, created)]
        if (
            kinds == [{int}, {int}, {str}, {str}, {int}]
            and all(len(pair) == 2 and {type(part) for part in pair} == {str} for pair in set(pairs))
            and max(map(len, sizes[0])) < _MAX_TENSORS
            and all(min(column) >= _LEAST and max(column) < _MOST for column in (records, numbers, created))
        ):
            # Marshal version 2: later versions write the same value differently if it is shared.
            keys = list(map(marshal.dumps, zip(names, *sizes, strict=True), repeat(2)))
            return DumpColumns(
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


def _slow_columns(entries: list[dict[str, Any]]) -> DumpColumns:
    """Return the columns of entries of older versions, or with missing fields."""
    rows = []
    for index, entry in enumerate(entries):
        pair = entry.get("process_group")
        if isinstance(pair, (tuple, list)) and pair:
            group = (str(pair[0])[:_MAX_NAME_CHARACTERS], str(pair[1])[:_MAX_NAME_CHARACTERS] if len(pair) > 1 else "")
        else:
            # Version 1 counts the groups of the process. Only 0, the default group, is the same on all ranks.
            local = str(entry.get("pg_id", 0))[:_MAX_NAME_CHARACTERS]
            group = ("0", "default_pg") if local == "0" else (LOCAL + local, "")
        name = str(entry.get("profiling_name", "unknown"))[:_MAX_NAME_CHARACTERS]
        number = entry.get("collective_seq_id", entry.get("seq_id", entry.get("op_id", 0)))
        sizes = (str(entry.get(field, []))[:MAX_SIZES_CHARACTERS] for field in ("input_sizes", "output_sizes"))
        types = (str(entry.get(field, []))[:MAX_SIZES_CHARACTERS] for field in ("input_dtypes", "output_dtypes"))
        rows.append(
            (
                whole(entry.get("record_id", entry.get("id", index)), index),
                group,
                whole(number, 0),
                name,
                str(entry.get("state", SCHEDULED)),
                entry.get("retired") is True,
                bool(entry.get("is_p2p", bool(PEER.search(name)))),
                whole(entry.get("time_created_ns", 0), 0),
                marshal.dumps((name, *sizes, *types), 2),
            )
        )
    return DumpColumns(*zip(*rows, strict=True)) if rows else DumpColumns(*([()] * 9))


def whole(value: object, otherwise: int) -> int:
    """Return a number, which JSON may have as a string, or ``otherwise`` if no counter can have that value."""
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if _LEAST <= number < _MOST else otherwise


def configs_of(value: object) -> dict[str, Config]:
    """Return the configuration of groups by name, as far as the dump contains it. Dumps of gloo contain none."""
    found = {}
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    keys = list(value) if isinstance(value, dict) else None
    for index, group in enumerate(items):
        if isinstance(group, list) and keys is not None:  # version 1: only the members
            group = {"name": str(keys[index]), "ranks": group}
        if not isinstance(group, dict):
            continue
        name = str(group.get("name") or (keys[index] if keys is not None else ""))
        ranks = group.get("ranks")
        members = [int(word) for word in re.findall(r"\d+", ranks if isinstance(ranks, str) else str(ranks))]
        if members and max(members) < 10_000_000:
            timeout = group.get("timeout", 0.0)
            found[name] = Config(
                str(group.get("desc", "")),
                RankSet(members),
                float(timeout) if isinstance(timeout, (int, float)) else 0.0,
            )
    return found
