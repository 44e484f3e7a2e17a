"""Ranks that are missing here, and why, as far as the traces of their launcher show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from breakranks.jobs.rank_processes import RankCandidate
from breakranks.jobs.unreadable_processes import pids_text
from breakranks.observe.process_table import ProcessEntry, ProcessTable
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Missing

# Options of launchers for the number of ranks per host, for launchers that do not put it into the environment.
_LOCAL_OPTIONS = ("--local_worker_num",)


class LauncherMembers(NamedTuple):
    """The candidates of one job: its ranks, by number, and helpers that dead ranks left behind."""

    world: int
    ranks: Mapping[int, RankCandidate]
    orphans: Mapping[int, Sequence[RankCandidate]]


def expected_here(table: ProcessTable, members: LauncherMembers) -> dict[int, int]:
    """The ranks that this host should have, each with the pid of its launcher, or 0 if that is not alive."""
    expected: dict[int, int] = {}
    all_candidates = [*members.ranks.items()]
    all_candidates += [(rank, orphan) for rank, left in members.orphans.items() for orphan in left]
    for rank, candidate in all_candidates:
        for other in _started_with(table, rank, candidate, all_candidates, members.world):
            if not expected.get(other):
                expected[other] = candidate.launcher
    return expected


def _started_with(
    table: ProcessTable,
    rank: int,
    candidate: RankCandidate,
    all_candidates: Sequence[tuple[int, RankCandidate]],
    world: int,
) -> Sequence[int]:
    """The ranks that one launch started on this host, by the environment of one of them."""
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
    # Ranks may be distributed round-robin over the hosts (mpirun --map-by node): then their numbers do not follow from
    # the local ones.
    for other_rank, other in all_candidates:
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
    """Zombies, by rank, where it is certain which rank each was.

    A zombie keeps only its parent and its name. If one rank of a launcher is missing, and the launcher has one dead
    child with the name of its living ones, that child was the rank.
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
    """The ranks that are not in ``found``, folded by reason and detail."""
    groups: dict[Missing, list[int]] = {}
    by_hand = all(candidate.identity.row.by_hand for candidate in members.ranks.values())
    # Lightning: the number of ranks per host was guessed from those that are here.
    guessed = any(candidate.identity.row.parent_is_rank for candidate in members.ranks.values())
    present = set(found)
    uncertain = _unplaced(members, expected)
    for rank in range(members.world):
        if rank in present:
            continue
        orphans = members.orphans.get(rank, ())
        if orphans or (rank in expected and not by_hand):
            why = Missing(ranks="", reason="exited", detail=_how_known(table, expected.get(rank, 0), orphans))
        elif guessed:
            why = Missing(ranks="", reason="absent", detail="on another host, or exited", guessed=True)
        elif expected and not by_hand:
            why = Missing(ranks="", reason="elsewhere")
        elif uncertain is not None:
            why = uncertain
        else:
            why = Missing(ranks="", reason="absent")
        groups.setdefault(why, []).append(rank)
    ordered = sorted(groups.items(), key=lambda group: (group[0].reason, group[0].detail))
    return tuple(replace(why, ranks=str(RankSet(ranks))) for why, ranks in ordered)


def _unplaced(members: LauncherMembers, expected: Mapping[int, int]) -> Missing | None:
    """Where missing ranks are, if only the *number* of ranks of this host is known; None if not even that is."""
    counts = {c.launcher: c.identity.local_world for c in members.ranks.values() if c.launcher}
    if expected or not counts or not all(counts.values()):
        return None
    lost = sum(counts.values()) - len(members.ranks)
    detail = f"all but {lost}, which ran on this host and exited" if lost > 0 else ""
    return Missing(ranks="", reason="elsewhere", detail=detail, exited=max(0, lost))


def _how_known(table: ProcessTable, launcher: int, orphans: Sequence[RankCandidate]) -> str:
    clues = []
    entry = table.get(launcher)
    if entry is not None:
        clues.append(f"the launcher ({entry.name}, pid {launcher}) is still running")
    if orphans:
        pids = pids_text([orphan.entry.pid for orphan in orphans])
        many = "helpers" if len(orphans) > 1 else "a helper"
        clues.append(f"left {many} behind (pid {pids})")
    return "; ".join(clues) or "started on this host, and the launcher has ended"
