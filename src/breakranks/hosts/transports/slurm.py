"""``slurm:JOBID[.STEP]``: agents in a running job, by ``srun --overlap``, which waits for no core and takes no GPU.

Up to MAX_STEPS nodes each have an srun of their own, and so does each node that does not respond to Slurm: if an srun
cannot start on one of its nodes, Slurm ends it on the others a dozen seconds later. When nodes share an srun, lines of
up to 1 kB pass whole. Killing an srun kills its agents and every process that they started.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from breakranks.errors import THIS_BREAKRANKS, ManyJobsError, NoJobError, UsageError
from breakranks.hosts.transports.local_programs import ProgramOutput, ask, without
from breakranks.hosts.transports.node_sets import checked
from breakranks.hosts.transports.ssh import patience
from breakranks.hosts.transports.transport_plan import (
    PIECE_BYTES,
    SHORT_PIECE_BYTES,
    HostPlan,
    LostHost,
    Remote,
    Transport,
    TransportOptions,
)

MAX_STEPS = 16  # sruns at a time; each is a step that the Slurm controller must create
_REMEDY = "Run it where squeue and srun work, such as a login node, or use ssh: with the hosts of the job."
_FIELDS = "%A|%i|%T|%U|%u|%N|%D|%M|%r|%j"
_OVERLAP = (20, 11)  # from this version on, steps share resources only with --overlap


class SlurmJob(NamedTuple):
    """One row of squeue. ``number`` is the SLURM_JOB_ID of the processes; ``id`` may be 5_1 or 5+1."""

    number: str
    id: str
    state: str
    uid: int
    user: str
    nodes: str
    size: int
    elapsed: str
    reason: str
    name: str


class NodeState(NamedTuple):
    """The state of a node by sinfo. A ``*`` at its end means that the node does not respond."""

    state: str = ""
    reason: str = ""


def slurm_jobs(deadline: float) -> list[SlurmJob]:
    """Return the running jobs of the user, from squeue."""
    answer = _squeue(("-u", str(os.getuid()), "-t", "RUNNING"), deadline)
    return list(_rows(answer.out))


def jobs_text(jobs: Sequence[SlurmJob]) -> str:
    """Return one line per job."""
    width = max((len(job.id) for job in jobs), default=0)
    return "\n".join(
        f"  slurm:{job.id:<{width}}  {job.state.lower()}, {job.elapsed}, "
        f"{job.size} {'node' if job.size == 1 else 'nodes'} ({job.nodes or job.reason}), {job.name[:40]}"
        for job in jobs
    )


def plan_slurm(where: str, options: TransportOptions, remote: Remote) -> HostPlan:
    """Return a plan for the nodes of a job or step, with up to MAX_STEPS sruns and one per unresponsive node."""
    if not where:
        where = _only(slurm_jobs(options.deadline)).id
    id, _, step = where.partition(".")
    job = _one(id, options.deadline)
    nodes = _names(_step_nodes(job, step, options.deadline) if step else job.nodes, options.deadline)
    parts, lost = grouped(nodes, _states(job, options.deadline))
    if not parts:
        raise UsageError(f"every node of Slurm job {id} is down: {', '.join(nodes)[:200]}", "See: sinfo -R")
    prefix = _srun(job.number, options)
    return HostPlan(
        name=f"slurm:{where}",
        scheme="slurm",
        hosts=nodes,
        transports=tuple(_transport(prefix, part, remote) for part in parts),
        lost=lost,
        slurm=(job.number, step),
    )


def _only(jobs: Sequence[SlurmJob]) -> SlurmJob:
    """Return the only job; raise an error that lists the jobs if there are several."""
    if not jobs:
        raise NoJobError(
            "you have no running job in Slurm",
            f"See: squeue --me. For a job of another user: sudo -u USER {THIS_BREAKRANKS} …",
        )
    if len(jobs) == 1:
        return jobs[0]
    raise ManyJobsError(
        f"you have {len(jobs)} running jobs in Slurm; choose one:\n{jobs_text(jobs)}",
        f"For example: breakranks why slurm:{jobs[-1].id}",
    )


def _squeue(arguments: Sequence[str], deadline: float) -> ProgramOutput:
    answer = ask((*without(("SQUEUE_",)), "squeue", "-h", *arguments, "-o", _FIELDS), deadline, _REMEDY)
    if answer.status:
        lines = answer.err.strip().splitlines() or [f"squeue exited with {answer.status}"]
        if any("Invalid job id" in line for line in lines):
            return ProgramOutput(0, "", "")
        raise UsageError(f"Slurm does not answer: {lines[-1][:200]}", _REMEDY)
    return answer


def _rows(text: str) -> Iterator[SlurmJob]:
    for line in text.splitlines():
        number, id, state, uid, user, nodes, count, elapsed, reason, name = line.split("|", 9)
        yield SlurmJob(
            number=number,
            id=id,
            state=state,
            uid=int(uid),
            user=user,
            nodes=nodes,
            size=int(count),
            elapsed=elapsed,
            reason=reason,
            name=name,
        )


def _one(id: str, deadline: float) -> SlurmJob:
    """Return the running job with this id; raise an error that tells why there is none."""
    parts = list(_rows(_squeue(("-r", "-t", "all", "-j", _base(id)), deadline).out))
    # The first part of an array, or of a heterogeneous job, may have the number of the whole.
    rows = [row for row in parts if row.id == id] or [row for row in parts if _base(row.id) == id] or parts
    rows = rows if "_" not in id and "+" not in id else [row for row in rows if row.id == id]
    if not rows:
        raise NoJobError(
            f"Slurm has no job {id}, or has purged its record", "Your running jobs: breakranks ps slurm: or squeue --me"
        )
    running = [row for row in rows if row.state == "RUNNING"]
    if len(running) > 1:
        raise ManyJobsError(
            f"Slurm job {id} has {len(running)} running parts; choose one:\n{jobs_text(running)}",
            f"For example: slurm:{running[0].id}",
        )
    job = (running or rows)[0]
    if not running:
        raise NoJobError(*_not_running(job))
    if job.uid != os.getuid():
        raise UsageError(
            f"Slurm job {id} belongs to {job.user}, and only that user may start a step in it, not even root",
            f"Run it as that user: sudo -u {job.user} {THIS_BREAKRANKS} …; or as root with ssh:{job.nodes}",
        )
    return job


def _base(id: str) -> str:
    return re.split(r"[_+]", id)[0]


def _not_running(job: SlurmJob) -> tuple[str, str]:
    what = f"Slurm job {job.id}"
    match job.state:
        case "PENDING":
            return f"{what} has not started yet: it is pending ({job.reason})", f"See when: squeue --start -j {job.id}"
        case "CONFIGURING":
            return f"{what} is being configured: its nodes are not ready yet", "Try again when squeue shows it as R."
        case "SUSPENDED" | "STOPPED":
            return f"{what} is suspended: its processes are stopped", f"Resume it: scontrol resume {job.number}"
        case "COMPLETING":
            return f"{what} is completing", f"If it does not complete, inspect its nodes: ssh:{job.nodes}"
    return f"{what} has ended: {job.state}", f"See: sacct -j {job.id}; your running jobs: breakranks ps slurm:"


def _step_nodes(job: SlurmJob, step: str, deadline: float) -> str:
    command = ("squeue", "-h", "-s", "-j", job.number, "-o", "%i|%N")
    answer = ask((*without(("SQUEUE_",)), *command), deadline, _REMEDY)
    steps = dict(line.split("|", 1) for line in answer.out.splitlines() if "|" in line)
    for name, nodes in steps.items():
        if name.partition(".")[2] == step:
            return nodes
    names = ", ".join(f"slurm:{name}" for name in steps) or "none"
    raise NoJobError(f"Slurm job {job.id} has no running step {step}", f"Its steps: {names}. For all: slurm:{job.id}")


def _names(nodes: str, deadline: float) -> tuple[str, ...]:
    answer = ask(("scontrol", "show", "hostnames", nodes), deadline, _REMEDY)
    if answer.status:
        raise UsageError(f"scontrol cannot expand the nodes {nodes[:80]}: {answer.err.strip()[:200]}", _REMEDY)
    return checked(answer.out.split(), nodes)


def _states(job: SlurmJob, deadline: float) -> dict[str, NodeState]:
    """Return the state of each node and its reason. They may be unknown, which is not an error."""
    command = ("sinfo", "-h", "-N", "-n", job.nodes, "-o", "%N|%T|%E")
    answer = ask((*without(("SINFO_",)), *command), deadline, _REMEDY)
    rows = (line.split("|", 2) for line in answer.out.splitlines() if line.count("|") >= 2)
    return {name.strip(): NodeState(state.strip(), reason.strip()) for name, state, reason in rows}


def _down(node: str, reason: str) -> LostHost:
    why = f": {reason}" if reason and reason.lower() != "none" else ""
    return LostHost(kind="unreachable", what=f"Slurm has marked it down{why}", remedy=f"See: scontrol show node {node}")


def _srun(job: str, options: TransportOptions) -> tuple[str, ...]:
    """Return the start of an srun that never queues, takes no resources and ends no other step."""
    # srun would take variables of a job that breakranks runs in for its options. The place of the site's Slurm is kept.
    clean = without(("SLURM_", "SRUN_", "SLURMD_", "SBATCH_", "SALLOC_"), keep=("SLURM_CONF", "SLURM_CONF_SERVER"))
    return (
        *(*clean, "srun", f"--jobid={job}", *(("--overlap",) if _wants_overlap(options.deadline) else ())),
        *("--ntasks-per-node=1", "--mem=0", "--gres=none", "--cpu-bind=none", "--mpi=none"),
        *("--kill-on-bad-exit=0", "--wait=0", "--input=all", "--chdir=/", "--job-name=breakranks"),
        f"--immediate={patience(options)}",
    )


def _wants_overlap(deadline: float) -> bool:
    match = re.search(r"(\d+)\.(\d+)", ask(("srun", "--version"), deadline, _REMEDY).out)
    return match is None or (int(match[1]), int(match[2])) >= _OVERLAP


def grouped(nodes: Sequence[str], states: Mapping[str, NodeState]) -> tuple[list[Sequence[str]], dict[str, LostHost]]:
    """Return the groups of nodes that share an srun, and the nodes that are down."""
    lost: dict[str, LostHost] = {}
    sure: list[str] = []
    alone: list[str] = []
    for node in nodes:
        state, reason = states.get(node, NodeState())
        if "down" in state:
            lost[node] = _down(node, reason)
        else:
            (alone if state.endswith("*") else sure).append(node)
    size = max(1, -(-len(sure) // MAX_STEPS))
    together = [sure[start : start + size] for start in range(0, len(sure), size)]
    return [*together, *([node] for node in alone)], lost


def _transport(prefix: Sequence[str], nodes: Sequence[str], remote: Remote) -> Transport:
    count = len(nodes)
    piece = PIECE_BYTES if count == 1 else SHORT_PIECE_BYTES
    shape = (f"--nodes={count}", f"--ntasks={count}", f"--nodelist={','.join(nodes)}")
    return Transport(hosts=tuple(nodes), argv=(*prefix, *shape, *remote(piece)), piece=piece)
