"""The jobs of this machine: their ranks, the processes of these, and missing ranks.

Everything is computed from a :class:`~breakranks.observe.process_table.ProcessTable`. Only ``stack_of``, a function of
the caller, inspects a process, and only those that ``torch.multiprocessing.spawn`` may have started.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from breakranks.jobs.expected_ranks import LauncherMembers, expected_here, missing_ranks, zombie_ranks
from breakranks.jobs.found_jobs import FoundJob, FoundRank, LocalJobs, StackOf
from breakranks.jobs.launchers import Launcher
from breakranks.jobs.rank_processes import Identities, RankCandidate, candidates, same_program
from breakranks.jobs.unnumbered_jobs import ray_jobs, spawn_jobs
from breakranks.jobs.unreadable_processes import container_problem, pids_text, refused_problems
from breakranks.jobs.waiting_launchers import starting_jobs
from breakranks.log import Log, milliseconds
from breakranks.observe.process_table import ProcessEntry, ProcessTable
from breakranks.observe.redaction import redact
from breakranks.snapshot.model import Job, Problem

_log = Log("jobs")
# Launchers that may also start one program per node, which then spawns one rank per device.
_MAY_SPAWN = ("slurm", "mpirun", "mpich", "python")


class _Group:
    """Candidates that share a world, while the job is assembled."""

    def __init__(self, world_key: tuple[object, ...]) -> None:
        self.world_key = world_key
        self.ranks: dict[int, RankCandidate] = {}
        self.orphans: dict[int, list[RankCandidate]] = {}


def find_jobs(table: ProcessTable, *, stack_of: StackOf | None = None) -> LocalJobs:
    """Find every job that has ranks on this machine, and launchers that have not started their ranks yet."""
    began = time.monotonic()
    known = Identities(table)
    groups, left_over = _group(table, candidates(table, known))
    found = [_job(table, known, group) for group in _innermost(table, groups)]
    problems = [_left_over(orphans) for orphans in left_over]
    taken = {rank.pid for job in found for rank in job.ranks}
    suspects = {rank.pid for job in found if job.job.launcher in _MAY_SPAWN for rank in job.ranks}
    unnamed, unnamed_problems = spawn_jobs(table, taken, stack_of, suspects)
    spawners = {job.job.launcher_pid for job in unnamed}
    found = [job for job in found if not spawners.issuperset(rank.pid for rank in job.ranks)]
    found += unnamed
    problems += unnamed_problems
    rays, ray_problems = ray_jobs(table)
    found += rays
    problems += ray_problems
    found += starting_jobs(table, {rank.pid for job in found for rank in job.ranks})
    container = container_problem(table, sorted(rank.pid for job in found for rank in job.ranks))
    problems += [container] if container else []
    problems += refused_problems(table)
    found.sort(key=lambda job: (job.job.started, job.job.key))
    everything = LocalJobs(tuple(_unique_keys(found)), tuple(problems))
    _log_jobs(everything, len(table.entries), began)
    return everything


def _log_jobs(found: LocalJobs, processes: int, began: float) -> None:
    _log.info("looked for jobs", processes=processes, jobs=len(found.jobs), ms=milliseconds(began))
    for part in found.jobs:
        job = part.job
        pids = ",".join(str(rank.pid) for rank in part.ranks)
        gone = ",".join(missing.ranks for missing in part.missing) or None
        _log.info("job", name=job.key, launcher=job.launcher, world=job.world_size, pids=pids, missing=gone)
    for problem in found.problems:
        _log.info("not seen", why=problem.what)


# --- which candidates share a world ------------------------------------------------------------------


def _group(table: ProcessTable, found: Sequence[RankCandidate]) -> tuple[list[_Group], list[list[RankCandidate]]]:
    """Return groups of one world each, and the orphans of worlds without a living rank."""
    groups: list[_Group] = []
    orphans: list[RankCandidate] = [candidate for candidate in found if candidate.helper]
    ranks = [candidate for candidate in found if not candidate.helper]
    # Units with a living launcher come first: a process without one that has the same rank is left over.
    for unit in sorted(_units(ranks), key=lambda unit: not unit[0].launcher):
        key = _world_key(table, unit[0])
        rivals = [group for group in groups if group.world_key == key]
        if not unit[0].launcher and any(_is_left_over(unit[0], group) for group in rivals):
            orphans += unit
            continue
        members = _numbered(table, unit)
        for group in rivals:
            if not members.keys() & group.ranks.keys():
                group.ranks.update(members)
                break
        else:
            group = _Group(key)
            group.ranks.update(members)
            groups.append(group)
    left: dict[tuple[object, ...], list[RankCandidate]] = {}
    for orphan in orphans:
        key = _world_key(table, orphan)
        homes = [group for group in groups if group.world_key == key]
        for group in homes:
            group.orphans.setdefault(orphan.identity.rank, []).append(orphan)
        if not homes:
            left.setdefault((key, orphan.identity.rank), []).append(orphan)
    return groups, list(left.values())


def _units(ranks: Iterable[RankCandidate]) -> list[list[RankCandidate]]:
    """Group the ranks by launcher process and job. A rank without a launcher is a unit of its own."""
    by_launcher: dict[int, list[RankCandidate]] = {}
    alone: list[list[RankCandidate]] = []
    for candidate in ranks:
        if candidate.launcher:
            by_launcher.setdefault(candidate.launcher, []).append(candidate)
        else:
            alone.append([candidate])
    split: list[list[RankCandidate]] = []
    for unit in by_launcher.values():
        by_job: dict[object, list[RankCandidate]] = {}
        for candidate in unit:
            by_job.setdefault(candidate.identity.job, []).append(candidate)
        split += by_job.values()
    return split + alone


def _world_key(table: ProcessTable, candidate: RankCandidate) -> tuple[object, ...]:
    identity = candidate.identity
    if not identity.job:
        if candidate.launcher or candidate.mother > 1:
            return ("started by", candidate.launcher or candidate.mother, identity.world)
        return ("session", candidate.entry.session, identity.world)
    values = []
    for name, value in identity.job:
        if value in ("localhost", "::1") or value.startswith("127."):
            # Loopback means this machine or this container: the same address in two containers is two places.
            value = "loopback " + table.namespace(candidate.entry.pid, "net")
        values.append((name, value))
    return (*values, identity.world)


def _is_left_over(candidate: RankCandidate, group: _Group) -> bool:
    """Whether a process without a launcher is a helper of a dead rank.

    It is one if the launcher of its node is alive, since a rank would be a descendant of it, or if ranks lead their own
    sessions and this process does not.
    """
    identity, entry = candidate.identity, candidate.entry
    for rank in group.ranks.values():
        if rank.launcher and (identity.node < 0 or rank.identity.node == identity.node):
            return True
    return identity.row.own_session and entry.session not in (0, entry.pid)


def _numbered(table: ProcessTable, unit: list[RankCandidate]) -> dict[int, RankCandidate]:
    """The ranks of one launcher by number. Of several processes with the same number, the oldest."""
    members: dict[int, RankCandidate] = {}
    if not unit[0].identity.row.rank:
        return _numbered_by_node(table, unit)
    for candidate in unit:
        members.setdefault(candidate.identity.rank, candidate)
    return members


def _numbered_by_node(table: ProcessTable, unit: list[RankCandidate]) -> dict[int, RankCandidate]:
    """Lightning: a child has its local rank and its node in the environment, and local rank 0 is the parent of all."""
    parent = table.get(unit[0].launcher)
    first = unit[0]
    others = [c for c in unit if c.identity.local_rank > 0]
    if parent is not None and others:
        command = table.command(others[0].entry.pid)
        # A child with local rank 0 is a rank only if a user's own program started all ranks alike. Otherwise it is a
        # helper that the parent started after it had set its own variables.
        if not same_program(command, table.command(parent.pid)):
            others = unit
        else:
            # The parent of the parent started the job. It does not tell which ranks should be here.
            first = RankCandidate(
                entry=parent, identity=unit[0].identity._replace(local_rank=0), mother=parent.ppid, launcher=parent.pid
            )
            others = [first, *others]
    # The number of ranks per node is not recorded: take the number seen, or the next one that divides the world.
    seen = max(c.identity.local_rank for c in others or unit) + 1
    world = unit[0].identity.world
    per_node = next((count for count in range(seen, world + 1) if world % count == 0), seen)
    return {
        max(c.identity.node, 0) * per_node + c.identity.local_rank: c._replace(
            identity=c.identity._replace(local_world=per_node)
        )
        for c in others or unit
    }


def _innermost(table: ProcessTable, groups: list[_Group]) -> list[_Group]:
    """Drop jobs whose ranks all only run another launcher: srun → python → torchrun → ranks."""
    above: dict[int, set[int]] = {}
    for number, group in enumerate(groups):
        above[number] = {ancestor.pid for rank in group.ranks.values() for ancestor in table.ancestors(rank.entry.pid)}
    kept = []
    for number, group in enumerate(groups):
        pids = {rank.entry.pid for rank in group.ranks.values()}
        inner = set().union(*(pids_above for other, pids_above in above.items() if other != number))
        if not pids <= inner:
            kept.append(group)
    return kept


# --- from a group to a job ---------------------------------------------------------------------------


def _job(table: ProcessTable, known: Identities, group: _Group) -> FoundJob:
    identities = [candidate.identity for candidate in group.ranks.values()]
    members = LauncherMembers(max(identity.world for identity in identities), group.ranks, group.orphans)
    expected = expected_here(table, members)
    ranks = {
        rank: FoundRank(rank, candidate.entry.pid, candidate.identity.local_rank)
        for rank, candidate in group.ranks.items()
    }
    for rank, entry in zombie_ranks(table, members, expected).items():
        ranks[rank] = FoundRank(rank, entry.pid)
    first = group.ranks[min(group.ranks)]
    launcher = table.get(min((c.launcher for c in group.ranks.values() if c.launcher), default=0))
    row = _named_by(known, launcher, first.identity.row)
    shown = launcher if launcher is not None and known.launcher(launcher) and row.name != "slurm" else first.entry
    ids = dict(first.identity.job)
    started = [candidate.entry.started for candidate in group.ranks.values()]
    job = Job(
        key=_key(row, first, launcher),
        launcher=row.name,
        world_size=members.world,
        started=min([*started, launcher.started] if launcher is shown and launcher is not None else started),
        command=redact(table.command(shown.pid)),
        ids=ids,
        launcher_pid=launcher.pid if launcher is not None else 0,
    )
    found = tuple(ranks[rank] for rank in sorted(ranks))
    return FoundJob(job, found, missing_ranks(table, members, expected, [rank.rank for rank in found]))


def _named_by(known: Identities, launcher: ProcessEntry | None, row: Launcher) -> Launcher:
    """The row that names the job.

    Rows with the same variables (torchrun, accelerate, deepspeed) are distinguished by the launcher process, if it is
    alive: the variables may be left over from a user's shell.
    """
    seen = known.launcher(launcher) if launcher is not None else None
    return seen if seen is not None and seen.rank == row.rank and seen.rank else row


def _key(row: Launcher, first: RankCandidate, launcher: ProcessEntry | None) -> str:
    values = dict(first.identity.job)
    named = [values[name] for name in row.key if name in values]
    if named:
        return f"{row.name}-{'.'.join(named)}"
    return f"{row.name}-{launcher.pid if launcher is not None else first.entry.pid}"


def _unique_keys(found: Sequence[FoundJob]) -> list[FoundJob]:
    """Add a pid to keys that are not unique: two jobs may share a port, in two containers or if one is left over."""
    counts: dict[str, int] = {}
    for job in found:
        counts[job.job.key] = counts.get(job.job.key, 0) + 1
    unique = []
    for job in found:
        if counts[job.job.key] > 1:
            key = f"{job.job.key}-{job.job.launcher_pid or job.ranks[0].pid}"
            job = job._replace(job=_with_key(job.job, key))
        unique.append(job)
    return unique


def _with_key(job: Job, key: str) -> Job:
    return Job(
        key=key,
        launcher=job.launcher,
        world_size=job.world_size,
        started=job.started,
        command=job.command,
        ids=job.ids,
        launcher_pid=job.launcher_pid,
    )


def _left_over(orphans: Sequence[RankCandidate]) -> Problem:
    pids = [orphan.entry.pid for orphan in orphans]
    identity = orphans[0].identity
    many = len(pids) > 1
    helpers = f"pids {pids_text(pids)} are helpers" if many else f"pid {pids_text(pids)} is a helper"
    return Problem(
        f"{helpers} of rank {identity.rank} of a "
        f"{identity.row.name} job that has ended; {'they' if many else 'it'} may still hold memory or ports",
        f"If {'they are' if many else 'it is'} not needed: kill {' '.join(map(str, pids[:8]))}",
    )
