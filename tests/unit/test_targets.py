"""The target grammar, and the selection of a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.errors import BreakranksError, ManyJobsError, NoJobError, ProcessError, UsageError
from breakranks.jobs.found_jobs import FoundJob, FoundRank, LocalJobs
from breakranks.jobs.targets import Hosts, Local, Pids, SnapshotFile, job_of_pids, parse_target, select
from breakranks.observe.process_table import ProcessEntry, ProcessTable
from breakranks.snapshot.model import Job, Problem
from support.values import replace

# --- grammar -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, "", "local", " local "])
def test_local(text: str | None) -> None:
    assert parse_target(text) == Local()


@pytest.mark.parametrize(("text", "pids"), [("pid:12", (12,)), ("pid:12,13", (12, 13)), ("pid:13, 12,13", (13, 12))])
def test_pids_keep_their_order(text: str, pids: tuple[int, ...]) -> None:
    assert parse_target(text) == Pids(pids)


@given(st.lists(st.integers(1, 2**22), min_size=1, unique=True))
def test_pids_round(pids: list[int]) -> None:
    assert parse_target("pid:" + ",".join(map(str, pids))) == Pids(tuple(pids))


@pytest.mark.parametrize("text", ["pid:", "pid:x", "pid:1,", "pid:-1", "pid:0", "pid:99999999", "pid:٣", "pid:1-4"])
def test_bad_pids(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert "pid:4242,4243" in caught.value.help


@pytest.mark.parametrize("text", ["hang.brk", "./x", "a/b", "/tmp/pid:1"])
def test_a_snapshot_file_by_its_looks(text: str) -> None:
    assert parse_target(text) == SnapshotFile(text)


def test_a_snapshot_file_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "monday").write_text("")
    monkeypatch.chdir(tmp_path)
    assert parse_target("monday") == SnapshotFile("monday")
    with pytest.raises(UsageError):
        parse_target("tuesday")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ssh:node-[5,8]", Hosts("ssh", "node-[5,8]")),
        ("ssh:me@n[1-2]", Hosts("ssh", "me@n[1-2]")),
        ("ssh: n1,n2 ", Hosts("ssh", "n1,n2")),
        ("ssh:@rack1", Hosts("ssh", "@rack1")),
        ("ssh:::1", Hosts("ssh", "::1")),
        ("pdsh:n[1-4]", Hosts("pdsh", "n[1-4]")),
        ("pdsh:", Hosts("pdsh", "")),
        ("slurm:2180718", Hosts("slurm", "2180718")),
        ("slurm:2180718.0", Hosts("slurm", "2180718.0")),
        ("slurm:7_3.batch", Hosts("slurm", "7_3.batch")),
        ("slurm:7+1", Hosts("slurm", "7+1")),
        ("slurm:", Hosts("slurm", "")),
        ("mpi:/etc/hosts", Hosts("mpi", "/etc/hosts")),
        ("mpi:my hosts", Hosts("mpi", "my hosts")),
    ],
)
def test_hosts(text: str, expected: Hosts) -> None:
    assert parse_target(text) == expected


@pytest.mark.parametrize(
    ("text", "template", "where"),
    [
        ("exec:docker exec -i {host}@c1,c2", "docker exec -i {host}", "c1,c2"),
        ("exec:docker exec -i@c1", "docker exec -i", "c1"),
        ("exec:kubectl exec -i {host} -- @w-[0-3]", "kubectl exec -i {host} --", "w-[0-3]"),
        ("exec:ssh me@{host} {command}@n[1-4]", "ssh me@{host} {command}", "n[1-4]"),
        ("exec:run {host}@@rack1", "run {host}", "@rack1"),
        ("exec:run {host}@n1,@rack1!@old", "run {host}", "n1,@rack1!@old"),
        ("exec:ssh me@{host}@@rack1,@rack2", "ssh me@{host}", "@rack1,@rack2"),
    ],
)
def test_a_template_ends_where_its_hosts_begin(text: str, template: str, where: str) -> None:
    assert parse_target(text) == Hosts("exec", where, template)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ssh:", "ssh: has nothing after the colon"),
        ("ssh: \t ", "ssh: has nothing after the colon"),
        ("mpi:", "mpi: has nothing after the colon"),
        ("exec:", "exec: has nothing after the colon"),
        ("ssh:n1\nn2", "line break"),
        ("ssh:n1\x1b[2J", "control character"),
        ("slurm:abc", "'abc' is not a Slurm job"),
        ("slurm:-1", "'-1' is not a Slurm job"),
        ("slurm:12.x", "'12.x' is not a Slurm job"),
        ("slurm:12;id", "is not a Slurm job"),
        ("slurm:" + "9" * 4000, "is not a Slurm job"),
        ("exec:docker exec -i", "no @hosts at its end"),
        ("exec:docker@", "no @hosts at its end"),
        ("exec:@n1", "has no command"),
        ("exec:@@rack", "has no command"),
        ("exec:run 'x@n1", "No closing quotation"),
        ("exec:{host} run@n1", "does not begin with a program"),
        ("exec:'' @n1", "does not begin with a program"),
        ("exec:run {command}@n1", "no {host}"),
    ],
)
def test_bad_hosts_are_answered_with_how_to_write_them(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert message in caught.value.message
    assert f"{text.partition(':')[0]}:" in caught.value.help
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("text", ["garbage", "ssh", "Local", "foo:bar", "--", "4242"])
def test_garbage_is_answered_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert text in caught.value.message
    assert "pid:4242" in caught.value.help and ".brk" in caught.value.help and "ssh:n[1-4]" in caught.value.help


@given(
    st.one_of(st.text(), st.builds("{}:{}".format, st.sampled_from(["ssh", "pdsh", "slurm", "mpi", "exec"]), st.text()))
)
def test_any_text_is_a_target_or_an_error_of_ours(text: str) -> None:
    try:
        parse_target(text.replace("\0", ""))
    except BreakranksError as error:
        assert error.help


# --- which job ---------------------------------------------------------------------------------------


def job(key: str, *pids: int) -> FoundJob:
    made = Job(key=key, launcher=key.split("-")[0], world_size=4, started=0.0, command=("train.py", "--lr", "1"))
    return FoundJob(made, tuple(FoundRank(rank, pid) for rank, pid in enumerate(pids)))


ONE, TWO, MPI = job("torchrun-29500", 11, 12), job("torchrun-29501", 21), job("mpirun-99", 31)


def test_the_only_job_is_the_one() -> None:
    assert select(LocalJobs((ONE,))) is ONE


def test_many_jobs_are_listed_a_line_each() -> None:
    with pytest.raises(ManyJobsError) as caught:
        select(LocalJobs((ONE, TWO, MPI)))
    lines = caught.value.message.splitlines()
    assert len(lines) == 4
    for part in ("torchrun-29500", "torchrun, world 4", "ranks here 0-1", "since ", "train.py --lr 1"):
        assert part in lines[1]
    assert "--job mpirun-99" in caught.value.help


def test_a_list_of_jobs_shows_their_scripts() -> None:
    folder = "/srv/shared/environments/experiment-12/.venv/bin"
    command = (f"{folder}/python", "-u", f"{folder}/torchrun", "--nproc-per-node=8", "/home/someone/train.py", "--lr")
    one = ONE._replace(job=replace(ONE.job, command=command))
    with pytest.raises(ManyJobsError) as caught:
        select(LocalJobs((one, TWO)))
    assert caught.value.message.splitlines()[1].endswith(", torchrun --nproc-per-node=8 /home/someone/train.py --lr")


def test_no_job_says_what_was_looked_for_and_what_was_not_seen() -> None:
    with pytest.raises(NoJobError) as caught:
        select(LocalJobs((), (Problem("3 processes of ann are closed", "sudo -u ann breakranks why"),)))
    for part in ("torchrun", "WORLD_SIZE", "pid:4242", "3 processes of ann", "sudo -u ann"):
        assert part in caught.value.help


@pytest.mark.parametrize(("key", "expected"), [("torchrun-29501", TWO), ("mpi", MPI), ("m", MPI), ("mpirun-99", MPI)])
def test_a_key_or_how_it_starts(key: str, expected: FoundJob) -> None:
    assert select(LocalJobs((ONE, TWO, MPI)), key) is expected


def test_a_whole_key_wins_over_one_that_it_starts() -> None:
    longer = job("mpirun-991", 41)
    assert select(LocalJobs((longer, MPI)), "mpirun-99") is MPI


def test_a_key_that_fits_several_or_none() -> None:
    with pytest.raises(ManyJobsError) as many:
        select(LocalJobs((ONE, TWO, MPI)), "torchrun")
    assert "mpirun" not in many.value.message
    with pytest.raises(NoJobError) as none:
        select(LocalJobs((ONE, TWO, MPI)), "slurm")
    assert "slurm" in none.value.message and "torchrun-29501" in none.value.message
    with pytest.raises(NoJobError):
        select(LocalJobs(()), "slurm")


# --- pid: --------------------------------------------------------------------------------------------

TABLE = ProcessTable(
    [
        ProcessEntry(pid=1, ppid=0, name="init", exe="init"),
        ProcessEntry(pid=11, ppid=1, name="python", exe="python3", started=5.0),
        ProcessEntry(pid=12, ppid=1, name="python", exe="python3", started=4.0),
        ProcessEntry(pid=13, ppid=1, name="bash", exe="bash"),
        ProcessEntry(pid=14, ppid=13, name="python", exe="python3"),
        ProcessEntry(pid=15, ppid=1, name="python", state="Z"),
        ProcessEntry(pid=16, ppid=1, name="python", uid=4_000_000_001),
        ProcessEntry(pid=17, ppid=1, name="sleep", exe="sleep"),
    ],
    commands={11: ("python", "a.py", "--token", "x"), 16: ("python3", "b.py")},
    refused=(16,),
)


def test_any_python_processes_are_ranks_in_the_order_given() -> None:
    made = job_of_pids(TABLE, (11, 14, 12))
    assert made.ranks == (FoundRank(0, 11), FoundRank(1, 14), FoundRank(2, 12))
    assert (made.job.launcher, made.job.world_size, made.missing) == ("python", 3, ())
    assert made.job.command == ("python", "a.py", "--token", "***")


def test_ranks_of_a_found_job_keep_their_numbers() -> None:
    whole = job("torchrun-29500", 98, 11, 12, 99)
    made = job_of_pids(TABLE, (12, 11), found=LocalJobs((whole,)))
    assert [(rank.rank, rank.pid) for rank in made.ranks] == [(1, 11), (2, 12)]
    assert made.job is whole.job


def test_ranks_of_two_jobs_are_numbered_anew() -> None:
    jobs = (job("torchrun-1", 98, 11), job("torchrun-2", 97, 12))
    made = job_of_pids(TABLE, (12, 11), found=LocalJobs(jobs))
    assert [(rank.rank, rank.pid) for rank in made.ranks] == [(0, 12), (1, 11)]


@pytest.mark.parametrize(
    ("pid", "message", "help"),
    [
        (999, "no process 999", "ended"),
        (13, "not Python", "pid:14"),
        (17, "not Python", "ps -ef"),
        (15, "zombie", "pid 1"),
        (16, "4000000001", "sudo -u 4000000001"),
    ],
)
def test_a_process_that_cannot_be_looked_at(pid: int, message: str, help: str) -> None:
    with pytest.raises(ProcessError) as caught:
        job_of_pids(TABLE, (11, pid), found=LocalJobs(()))
    assert str(pid) in caught.value.message
    assert message in caught.value.message
    assert help in caught.value.help


def test_no_pids() -> None:
    with pytest.raises(UsageError):
        job_of_pids(TABLE, ())
