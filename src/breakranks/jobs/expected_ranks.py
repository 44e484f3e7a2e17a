"""Ranks that should exist and are not here: why, as far as their launcher's traces tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from breakranks.jobs.rank_environment import RankCandidate
from breakranks.jobs.unreadable_processes import pids_text
from breakranks.observe.process_table import ProcessEntry, ProcessTable
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.model import Missing

# Options of a launcher's command line that say how many ranks it starts on its host, for those that do
# not put it into the environment.
_LOCAL_OPTIONS = ("--local_worker_num",)


class LauncherMembers(NamedTuple):
    """The candidates of one job: its ranks, by number, and what dead ranks left behind."""

    world: int
    ranks: Mapping[int, RankCandidate]
    orphans: Mapping[int, Sequence[RankCandidate]]


def expected_here(table: ProcessTable, members: LauncherMembers) -> dict[int, int]:
    """The ranks that this host should have, each with its launcher's pid (0: not alive)."""
    expected: dict[int, int] = {}
    everyone = [*members.ranks.items()]
    everyone += [(rank, orphan) for rank, left in members.orphans.items() for orphan in left]
    for rank, candidate in everyone:
        for other in _started_with(table, rank, candidate, everyone, members.world):
            if not expected.get(other):
                expected[other] = candidate.launcher
    return expected


def _started_with(
    table: ProcessTable, rank: int, candidate: RankCandidate, everyone: Sequence[tuple[int, RankCandidate]], world: int
) -> Sequence[int]:
    """The ranks that one launch started on this host, by what one of them was told."""
    identity = candidate.identity
    if identity.here:
        return [other for other in identity.here if other < world]
    count = identity.local_world or _local_option(table.command(candidate.launcher))
    if count >= world:
        return range(world)
    if not count:
        return ()
    local_rank = identity.local_rank if identity.local_rank >= 0 else rank % count
    first = rank - local_rank
    # Ranks may be dealt out one host after another instead (mpirun --map-by node): then their numbers do
    # not follow from the local ones.
    for other_rank, other in everyone:
        same_node = other.identity.node == identity.node and other.launcher == candidate.launcher
        if same_node and other.identity.local_rank >= 0 and other_rank - other.identity.local_rank != first:
            return ()
    return range(max(first, 0), min(first + count, world))


def _local_option(command: tuple[str, ...]) -> int:
    for option in _LOCAL_OPTIONS:
        for index, word in enumerate(command):
            value = "".join(command[index + 1 : index + 2]) if word == option else word.removeprefix(option + "=")
            if word.startswith(option) and value.isdigit():
                return int(value)
    return 0


def zombie_ranks(table: ProcessTable, members: LauncherMembers, expected: Mapping[int, int]) -> dict[int, ProcessEntry]:
    """Dead ranks that nobody reaped, where it is certain which rank each was.

    A zombie keeps its parent and its name, no more. Where one rank of a launcher is missing and that
    launcher has one dead child that looks like its living ones, the child was the rank.
    """
    found: dict[int, ProcessEntry] = {}
    by_parent: dict[int, list[RankCandidate]] = {}
    for candidate in members.ranks.values():
        by_parent.setdefault(candidate.launcher or candidate.mother, []).append(candidate)
    gone = [rank for rank in range(members.world) if rank not in members.ranks]
    for parent, siblings in by_parent.items():
        lacking = [rank for rank in gone if expected.get(rank) == parent]
        if siblings[0].identity.row.by_hand and len(by_parent) == 1:
            lacking = gone
        names = {sibling.entry.name for sibling in siblings} | {"python", "python3", "pt_main_thread"}
        dead = [child for child in table.children(parent) if child.state == "Z" and child.name in names]
        if len(lacking) == len(dead) == 1:
            found[lacking[0]] = dead[0]
    return found


def missing_ranks(
    table: ProcessTable, members: LauncherMembers, expected: Mapping[int, int], found: Sequence[int]
) -> tuple[Missing, ...]:
    """Everyone that is not in ``found``, by reason; the ranks of one reason and detail are folded."""
    groups: dict[Missing, list[int]] = {}
    by_hand = all(candidate.identity.row.by_hand for candidate in members.ranks.values())
    # Lightning: how many ranks a host has was guessed from those that are here.
    guessed = any(candidate.identity.row.parent_is_rank for candidate in members.ranks.values())
    present = set(found)
    uncertain = _unplaced(members, expected)
    for rank in range(members.world):
        if rank in present:
            continue
        orphans = members.orphans.get(rank, ())
        if orphans or (rank in expected and not by_hand):
            why = Missing("", "exited", _how_known(table, expected.get(rank, 0), orphans))
        elif guessed:
            why = Missing("", "absent", "on another host, or exited: nothing tells", guessed=True)
        elif expected and not by_hand:
            why = Missing("", "elsewhere")
        elif uncertain is not None:
            why = uncertain
        else:
            why = Missing("", "absent")
        groups.setdefault(why, []).append(rank)
    ordered = sorted(groups.items(), key=lambda group: (group[0].reason, group[0].detail))
    return tuple(replace(why, ranks=str(RankSet(ranks))) for why, ranks in ordered)


def _unplaced(members: LauncherMembers, expected: Mapping[int, int]) -> Missing | None:
    """What is known of ranks where only the *number* of this host's is known; None where not even that."""
    counts = {c.launcher: c.identity.local_world for c in members.ranks.values() if c.launcher}
    if expected or not counts or not all(counts.values()):
        return None
    lost = sum(counts.values()) - len(members.ranks)
    detail = f"{lost} of them ran on this host and exited" if lost > 0 else ""
    return Missing("", "elsewhere", detail, exited=max(0, lost))


def _how_known(table: ProcessTable, launcher: int, orphans: Sequence[RankCandidate]) -> str:
    told = []
    entry = table.get(launcher)
    if entry is not None:
        told.append(f"its launcher ({entry.name}, pid {launcher}) is here and it is not")
    if orphans:
        pids = pids_text([orphan.entry.pid for orphan in orphans])
        many = "helpers" if len(orphans) > 1 else "a helper"
        told.append(f"left {many} behind (pid {pids})")
    return "; ".join(told) or "started here, and its launcher is gone too"


def missing_text(missing: Missing) -> str:
    """One rank set and why, as a sentence: ``rank 3 exited: left a helper behind (pid 12)``."""
    words = {
        "exited": "exited",
        "absent": "not started, or not to be seen",
        "elsewhere": "on other hosts",
        "unreachable": "unreachable",
    }
    text = f"{ranks_text(RankSet.parse(missing.ranks))} {words.get(missing.reason, missing.reason)}"
    return f"{text}: {missing.detail}" if missing.detail else text
