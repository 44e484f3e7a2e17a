"""Which processes are ranks, of which job, and which ranks are missing: rule by rule, from literal tables."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.jobs.found_jobs import FoundJob, LocalJobs, StackOf
from breakranks.jobs.launchers import AGENT, LAUNCHERS, identities, is_helper, is_wrapper, launcher_of, program_names
from breakranks.jobs.local_jobs import find_jobs
from breakranks.observe.process_table import ProcessEntry, ProcessTable

SPAWNED = ("python", "-c", "from multiprocessing.spawn import spawn_main; …", "--multiprocessing-fork")
TORCHRUN = ("python", "/opt/bin/torchrun", "--nproc-per-node=2", "train.py")


class Machine:
    """Builds a process table in few words."""

    def __init__(self) -> None:
        self.entries: list[ProcessEntry] = [ProcessEntry(pid=1, ppid=0, name="init", exe="init", session=1)]
        self.commands: dict[int, tuple[str, ...]] = {}
        self.environs: dict[int, dict[str, str]] = {}
        self.namespaces: dict[tuple[int, str], str] = {}
        self.libraries: dict[int, str] = {}
        self.refused: set[int] = set()
        self.own_pid = 0
        self._pids = itertools.count(100)

    def add(
        self,
        parent: int = 1,
        command: str | tuple[str, ...] = "python train.py",
        env: Mapping[str, object] | None = None,
        *,
        exe: str | None = "python3.11",
        name: str = "python",
        **fields: Any,
    ) -> int:
        pid = next(self._pids)
        fields = {"session": pid, "ticks": pid, "started": float(pid), **fields}
        self.entries.append(ProcessEntry(pid=pid, ppid=parent, name=name, exe=exe, **fields))
        self.commands[pid] = tuple(command.split()) if isinstance(command, str) else command
        self.environs[pid] = {key: str(value) for key, value in (env or {}).items()}
        return pid

    def shell(self, parent: int = 1, command: str = "bash", env: Mapping[str, object] | None = None) -> int:
        return self.add(parent, command, env, exe="bash", name="bash")

    def fork(self, parent: int, *, of: int | None = None, **fields: Any) -> int:
        """A forked child, with the command line and environment of its parent ``of``."""
        origin = of if of is not None else parent
        session = next((entry.session for entry in self.entries if entry.pid == origin), origin)
        return self.add(parent, self.commands[origin], self.environs[origin], forked=True, session=session, **fields)

    def remove(self, pid: int) -> None:
        self.entries = [entry for entry in self.entries if entry.pid != pid]

    def zombie(self, parent: int, name: str = "python") -> int:
        return self.add(parent, (), None, exe=None, name=name, state="Z")

    def table(self) -> ProcessTable:
        return ProcessTable(
            self.entries,
            commands=self.commands,
            environs={pid: env for pid, env in self.environs.items() if pid not in self.refused},
            namespaces=self.namespaces,
            libraries=self.libraries,
            refused=self.refused,
            own_pid=self.own_pid,
        )

    def find(self, stack_of: StackOf | None = None) -> LocalJobs:
        return find_jobs(self.table(), stack_of=stack_of)

    def job(self, stack_of: StackOf | None = None) -> FoundJob:
        (job,) = self.find(stack_of).jobs
        return job

    def torchrun(self, world: int = 2, port: int = 29500, node: int = 0, nodes: int = 1, parent: int = 1) -> int:
        return self.add(parent, TORCHRUN, name="pt_elastic")

    def torch_rank(self, agent: int, rank: int, world: int = 2, *, nodes: int = 1, port: int = 29500) -> int:
        return self.add(agent, "python -u train.py", torch_env(rank, world, nodes=nodes, port=port))


def torch_env(rank: int, world: int, *, nodes: int = 1, port: int = 29500, run: str = "none") -> dict[str, object]:
    local = world // nodes
    return {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank % local,
        "LOCAL_WORLD_SIZE": local,
        "GROUP_RANK": rank // local,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": run,
    }


def slurm_env(rank: int, world: int, job: int = 7, step: int = 0, here: str = "") -> dict[str, object]:
    return {
        "SLURM_PROCID": rank,
        "SLURM_NTASKS": world,
        "SLURM_LOCALID": rank,
        "SLURM_NODEID": 0,
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": step,
        **({"SLURM_GTIDS": here} if here else {}),
    }


def hand_env(rank: int, world: int, port: int = 29500) -> dict[str, object]:
    return {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": port}


def pids(job: FoundJob) -> dict[int, int]:
    return {rank.rank: rank.pid for rank in job.ranks}


def missing(job: FoundJob) -> list[tuple[str, str]]:
    return [(one.ranks, one.reason) for one in job.missing]


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_nothing_here(machine: Machine) -> None:
    machine.add(1, "python -m http.server")
    assert machine.find() == LocalJobs((), ())


# --- who is the rank ---------------------------------------------------------------------------------


def test_everything_below_a_rank_is_its_helper(machine: Machine) -> None:
    agent = machine.torchrun()
    ranks = [machine.torch_rank(agent, number) for number in range(2)]
    for rank in ranks:
        worker = machine.fork(rank)
        machine.add(worker, "python compile.py", machine.environs[rank])
        machine.add(rank, SPAWNED, machine.environs[rank])

    job = machine.job()

    assert pids(job) == dict(enumerate(ranks))
    assert [rank.local_rank for rank in job.ranks] == [0, 1]
    assert (job.job.key, job.job.launcher, job.job.launcher_pid) == ("torchrun-29500", "torchrun", agent)
    assert job.job.world_size == 2
    assert job.missing == ()


def test_a_helper_that_seems_older_is_still_below_the_rank(machine: Machine) -> None:
    agent = machine.torchrun()
    rank = machine.torch_rank(agent, 0, 1)
    machine.add(rank, "python tool.py", machine.environs[rank], ticks=0)  # pids wrap, clocks tick slowly
    assert pids(machine.job()) == {0: rank}


def test_a_launcher_too_old_to_mark_its_ranks(machine: Machine) -> None:
    agent = machine.add(1, "python -m torch.distributed.launch train.py")
    machine.add(agent, "python train.py", hand_env(0, 1))
    assert (machine.job().job.launcher, machine.job().job.launcher_pid) == ("torchrun", agent)


def test_a_shell_around_a_rank_is_not_the_rank(machine: Machine) -> None:
    step = machine.add(1, "slurmstepd:", exe=None, name="slurmstepd")
    ranks = []
    for number in range(2):
        shell = machine.shell(step, "bash -c python", slurm_env(number, 2))
        ranks.append(machine.add(shell, "python train.py", slurm_env(number, 2)))

    job = machine.job()

    assert pids(job) == dict(enumerate(ranks))
    assert (job.job.key, job.job.launcher_pid) == ("slurm-7.0", step)


@pytest.mark.parametrize("wrapper", ["python /opt/bin/conda run python x.py", "python -m breakranks.hosts.host_agent"])
def test_a_python_program_that_only_starts_another_is_not_the_rank(machine: Machine, wrapper: str) -> None:
    outer = machine.add(1, wrapper, hand_env(0, 1))
    rank = machine.add(outer, "python x.py", hand_env(0, 1))
    assert pids(machine.job()) == {0: rank}


def test_a_program_that_embeds_python_is_a_rank_if_a_launcher_started_it(machine: Machine) -> None:
    mpirun = machine.add(1, "mpirun -n 1 lammps", exe="orterun", name="mpirun")
    env = {"OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_SIZE": 1}
    rank = machine.add(mpirun, "lammps", env, exe="lammps", name="lammps")
    assert machine.find().jobs == ()  # no libpython in it
    machine.libraries[rank] = "/usr/lib/libpython3.11.so.1.0"
    assert pids(machine.job()) == {0: rank}


def test_we_are_no_rank_though_our_shell_has_the_variables(machine: Machine) -> None:
    shell = machine.shell(1, env=hand_env(0, 1))
    machine.own_pid = machine.add(shell, "python /opt/bin/breakranks why", hand_env(0, 1))
    machine.add(machine.own_pid, "python sampler.py", hand_env(0, 1))
    assert machine.find().jobs == ()


@pytest.mark.parametrize("looks", [True, False])
def test_an_agent_in_a_container_is_no_rank_nor_is_what_it_starts(looks: bool, machine: Machine) -> None:
    """The environment of `podman exec` has the variables of the rank. ``looks``: the agent itself reads the table."""
    rank = machine.add(1, "python train.py", hand_env(0, 1))
    cleanup = machine.add(machine.shell(1, env=hand_env(0, 1)), ("python3", "-c", f"{AGENT}[]"), hand_env(0, 1))
    agent = machine.fork(cleanup)
    machine.add(agent, "python sampler.py", hand_env(0, 1))
    machine.own_pid = agent if looks else 0
    assert pids(machine.job()) == {0: rank}


def test_a_rank_that_runs_us_is_a_rank(machine: Machine) -> None:
    rank = machine.add(1, "python train.py", hand_env(0, 1))
    machine.own_pid = machine.add(rank, "python -m mytool", hand_env(0, 1))
    assert pids(machine.job()) == {0: rank}


def test_a_job_that_we_started_ourselves_is_found(machine: Machine) -> None:
    machine.own_pid = machine.add(1, "python /opt/bin/breakranks demo")
    agent = machine.torchrun(parent=machine.own_pid)
    ranks = [machine.torch_rank(agent, number) for number in range(2)]
    assert pids(machine.job()) == dict(enumerate(ranks))


# --- launchers in launchers --------------------------------------------------------------------------


def test_torchrun_inside_srun(machine: Machine) -> None:
    step = machine.add(1, "slurmstepd:", exe=None, name="slurmstepd")
    outer = slurm_env(0, 1)
    agent = machine.add(step, TORCHRUN, outer, name="pt_elastic")
    machine.add(agent, SPAWNED, outer)  # the launcher's own helper
    ranks = [machine.add(agent, "python train.py", outer | torch_env(n, 2)) for n in range(2)]

    job = machine.job()

    assert pids(job) == dict(enumerate(ranks))
    assert job.job.launcher == "torchrun"


def test_a_driver_between_srun_and_torchrun_is_no_job(machine: Machine) -> None:
    step = machine.add(1, "slurmstepd:", exe=None, name="slurmstepd")
    outer = slurm_env(0, 1)
    driver = machine.add(step, "python driver.py", outer)
    agent = machine.add(driver, TORCHRUN, outer, name="pt_elastic")
    ranks = [machine.add(agent, "python train.py", outer | torch_env(n, 2)) for n in range(2)]
    assert pids(machine.job()) == dict(enumerate(ranks))


def test_ranks_by_hand_inside_one_slurm_task(machine: Machine) -> None:
    step = machine.add(1, "slurmstepd:", exe=None, name="slurmstepd")
    outer = slurm_env(0, 1)
    shell = machine.shell(step, "bash start.sh", outer)
    ranks = [machine.add(shell, "python train.py", outer | hand_env(n, 2)) for n in range(2)]

    job = machine.job()

    assert pids(job) == dict(enumerate(ranks))
    assert job.job.launcher == "python"


def test_a_script_that_only_copies_slurms_rank_leaves_it_slurms_job(machine: Machine) -> None:
    step = machine.add(1, "slurmstepd:", exe=None, name="slurmstepd")
    for number in range(2):
        shell = machine.shell(step, "bash start.sh", slurm_env(number, 2))
        machine.add(shell, "python train.py", slurm_env(number, 2) | hand_env(number, 2))
    assert machine.job().job.key == "slurm-7.0"


def test_a_rank_left_in_somebodys_shell_does_not_beat_mpirun(machine: Machine) -> None:
    stale = hand_env(0, 1)
    shell = machine.shell(1, env=stale)
    mpirun = machine.add(shell, "mpirun -n 2 python x.py", stale, exe="orterun", name="mpirun")
    for n in range(2):
        env = stale | {"OMPI_COMM_WORLD_RANK": n, "OMPI_COMM_WORLD_SIZE": 2, "PMIX_NAMESPACE": 99}
        machine.add(mpirun, "python x.py", env)

    job = machine.job()

    assert sorted(pids(job)) == [0, 1]
    assert job.job.key == f"mpirun-{mpirun}"


def test_accelerate_is_told_by_its_variables_or_by_its_command(machine: Machine) -> None:
    agent = machine.add(1, "python /opt/bin/accelerate launch train.py", name="pt_elastic")
    env = torch_env(0, 1) | {"ACCELERATE_MIXED_PRECISION": "no"}
    rank = machine.add(agent, "python train.py", env)
    assert machine.job().job.key == "accelerate-29500"
    machine.environs[rank].pop("ACCELERATE_MIXED_PRECISION")
    assert machine.job().job.key == "accelerate-29500"


def test_an_accelerate_variable_in_the_shell_does_not_make_torchrun_accelerate(machine: Machine) -> None:
    agent = machine.torchrun()
    machine.add(agent, "python train.py", torch_env(0, 1) | {"ACCELERATE_LOG_LEVEL": "info"})
    assert machine.job().job.launcher == "torchrun"


def test_deepspeed_two_launchers_deep(machine: Machine) -> None:
    runner = machine.add(1, "python /opt/bin/deepspeed --num_gpus 2 train.py")
    launch = machine.add(runner, "python -u -m deepspeed.launcher.launch --world_info=x train.py")
    for number in range(2):
        env = hand_env(number, 2) | {"CROSS_RANK": 0, "CROSS_SIZE": 1, "LOCAL_SIZE": 2, "LOCAL_RANK": number}
        machine.add(launch, f"python train.py --local_rank={number}", env)

    job = machine.job()

    assert (job.job.key, job.job.launcher_pid) == ("deepspeed-29500", launch)
    assert sorted(pids(job)) == [0, 1]


def test_msrun_scheduler_is_no_rank(machine: Machine) -> None:
    agent = machine.add(1, "python /opt/bin/msrun --worker_num 3 --local_worker_num 3 x.py")
    env = {"RANK_SIZE": 3, "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": 8118}
    machine.add(agent, "python x.py", env | {"RANK_ID": 0, "MS_ROLE": "MS_SCHED"})
    workers = [machine.add(agent, "python x.py", env | {"RANK_ID": n, "MS_ROLE": "MS_WORKER"}) for n in range(2)]

    job = machine.job()

    assert pids(job) == dict(enumerate(workers))
    assert job.job.key == "msrun-8118"
    assert missing(job) == [("2", "exited")]


# --- which job ---------------------------------------------------------------------------------------


def test_two_jobs_do_not_mix(machine: Machine) -> None:
    for port in (29500, 29501):
        agent = machine.torchrun()
        for number in range(2):
            machine.torch_rank(agent, number, port=port)
    jobs = machine.find().jobs
    assert [job.job.key for job in jobs] == ["torchrun-29500", "torchrun-29501"]
    assert [sorted(pids(job)) for job in jobs] == [[0, 1], [0, 1]]


def test_two_agents_of_one_world_are_one_job(machine: Machine) -> None:
    agents = [machine.torchrun(), machine.torchrun()]
    ranks = [machine.torch_rank(agents[number // 2], number, 4, nodes=2) for number in range(4)]
    job = machine.job()
    assert pids(job) == dict(enumerate(ranks))
    assert job.missing == ()


def test_one_port_in_two_containers_is_two_jobs_with_two_keys(machine: Machine) -> None:
    for container in ("net:[1]", "net:[2]"):
        agent = machine.torchrun()
        for number in range(2):
            machine.namespaces[machine.torch_rank(agent, number), "net"] = container
    keys = [job.job.key for job in machine.find().jobs]
    assert len(set(keys)) == 2
    assert all(key.startswith("torchrun-29500-") for key in keys)


def test_half_a_job_in_each_of_two_containers_is_two_jobs(machine: Machine) -> None:
    for number, container in enumerate(("net:[1]", "net:[2]")):
        agent = machine.torchrun()
        machine.namespaces[machine.torch_rank(agent, number), "net"] = container
    assert [missing(job) for job in machine.find().jobs] == [[("1", "exited")], [("0", "exited")]]


def test_localhost_by_any_name_is_one_place(machine: Machine) -> None:
    shell = machine.shell()
    for number, name in enumerate(("localhost", "127.0.0.1", "::1")):
        machine.add(shell, "python x.py", hand_env(number, 3) | {"MASTER_ADDR": name})
    assert sorted(pids(machine.job())) == [0, 1, 2]


def test_without_a_master_those_of_one_shell_belong_together(machine: Machine) -> None:
    for _ in range(2):
        shell = machine.shell()
        for number in range(2):
            machine.add(shell, "python x.py", {"RANK": number, "WORLD_SIZE": 2})
    assert [sorted(pids(job)) for job in machine.find().jobs] == [[0, 1], [0, 1]]


def test_the_command_is_shown_without_its_secrets(machine: Machine) -> None:
    machine.add(1, "python train.py --hf-token abc", hand_env(0, 1))
    assert machine.job().job.command == ("python", "train.py", "--hf-token", "***")


# --- who is missing ----------------------------------------------------------------------------------


def test_a_rank_whose_launcher_is_here_has_exited(machine: Machine) -> None:
    agent = machine.torchrun()
    machine.torch_rank(agent, 0, 3)
    machine.torch_rank(agent, 2, 3)
    job = machine.job()
    assert missing(job) == [("1", "exited")]
    assert str(agent) in job.missing[0].detail


def test_ranks_of_other_nodes_are_elsewhere(machine: Machine) -> None:
    agent = machine.torchrun()
    machine.torch_rank(agent, 4, 8, nodes=2)
    machine.torch_rank(agent, 5, 8, nodes=2)
    machine.torch_rank(agent, 7, 8, nodes=2)
    assert missing(machine.job()) == [("0-3", "elsewhere"), ("6", "exited")]


def test_ranks_by_hand_that_are_not_here_are_absent(machine: Machine) -> None:
    machine.add(machine.shell(), "python x.py", hand_env(1, 4))
    assert missing(machine.job()) == [("0,2-3", "absent")]


def test_slurm_says_which_tasks_are_here(machine: Machine) -> None:
    step = machine.add(1, "slurmstepd:", exe=None, name="slurmstepd")
    machine.add(step, "python x.py", slurm_env(0, 6, here="0,2,4"))
    machine.add(step, "python x.py", slurm_env(4, 6, here="0,2,4"))
    assert missing(machine.job()) == [("1,3,5", "elsewhere"), ("2", "exited")]


def test_mpi_ranks_dealt_out_by_node_are_not_guessed(machine: Machine) -> None:
    mpirun = machine.add(1, "mpirun", exe="orterun", name="mpirun")
    for local, rank in ((0, 0), (1, 2)):
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        values = (rank, 6, local, 3)
        machine.add(mpirun, "python x.py", {f"OMPI_COMM_WORLD_{n}": v for n, v in zip(names, values, strict=True)})
    job = machine.job()
    assert missing(job) == [("1,3-5", "elsewhere")]
    assert "all but 1, which ran on this host" in job.missing[0].detail


def test_a_batch_scripts_own_python_is_no_task(machine: Machine) -> None:
    env = slurm_env(0, 8)
    del env["SLURM_STEP_ID"]
    machine.add(machine.shell(1, "bash job.sh", env), "python prepare.py", env)
    assert machine.find().jobs == ()


# --- orphans and zombies -----------------------------------------------------------------------------


def test_a_forked_worker_of_a_dead_rank_is_not_the_rank(machine: Machine) -> None:
    agent = machine.torchrun()
    machine.torch_rank(agent, 0)
    dead = machine.torch_rank(agent, 1)
    orphans = [machine.fork(1, of=dead), machine.fork(1, of=dead)]
    machine.remove(dead)

    job = machine.job()

    assert sorted(pids(job)) == [0]
    assert missing(job) == [("1", "exited")]
    assert f"{orphans[0]}-{orphans[1]}" in job.missing[0].detail


def test_an_executed_orphan_is_told_by_the_living_launcher(machine: Machine) -> None:
    agent = machine.torchrun()
    machine.torch_rank(agent, 0)
    orphan = machine.add(1, "python build.py", torch_env(1, 2))
    job = machine.job()
    assert missing(job) == [("1", "exited")]
    assert str(orphan) in job.missing[0].detail


def test_ranks_outlive_their_launcher(machine: Machine) -> None:
    ranks = [machine.torch_rank(1, number) for number in range(2)]
    job = machine.job()
    assert pids(job) == dict(enumerate(ranks))
    assert job.job.launcher_pid == 0


def test_one_agents_ranks_outlive_it_while_the_other_agent_lives(machine: Machine) -> None:
    agent = machine.torchrun()
    ranks = [machine.torch_rank(agent, n, 4, nodes=2) for n in range(2)]
    ranks += [machine.torch_rank(1, n, 4, nodes=2) for n in (2, 3)]
    assert pids(machine.job()) == dict(enumerate(ranks))


def test_an_orphan_of_another_nodes_rank_is_told_by_its_session(machine: Machine) -> None:
    agent = machine.torchrun()
    for number in range(2):
        machine.torch_rank(agent, number, 4, nodes=2)
    machine.add(1, "python build.py", torch_env(3, 4, nodes=2), session=77)
    job = machine.job()
    assert sorted(pids(job)) == [0, 1]
    assert {rank: one.reason for one in job.missing for rank in _unfold(one.ranks)} == {2: "exited", 3: "exited"}


def test_helpers_of_a_job_that_has_ended_are_a_problem_not_a_job(machine: Machine) -> None:
    dead = machine.add(1, "python train.py", hand_env(1, 2))
    orphan = machine.fork(1, of=dead)
    machine.remove(dead)
    found = machine.find()
    assert found.jobs == ()
    (problem,) = found.problems
    assert str(orphan) in problem.what and f"kill {orphan}" in problem.remedy


def test_a_spawned_orphan_by_hand_is_no_rank(machine: Machine) -> None:
    machine.add(machine.shell(), "python x.py", hand_env(0, 2))
    machine.add(1, SPAWNED, hand_env(1, 2))
    assert missing(machine.job()) == [("1", "exited")]


@pytest.mark.parametrize("name", ["python", "pt_main_thread"])
def test_a_zombie_is_the_one_rank_that_lacks_a_process(machine: Machine, name: str) -> None:
    agent = machine.torchrun()
    first = machine.torch_rank(agent, 0)
    dead = machine.zombie(agent, name)
    job = machine.job()
    assert pids(job) == {0: first, 1: dead}
    assert job.missing == ()


def test_a_zombie_by_hand_is_the_one_rank_that_lacks_a_process(machine: Machine) -> None:
    shell = machine.shell()
    first = machine.add(shell, "python x.py", hand_env(0, 2))
    dead = machine.zombie(shell)
    assert pids(machine.job()) == {0: first, 1: dead}


def test_two_zombies_are_not_guessed_at(machine: Machine) -> None:
    agent = machine.torchrun()
    machine.torch_rank(agent, 0, 3)
    machine.zombie(agent)
    machine.zombie(agent)
    job = machine.job()
    assert sorted(pids(job)) == [0]
    assert missing(job) == [("1-2", "exited")]


def test_somebody_elses_zombie_is_no_rank(machine: Machine) -> None:
    agent = machine.torchrun()
    machine.torch_rank(agent, 0)
    machine.zombie(agent, "nvidia-smi")
    machine.zombie(1)
    assert missing(machine.job()) == [("1", "exited")]


# --- Lightning ---------------------------------------------------------------------------------------


def lightning_env(local: int, world: int, node: int = 0) -> dict[str, object]:
    return {
        "LOCAL_RANK": local,
        "NODE_RANK": node,
        "WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 4000,
    }


def test_lightning_rank_0_is_the_parent(machine: Machine) -> None:
    parent = machine.add(machine.shell(), "python train.py")
    machine.fork(parent)
    machine.add(parent, "python tool.py", lightning_env(0, 3))  # a helper that got the parent's own variables
    children = [machine.add(parent, "python /home/me/train.py", lightning_env(n, 3)) for n in (1, 2)]

    job = machine.job()

    assert pids(job) == {0: parent, 1: children[0], 2: children[1]}
    assert (job.job.key, job.job.launcher, job.missing) == ("lightning-4000", "lightning", ())


def test_lightning_on_the_second_node(machine: Machine) -> None:
    parent = machine.add(machine.shell(), "python train.py")
    machine.add(parent, "python /home/me/train.py", lightning_env(1, 4, node=1))
    job = machine.job()
    assert sorted(pids(job)) == [2, 3]
    assert missing(job) == [("0-1", "absent")]


def test_lightning_a_child_that_died(machine: Machine) -> None:
    parent = machine.add(machine.shell(), "python train.py")
    for local in (1, 2):
        machine.add(parent, "python /home/me/train.py", lightning_env(local, 4))
    assert missing(machine.job()) == [("3", "exited")]


# --- no variables at all -----------------------------------------------------------------------------


def wrapped(number: int) -> list[dict[str, Any]]:
    frame = {
        "name": "_wrap",
        "filename": "/x/site-packages/torch/multiprocessing/spawn.py",
        "locals": [{"name": "fn", "repr": "<f>"}, {"name": "i", "repr": str(number)}],
    }
    return [{"frames": [{"name": "f", "filename": "train.py", "locals": None}, frame]}]


def test_spawn_is_settled_by_the_stacks(machine: Machine) -> None:
    parent = machine.add(machine.shell(), "python train.py")
    machine.add(parent, "python -c from multiprocessing.resource_tracker import main")
    ranks = [machine.add(parent, SPAWNED) for _ in range(2)]
    loader = machine.add(ranks[0], SPAWNED)
    stacks: dict[int, Any] = {ranks[0]: wrapped(1), ranks[1]: wrapped(0)}
    starting = {"name": "start_processes", "filename": "torch/multiprocessing/spawn.py"}
    stacks[parent] = [{"frames": [starting | {"locals": [{"name": "nprocs", "repr": "3"}]}]}]
    asked = []

    def stack_of(pid: int) -> Sequence[Mapping[str, Any]] | None:
        asked.append(pid)
        return stacks[pid]  # type: ignore[no-any-return]

    job = machine.job(stack_of)

    assert pids(job) == {0: ranks[1], 1: ranks[0]}
    assert (job.job.key, job.job.world_size) == (f"spawn-{parent}", 3)
    assert missing(job) == [("2", "exited")]
    assert loader not in asked


def test_spawned_children_that_only_start_are_not_called_dead(machine: Machine) -> None:
    parent = machine.add(machine.shell(), "python train.py")
    first, second = machine.add(parent, SPAWNED), machine.add(parent, SPAWNED)
    frame = {"name": "start_processes", "filename": "torch/multiprocessing/spawn.py"}
    stacks: dict[int, Any] = {
        first: wrapped(0),
        second: [{"frames": [{"name": "_find_and_load", "filename": "<frozen importlib>"}]}],
        parent: [{"frames": [frame | {"locals": [{"name": "nprocs", "repr": "2"}]}]}],
    }
    job = machine.job(stacks.__getitem__)
    assert missing(job) == [("1", "absent")]
    assert str(second) in job.missing[0].detail


def test_one_program_a_node_that_spawns_the_real_ranks(machine: Machine) -> None:
    step = machine.add(1, "slurmstepd:", exe=None, name="slurmstepd")
    driver = machine.add(step, "python main.py", slurm_env(0, 1))
    ranks = [machine.add(driver, SPAWNED, slurm_env(0, 1)) for _ in range(2)]
    stacks: dict[int, Any] = {driver: [{"frames": []}], ranks[0]: wrapped(0), ranks[1]: wrapped(1)}

    assert pids(machine.job(stacks.__getitem__)) == dict(enumerate(ranks))
    # Without stacks, or with a plain pool of workers as its children, the program itself is the rank.
    assert pids(machine.job()) == {0: driver}
    assert pids(machine.job(lambda pid: [{"frames": []}])) == {0: driver}


def test_a_plain_pool_of_processes_is_no_job(machine: Machine) -> None:
    parent = machine.add(machine.shell(), "python serve.py")
    for _ in range(3):
        machine.add(parent, SPAWNED)
        machine.fork(parent)
    assert machine.find(lambda pid: [{"frames": []}]).jobs == ()
    assert machine.find().jobs == ()


def test_what_we_spawn_ourselves_is_no_job(machine: Machine) -> None:
    machine.own_pid = machine.add(machine.shell(), "python -m mytool")
    ranks = [machine.add(machine.own_pid, SPAWNED) for _ in range(2)]
    assert machine.find(lambda pid: wrapped(ranks.index(pid))).jobs == ()


def test_spawn_without_stacks_is_numbered_by_start_and_says_so(machine: Machine) -> None:
    parent = machine.add(machine.shell(), "python train.py")
    machine.libraries[parent] = "/x/torch/lib/libtorch_python.so"
    ranks = [machine.add(parent, SPAWNED) for _ in range(2)]
    machine.add(parent, SPAWNED, name="pt_data_worker")
    for stack_of in (None, lambda pid: None):
        found = machine.find(stack_of)
        assert pids(found.jobs[0]) == dict(enumerate(ranks))
        assert "start time" in found.problems[0].what


def test_what_a_rank_spawns_is_never_asked(machine: Machine) -> None:
    agent = machine.torchrun()
    rank = machine.torch_rank(agent, 0, 1)
    for _ in range(2):
        machine.add(rank, SPAWNED, machine.environs[rank])

    def never(pid: int) -> None:
        raise AssertionError(f"asked for {pid}")

    assert len(machine.find(never).jobs) == 1


def test_ray_actors_at_work(machine: Machine) -> None:
    raylet = machine.add(1, "/x/raylet", exe="raylet", name="raylet")
    actors = [machine.add(raylet, ("ray::Trainer.step",), name="ray::Trainer.st") for _ in range(2)]
    machine.add(raylet, ("ray::IDLE",), name="ray::IDLE")
    found = machine.find()
    assert [job.job.key for job in found.jobs] == ["ray-Trainer"]
    assert pids(found.jobs[0]) == dict(enumerate(actors))
    assert "start time" in found.problems[0].what


# --- what cannot be seen -----------------------------------------------------------------------------


def test_other_users_python_is_counted_and_a_daemon_is_not(machine: Machine) -> None:
    shell = machine.shell()
    for _ in range(20):
        machine.refused.add(machine.add(shell, "/usr/bin/python3 x.py", exe=None, uid=4_000_000_001))
    machine.refused.add(machine.add(1, "/usr/bin/python3 /usr/sbin/daemon", exe=None, uid=4_000_000_002))
    machine.refused.add(machine.add(shell, "nginx", exe=None, uid=4_000_000_002))
    (problem,) = machine.find().problems
    assert problem.what.startswith("20 Python processes of user 4000000001")
    assert "and 12 more" in problem.what
    assert "4000000001" in problem.remedy


def test_ranks_in_a_container_are_found_and_it_is_said(machine: Machine) -> None:
    machine.own_pid = machine.add(1, "python /opt/bin/breakranks ps")
    rank = machine.add(1, "python x.py", hand_env(0, 1))
    machine.namespaces = {(machine.own_pid, "pid"): "pid:[1]", (rank, "pid"): "pid:[2]"}
    found = machine.find()
    assert pids(found.jobs[0]) == {0: rank}
    assert "container" in found.problems[0].what and f"nsenter -t {rank}" in found.problems[0].remedy


# --- the table of launchers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("torchrun --nproc-per-node 2 x.py", "torchrun"),
        ("/v/bin/python3.11 /v/bin/torchrun x.py", "torchrun"),
        ("python -u -m torch.distributed.run x.py", "torchrun"),
        ("python -X dev -m torch.distributed.launch x.py", "torchrun"),
        ("python /v/lib/python3.11/site-packages/torch/distributed/run.py x.py", "torchrun"),
        ("python /v/bin/accelerate launch x.py", "accelerate"),
        ("python /v/bin/accelerate config", None),
        ("python -m accelerate.commands.launch x.py", "accelerate"),
        ("python /v/bin/deepspeed x.py", "deepspeed"),
        ("python -u -m deepspeed.launcher.launch --world_info=e30= x.py", "deepspeed"),
        ("/usr/bin/mpirun -n 2 python x.py", "mpirun"),
        ("slurmstepd: [12.0]", "slurm"),
        ("srun -n2 python x.py", "slurm"),
        ("/opt/intel/mpiexec.hydra -n 2", "mpich"),
        ("python /v/bin/msrun x.py", "msrun"),
        ("python torchrun_like.py", None),
        ("python train.py torchrun", None),
        ("python -c import_torch", None),
        ("", None),
    ],
)
def test_launcher_of(command: str, launcher: str | None) -> None:
    row = launcher_of(tuple(command.split()))
    assert (row.name if row else None) == launcher


def test_names_of_programs() -> None:
    assert is_wrapper(("python", "/opt/bin/breakranks", "why"))
    assert not is_wrapper(("python", "breakranks_demo.py"))
    assert is_helper(SPAWNED)
    assert not is_helper(("python", "train.py"))


@given(st.lists(st.sampled_from(["python", "-m", "-c", "-u", "-W", "-", "x.py", "", "-mx", "launch"])))
def test_any_command_line_can_be_read(words: list[str]) -> None:
    program_names(tuple(words))
    launcher_of(tuple(words))


_NAMES = sorted({name for row in LAUNCHERS for name in (*row.rank, *row.world, *row.local_rank, *row.marks, *row.job)})


@given(st.dictionaries(st.sampled_from(_NAMES), st.sampled_from(["0", "1", "-1", "", "x", "²", "9" * 30, " 2 "])))
def test_any_environment_can_be_read(environ: dict[str, str]) -> None:
    for identity in identities(environ):
        assert 1 <= identity.world < 10**9
        assert identity.rank >= 0 or identity.local_rank >= 0


def test_a_world_beyond_reason_is_none() -> None:
    assert identities({"RANK": "0", "WORLD_SIZE": "9" * 7}) == []


@given(st.lists(st.tuples(st.integers(2, 9), st.integers(1, 9), st.booleans()), max_size=8))
def test_parents_in_a_circle_do_not_hang_it(rows: list[tuple[int, int, bool]]) -> None:
    env = {name: str(value) for name, value in (torch_env(0, 1) | slurm_env(0, 1)).items()}
    entries = {pid: ProcessEntry(pid=pid, ppid=parent, name="python", exe="python3") for pid, parent, _ in rows}
    find_jobs(ProcessTable(entries.values(), environs={pid: env for pid, _, named in rows if named}))


@given(st.data())
def test_every_rank_is_found_or_missing_and_none_is_both(data: st.DataObject) -> None:
    """Whichever processes end, the found ranks and the missing ones together are the world."""
    machine = Machine()
    nodes, local = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    world = nodes * local
    agents = [machine.torchrun() for _ in range(nodes)]
    ranks = {n: machine.torch_rank(agents[n // local], n, world, nodes=nodes) for n in range(world)}
    workers = {n: machine.fork(pid) for n, pid in ranks.items() if data.draw(st.booleans())}
    dead = data.draw(st.sets(st.sampled_from(sorted(ranks)), max_size=world - 1))
    for number in dead:
        machine.remove(ranks[number])
        if number in workers:
            machine.entries = [e._replace(ppid=1) if e.pid == workers[number] else e for e in machine.entries]

    job = machine.job()

    alive = {number: pid for number, pid in ranks.items() if number not in dead}
    assert pids(job) == alive
    told = [int(n) for one in job.missing for n in _unfold(one.ranks)]
    assert sorted(told) == sorted(dead)
    for one in job.missing:
        # Only ranks with traces on this machine are reported as exited.
        for number in _unfold(one.ranks):
            node_seen = any(n // local == number // local for n in (*alive, *(set(workers) & dead)))
            assert (one.reason == "exited") == node_seen


def _unfold(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
