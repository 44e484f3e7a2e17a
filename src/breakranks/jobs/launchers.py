"""How each launcher numbers its ranks: a table with one row per launcher.

To support another launcher, add a row. Rows are in order of preference: if the environment of a process fits two rows
with the same rank, the upper one is the launcher (accelerate runs torchrun in its own process). For nested launchers,
:mod:`breakranks.jobs.rank_processes` finds the *innermost* one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple


class Launcher(NamedTuple):
    """The variables that a launcher sets for its ranks, and how its own processes are recognized.

    ``rank``, ``local_rank``, ``world``, ``local_world``, ``node`` and ``here`` name variables; the first that is set
    counts. ``here`` lists the ranks of this host. All of ``marks`` must be set, none of ``absent``, and one variable
    must start with ``mark_prefix``. ``not_ranks`` has variables and values of processes that are not ranks. The ``job``
    variables together identify a job; those in ``key`` make its short name. ``programs`` are the programs of its own
    processes (see :func:`program_names`), ``names`` their names in the kernel.
    """

    name: str
    rank: tuple[str, ...] = ()
    world: tuple[str, ...] = ()
    local_rank: tuple[str, ...] = ()
    local_world: tuple[str, ...] = ()
    node: tuple[str, ...] = ()
    here: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    mark_prefix: str = ""
    absent: tuple[str, ...] = ()
    not_ranks: tuple[tuple[str, str], ...] = ()
    programs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    # The parent of a rank is the launcher even if its command line is unknown (elastic_launch called from a user's own
    # program). This is not so for a rank that was started by hand from a shell.
    parent_launches: bool = False
    # Every rank leads a session of its own, so a process of another session is a helper.
    own_session: bool = False
    # No launcher: the user set the variables. A launcher that gives the same rank is preferred.
    by_hand: bool = False
    # Local rank 0 of a host is the parent itself, without any of these variables.
    parent_is_rank: bool = False


_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_TORCH = Launcher(
    name="torchrun",
    rank=("RANK",),
    world=("WORLD_SIZE",),
    local_rank=("LOCAL_RANK",),
    local_world=("LOCAL_WORLD_SIZE",),
    node=("GROUP_RANK",),
    job=("TORCHELASTIC_RUN_ID", *_MASTER),
    key=("MASTER_PORT",),
    marks=("TORCHELASTIC_RUN_ID",),
    programs=("torchrun", "torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic"),
    names=("pt_elastic",),
    parent_launches=True,
    own_session=True,
)

LAUNCHERS: tuple[Launcher, ...] = (
    _TORCH._replace(
        name="accelerate",
        marks=(),
        mark_prefix="ACCELERATE_",
        programs=("accelerate launch", "accelerate-launch", "accelerate.commands.launch"),
        names=(),
        own_session=False,  # it may also start deepspeed's launcher
    ),
    Launcher(
        name="deepspeed",
        rank=("RANK",),
        world=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world=("LOCAL_SIZE",),
        node=("CROSS_RANK",),
        job=_MASTER,
        key=("MASTER_PORT",),
        marks=("CROSS_RANK", "CROSS_SIZE"),
        programs=("deepspeed", "deepspeed.launcher.launch", "deepspeed.launcher.runner", "ds"),
        parent_launches=True,
    ),
    _TORCH,
    Launcher(
        name="msrun",
        rank=("RANK_ID", "MS_NODE_ID"),
        world=("RANK_SIZE", "MS_WORKER_NUM"),
        job=("MS_SCHED_HOST", "MS_SCHED_PORT"),
        key=("MS_SCHED_PORT",),
        marks=("MS_ROLE",),
        not_ranks=(("MS_ROLE", "MS_SCHED"),),
        programs=("msrun", "mindspore.parallel.cluster.run"),
        parent_launches=True,
    ),
    Launcher(
        name="lightning",
        rank=(),  # node * ranks per node + local rank
        world=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        node=("NODE_RANK",),
        job=_MASTER,
        key=("MASTER_PORT",),
        marks=("NODE_RANK", "LOCAL_RANK", *_MASTER),
        absent=("RANK",),
        parent_launches=True,
        parent_is_rank=True,
    ),
    Launcher(
        name="mpirun",  # Open MPI
        rank=("OMPI_COMM_WORLD_RANK",),
        world=("OMPI_COMM_WORLD_SIZE",),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
        local_world=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        programs=("mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prte", "horovodrun"),
        parent_launches=True,
    ),
    Launcher(
        name="slurm",
        rank=("SLURM_PROCID",),
        world=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        local_rank=("SLURM_LOCALID",),
        node=("SLURM_NODEID",),
        here=("SLURM_GTIDS",),
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        key=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        # A batch script also has SLURM_PROCID=0, but no step: a process that it starts itself is not a task.
        marks=("SLURM_STEP_ID",),
        programs=("srun", "slurmstepd"),
        names=("slurmstepd", "srun"),
        parent_launches=True,
    ),
    Launcher(
        name="mpich",  # Hydra: MPICH, Intel MPI, MVAPICH
        rank=("PMI_RANK",),
        world=("PMI_SIZE",),
        local_rank=("MPI_LOCALRANKID",),
        local_world=("MPI_LOCALNRANKS",),
        programs=("mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_proxy", "mpirun.mpich", "mpiexec.mpich"),
        parent_launches=True,
    ),
    Launcher(
        name="python",
        rank=("RANK",),
        world=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world=("LOCAL_WORLD_SIZE",),
        node=("GROUP_RANK", "NODE_RANK"),
        job=_MASTER,
        key=("MASTER_PORT",),
        by_hand=True,
    ),
)

# These set no variables for a rank: breakranks.jobs.unnumbered_jobs inspects their processes instead.
SPAWN = Launcher(name="spawn", parent_launches=True)
RAY = Launcher(name="ray", names=("raylet",), programs=("raylet",), parent_launches=True)

# Python programs that only start another one: they have the variables of a rank, but are never the rank.
_WRAPPERS = ("conda run", "mamba run", "hatch run", "pdm run", "tox", "nox", "breakranks")
_PROGRAMS = {program: row for row in (*LAUNCHERS, RAY) for program in row.programs}
_NAMES = {name: row for row in (*LAUNCHERS, RAY) for name in row.names}

# Processes that a rank starts, by a word of their command lines.
_HELPERS = (
    "--multiprocessing-fork",
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
    "multiprocessing.forkserver",
    "_inductor/compile_worker",
    "debugpy/adapter",
)


class Identity(NamedTuple):
    """What a process is, by its environment. ``rank`` is -1 if only its local rank and node are known."""

    row: Launcher
    rank: int
    world: int
    local_rank: int = -1
    local_world: int = 0
    node: int = -1
    here: tuple[int, ...] = ()
    job: tuple[tuple[str, str], ...] = ()
    is_rank: bool = True


def identities(environ: Mapping[str, str]) -> list[Identity]:
    """The identity of a process under each launcher whose variables it has, in the order of the table."""
    found = []
    for row in LAUNCHERS:
        identity = _identity(row, environ)
        if identity is not None:
            found.append(identity)
    return found


def _identity(row: Launcher, environ: Mapping[str, str]) -> Identity | None:
    world = _number(environ, row.world)
    local_rank = _number(environ, row.local_rank)
    rank = _number(environ, row.rank)
    if world < 1 or (rank if row.rank else local_rank) < 0:
        return None
    if not all(name in environ for name in row.marks) or any(name in environ for name in row.absent):
        return None
    if row.mark_prefix and not any(name.startswith(row.mark_prefix) for name in environ):
        return None
    here = _value(environ, row.here)
    return Identity(
        row=row,
        rank=rank,
        world=world,
        local_rank=local_rank,
        local_world=max(_number(environ, row.local_world), 0),
        node=_number(environ, row.node),
        here=tuple(int(part) for part in here.split(",") if part.isdigit()),
        job=tuple((name, environ[name]) for name in row.job if name in environ),
        is_rank=not any(environ.get(name) == value for name, value in row.not_ranks),
    )


def _value(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if name in environ:
            return environ[name]
    return ""


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int:
    value = _value(environ, names).strip()
    # A million ranks or more are a mistake, and would take seconds to list as missing.
    return int(value) if value.isascii() and value.isdigit() and len(value) < 7 else -1


def launcher_of(command: tuple[str, ...], name: str = "") -> Launcher | None:
    """The launcher that a process belongs to as one of its own, by its command line or its name in the kernel."""
    for program in program_names(command):
        if program in _PROGRAMS:
            return _PROGRAMS[program]
    return _NAMES.get(name)


AGENT = "import sys,posix;sys.path="  # the start of the code that `hosts.bootstrap` passes to Python


def is_wrapper(command: tuple[str, ...]) -> bool:
    """Whether a Python process only starts another program in its own environment."""
    return any(program.split(".")[0] in _WRAPPERS for program in program_names(command))


def is_helper(command: tuple[str, ...]) -> bool:
    """Whether a command line is that of a helper which Python or torch starts for a rank."""
    return any(mark in word for word in command for mark in _HELPERS)


def is_agent(command: tuple[str, ...]) -> bool:
    """Whether it is an agent of breakranks, which a launcher may start as it starts ranks."""
    return any(word.startswith(AGENT) for word in command)


def is_spawned(command: tuple[str, ...]) -> bool:
    """Whether a process was started by ``multiprocessing`` with the spawn method."""
    return "--multiprocessing-fork" in command


def program_names(command: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the program that a command line runs, as a table may list it.

    >>> program_names(("/usr/bin/python3", "-u", "-m", "torch.distributed.run", "train.py"))
    ('torch.distributed.run', 'torch.distributed.run train.py')
    >>> program_names(("python", "/opt/bin/accelerate", "launch", "x.py"))
    ('accelerate', 'accelerate launch')
    """
    if not command:
        return ()
    words = list(command)
    name = os.path.basename(words[0])
    if name.startswith(("python", "pypy")):
        rest, name = _python_program(words[1:])
    else:
        # A process that set its own title has it in one word: "slurmstepd: [12.0]".
        rest, name = words[1:], name.split(":")[0].split(" ")[0]
    if not name:
        return ()
    return (name, f"{name} {rest[0]}") if rest else (name,)


def _python_program(words: list[str]) -> tuple[list[str], str]:
    """The words after the program that an interpreter runs, and the program itself: a module or a script."""
    while words:
        word = words.pop(0)
        if word == "-m" and words:
            return words[1:], words[0]
        if word.startswith("-m") and len(word) > 2:
            return words, word[2:]
        if word == "-c" or word == "-":
            return words, ""
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            words = words[1:]
        elif not word.startswith("-"):
            return words, _script_name(word)
    return [], ""


def _script_name(path: str) -> str:
    # `python …/site-packages/torch/distributed/run.py` is the module torch.distributed.run.
    _, found, module = path.rpartition("/site-packages/")
    if found and module.endswith(".py"):
        return module[:-3].replace("/", ".").removesuffix(".__main__")
    return os.path.basename(path)
