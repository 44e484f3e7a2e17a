"""The parts of one job on several hosts are merged; two similar jobs stay separate."""

from __future__ import annotations

from collections.abc import Iterable

from breakranks.jobs.found_jobs import FoundJob, FoundRank, LocalJobs
from breakranks.jobs.merge_jobs import ClusterJob, join, problems
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Host, Job, Missing, Problem

COMMAND = ("torchrun", "--nnodes=2", "train.py")


def part(
    ranks: Iterable[int],
    world: int = 4,
    *,
    ids: dict[str, str] | None = None,
    launcher: str = "torchrun",
    key: str = "torchrun-29500",
    command: tuple[str, ...] = COMMAND,
    started: float = 100.0,
    missing: tuple[Missing, ...] | None = None,
    pid: int = 7,
) -> LocalJobs:
    mine = sorted(ranks)
    if missing is None:
        rest = str(RankSet(range(world)) - RankSet(mine))
        missing = (Missing(ranks=rest, reason="elsewhere"),) if rest else ()
    job = Job(
        key=key,
        launcher=launcher,
        world_size=world,
        started=started,
        command=command,
        ids=ids if ids is not None else run(),
        launcher_pid=pid,
    )
    return LocalJobs((FoundJob(job, tuple(FoundRank(r, 100 + i, i) for i, r in enumerate(mine)), missing),))


def run(address: str = "n1", port: str = "29500", name: str = "none") -> dict[str, str]:
    return {"TORCHELASTIC_RUN_ID": name, "MASTER_ADDR": address, "MASTER_PORT": port}


def parts(jobs: tuple[ClusterJob, ...]) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.job.key, tuple(one.parts)) for one in jobs]


def test_one_job_on_two_hosts() -> None:
    (one,) = join({"n2": part([2, 3], started=90.0, pid=8), "n1": part([0, 1])})
    assert (one.job.key, one.job.started, one.job.launcher_pid) == ("torchrun-29500", 90.0, 7)
    assert list(one.parts) == ["n1", "n2"] and one.missing == ()
    assert [rank.rank for rank in one.ranks] == [0, 1, 2, 3]
    # Both hosts have a process 100: a rank is found by its host.
    assert [(rank.pid, one.host_of(rank.rank)) for rank in one.ranks] == [
        (100, "n1"),
        (101, "n1"),
        (100, "n2"),
        (101, "n2"),
    ]


def test_other_addresses_ports_and_worlds_are_other_jobs() -> None:
    found = join(
        {
            "n1": part([0, 1]),
            "n2": part([2, 3]),
            "n3": part([0, 1], ids=run("n3")),
            "n4": part([2, 3], ids=run("n3")),
            "n5": part([2, 3], ids=run(port="29501"), key="torchrun-29501"),
            "n6": part([4, 5], 6),
        }
    )
    assert parts(found) == [
        ("torchrun-29500-n1", ("n1", "n2")),
        ("torchrun-29500-n3", ("n3", "n4")),
        ("torchrun-29500-n6", ("n6",)),
        ("torchrun-29501", ("n5",)),
    ]


def test_loopback_on_two_hosts_is_two_jobs_if_both_have_the_same_ranks() -> None:
    local = run("127.0.0.1")
    found = join({"n1": part([0, 1], 2, ids=local), "n2": part([0, 1], 2, ids=run("localhost"))})
    assert parts(found) == [("torchrun-29500-n1", ("n1",)), ("torchrun-29500-n2", ("n2",))]
    (one,) = join({"n1": part([0, 1], ids=local), "n2": part([2, 3], ids=local)})
    assert set(one.parts) == {"n1", "n2"}


def test_a_rank_that_exited_is_claimed_too() -> None:
    gone = (Missing(ranks="0", reason="exited", detail="x"),)
    found = join({"n1": part([1], 2, ids=run("::1"), missing=gone), "n2": part([0], 2, ids=run("::1"))})
    assert len(found) == 2


def test_an_address_and_a_name_of_one_host_are_the_same() -> None:
    hosts = [Host(name="n1", addresses=("10.0.0.1",)), Host(name="n2")]
    found = {"n1": part([0, 1], ids=run("n1.cluster")), "n2": part([2, 3], ids=run("10.0.0.1"))}
    assert len(join(found, hosts=hosts)) == 1
    assert len(join(found)) == 2
    by_hand = {"n1": part([0, 1], ids=run("localhost")), "n2": part([2, 3], ids=run("10.0.0.1"))}
    assert len(join(by_hand)) == 1


def test_mpirun_is_named_by_its_namespace() -> None:
    def mpi(ranks: list[int], name: str, pid: int, command: str) -> LocalJobs:
        return part(ranks, ids={"PMIX_NAMESPACE": name}, launcher="mpirun", key=f"mpirun-{pid}", command=(command,))

    found = join(
        {
            "n1": mpi([0, 2], "77", 10, "mpirun"),
            "n2": mpi([1, 3], "77", 20, "orted"),
            "n3": mpi([1, 3], "88", 30, "orted"),
        }
    )
    assert parts(found) == [("mpirun-10", ("n1", "n2")), ("mpirun-30", ("n3",))]
    assert len(join({"n1": mpi([0, 1], "77", 10, "mpirun"), "n2": mpi([2, 3], "88", 20, "mpirun")})) == 2


def test_hydra_gives_no_names_but_its_proxies_say_whose_they_are() -> None:
    def proxy(ranks: list[int], port: str, number: int) -> LocalJobs:
        command = ("/usr/bin/hydra_pmi_proxy", "--control-port", port, "--proxy-id", str(number))
        return part(ranks, ids={}, launcher="mpich", key=f"mpich-{40 + number}", command=command)

    hosts = {"n1": proxy([0, 1], "n1:400", 0), "n2": proxy([2, 3], "n1:400", 1), "n3": proxy([2, 3], "n3:411", 1)}
    assert parts(join(hosts)) == [("mpich-40", ("n1", "n2")), ("mpich-41", ("n3",))]
    assert len(join({"n1": proxy([0, 1], "n1:400", 0), "n2": proxy([2, 3], "n2:411", 1)})) == 2


def test_without_any_name_only_what_was_started_together_is_one() -> None:
    def mpi(ranks: list[int], command: str, started: float) -> LocalJobs:
        return part(ranks, ids={}, launcher="mpirun", key="mpirun-9", command=(command,), started=started)

    assert len(join({"n1": mpi([0, 1], "mpirun", 100.0), "n2": mpi([2, 3], "orted", 101.0)})) == 1
    assert len(join({"n1": mpi([0, 1], "mpirun", 100.0), "n2": mpi([2, 3], "orted", 9000.0)})) == 2
    fast = [Host(name="n1"), Host(name="n2", clock=8900.0)]
    assert len(join({"n1": mpi([0, 1], "mpirun", 100.0), "n2": mpi([2, 3], "orted", 9000.0)}, hosts=fast)) == 1


def test_spawn_on_two_hosts_is_two_jobs_with_keys_of_their_own() -> None:
    def spawn() -> LocalJobs:
        return part([0, 1], 2, ids={}, launcher="spawn", key="spawn-50", command=("python", "train.py"))

    assert parts(join({"n1": spawn(), "n2": spawn()})) == [("spawn-50-n1", ("n1",)), ("spawn-50-n2", ("n2",))]


def test_a_launcher_that_waits_belongs_to_the_job_of_the_same_command() -> None:
    waits = part(
        [],
        ids={},
        key="torchrun-33",
        command=("torchrun", "--nnodes=2", "--node-rank=1", "train.py"),
        missing=(
            Missing(ranks="0-3", reason="absent", detail="the launcher has not started any rank yet", not_started=True),
        ),
    )
    (one,) = join({"n1": part([0, 1], command=("torchrun", "--nnodes=2", "--node-rank=0", "train.py")), "n2": waits})
    assert list(one.parts) == ["n1", "n2"]
    assert [(m.ranks, m.reason) for m in one.missing] == [("2-3", "absent")]
    # Two waiting launchers are one job even if no host has ranks yet.
    (both,) = join({"n1": waits, "n2": waits})
    assert list(both.parts) == ["n1", "n2"] and both.ranks == ()


def test_ranks_of_a_host_that_could_not_be_seen_are_unreachable() -> None:
    hosts = [Host(name="n1"), Host(name="n2", state="refused", reason="permission denied")]
    (one,) = join({"n1": part([0, 1])}, hosts=hosts)
    assert [(m.ranks, m.reason, m.detail) for m in one.missing] == [("2-3", "unreachable", "n2: permission denied")]


def test_many_hosts_are_no_matter() -> None:
    found = {f"n{h}": part(range(h * 8, h * 8 + 8), 16000, missing=()) for h in range(2000)}
    (one,) = join(found)
    assert len(one.ranks) == 16000 and one.missing == ()


def test_problems_of_several_hosts() -> None:
    same = Problem("root lacks a capability", "sudo")
    found = {"n1": LocalJobs((), (same,)), "n2": LocalJobs((), (same, Problem("pid 3 is a helper")))}
    assert problems(found) == (
        Problem("n[1-2]: root lacks a capability", "sudo", hosts=("n1", "n2")),
        Problem("n2: pid 3 is a helper", hosts=("n2",)),
    )
