"""Many hosts' snapshots into one: as good as if one host had all the ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.errors import SnapshotError
from breakranks.explain.verdict import explain
from breakranks.observe.dump_snapshot import load
from breakranks.rankset import RankSet
from breakranks.show.wording.finding_wording import evidence_lines, summary
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.introspection import Introspection
from breakranks.snapshot.merge_hosts import merge
from breakranks.snapshot.merge_recorders import RecorderMerger
from breakranks.snapshot.model import Host, Job, Missing, Problem, Process, Rank, Snapshot, StackTable
from breakranks.snapshot.recorder_tables import Entry
from breakranks.snapshot.snapshot_file import fault, pack, unpack
from breakranks.snapshot.unseen_ranks import missing_of
from support.values import replace

from .jobs import LONG_SLEEP, World, own
from .recordings import Call, pending
from .test_recorded_calls import four, recorded

DATA = Path(__file__).parents[1] / "data" / "flight"


def on_hosts(snapshot: Snapshot, per_host: int) -> Snapshot:
    """The same snapshot, if its ranks were on several hosts."""
    ranks = tuple(replace(rank, host=f"n{rank.rank // per_host + 1}") for rank in snapshot.ranks)
    names = dict.fromkeys(rank.host for rank in ranks)
    return replace(snapshot, ranks=ranks, hosts=tuple(Host(name=name) for name in names))


def split(snapshot: Snapshot) -> list[Snapshot]:
    """What each host would have seen: tables of its own in an order of its own, and groups of which it knows only its
    own ranks."""
    return [_part(snapshot, host, turned=at % 2 == 1) for at, host in enumerate(snapshot.hosts)]


def _part(snapshot: Snapshot, host: Host, *, turned: bool) -> Snapshot:
    table = StackTable()
    rows = {}
    for row in reversed(range(len(snapshot.stacks))) if turned else range(len(snapshot.stacks)):
        rows[row] = table.add(snapshot.stack(row))
    joiner = RecorderMerger(table)
    operations = [*snapshot.operations[:1], *reversed(snapshot.operations[1:])] if turned else snapshot.operations
    for one in operations:
        joiner.table.operation(one)

    def process(one: Process) -> Process:
        samples = tuple(
            replace(
                sample,
                threads=tuple(replace(t, stack=rows[t.stack], native=rows[t.native]) for t in sample.threads),
            )
            for sample in one.samples
        )
        return replace(one, samples=samples, children=tuple(map(process, one.children)))

    mine = [rank for rank in snapshot.ranks if rank.host == host.name]
    here = RankSet(rank.rank for rank in mine)
    groups = [
        replace(one, ranks=str(RankSet.parse(one.ranks) & here)) if one.source == "seen" else one
        for one in snapshot.groups
    ]
    ranks = tuple(
        replace(
            rank,
            process=process(rank.process),
            recorder=None
            if rank.recorder is None
            else joiner.add(rank.recorder, snapshot.operations, groups, snapshot.frames, snapshot.stacks),
        )
        for rank in mine
    )
    elsewhere = RankSet.span(0, snapshot.job.world_size) - here
    return replace(
        snapshot,
        ranks=ranks,
        frames=tuple(table.frames),
        stacks=tuple(table.stacks),
        groups=tuple(joiner.table.groups),
        operations=tuple(joiner.table.operations) if snapshot.operations else (),
        hosts=(host,),
        missing=(Missing(ranks=str(elsewhere), reason="elsewhere"),),
    )


def merged(snapshot: Snapshot) -> Snapshot:
    return merge(split(snapshot), hosts=snapshot.hosts)


# --- as good as one host -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", sorted(path.name for path in DATA.iterdir() if path.is_dir()))
def test_real_recorders_of_two_hosts_explain_the_same(case: str) -> None:
    whole = on_hosts(load(str(DATA / case)), 2)
    one = merged(whole)
    assert fault(one) == ""
    assert explain(one) == explain(whole)


def behind(rank: int, group: str = "default_pg") -> Snapshot:
    """Four gloo ranks, of which one has not come; gloo does not say who is in a group."""
    calls = {r: [Call(group)] * 5 + ([pending(group)] if r != rank else []) for r in range(4)}
    return recorded(four(rank), calls, {group: range(4)})


def crossed() -> Snapshot:
    """Two groups over two hosts, entered in opposite orders."""
    groups = {"default_pg": range(4), "mesh_a": (0, 2), "mesh_b": (0, 2)}
    calls = {
        0: [pending("mesh_a")],
        1: [pending("default_pg")],
        2: [pending("mesh_b")],
        3: [pending("default_pg")],
    }
    world = World()
    for rank in range(4):
        world.add(world.in_all_reduce(line=20 + rank))
    return recorded(world, calls, groups)


@pytest.mark.parametrize("snapshot", [behind(0), behind(3), behind(2, "mesh_tp"), crossed()])
def test_live_ranks_of_two_hosts_explain_the_same(snapshot: Snapshot) -> None:
    whole = on_hosts(snapshot, 2)
    one = merged(whole)
    assert one.groups == whole.groups
    assert explain(one) == explain(whole)
    assert explain(one).verdict is not None


def test_a_group_of_which_nobody_says_the_members_has_those_of_all_hosts() -> None:
    whole = on_hosts(behind(2, "mesh_tp"), 2)
    groups = tuple(replace(one, ranks="0-3", source="seen") for one in whole.groups)
    parts = split(replace(whole, groups=groups))
    assert [one.ranks for part in parts for one in part.groups] == ["0-1", "2-3"]
    assert [(one.ranks, one.source) for one in merge(parts, hosts=whole.hosts).groups] == [("0-3", "seen")]


def test_what_is_equal_is_kept_once() -> None:
    world = World()
    for _ in range(64):
        world.add(world.in_all_reduce())
    whole = on_hosts(world.snapshot(), 1)
    one = merged(whole)
    assert len(one.hosts) == 64
    assert (len(one.frames), len(one.stacks)) == (2, 2)
    assert unpack(pack(one)) == one


# --- clocks ------------------------------------------------------------------------------------------------


def test_times_become_those_of_the_controller() -> None:
    whole = on_hosts(behind(2), 2)
    process = replace(whole.ranks[3].process, started=900.0, inside=Introspection(time=1000.5))
    whole = replace(whole, ranks=(*whole.ranks[:3], replace(whole.ranks[3], process=process)))
    first, second = split(whole)
    hosts = (whole.hosts[0], replace(whole.hosts[1], clock=100.0, clock_error=0.01))
    one = merge([first, _by_a_fast_clock(second, 100.0)], hosts=hosts)
    assert one.time == pytest.approx(whole.time)
    for moved, rank in zip(one.ranks, whole.ranks, strict=True):
        assert _times(moved) == pytest.approx(_times(rank))
    found, expected = explain(replace(one, hosts=whole.hosts)).verdict, explain(whole).verdict
    assert found is not None and expected is not None
    assert (summary(found), evidence_lines(found)) == (summary(expected), evidence_lines(expected))


def _times(rank: Rank) -> list[float]:
    recorder, process = rank.recorder, rank.process
    assert recorder is not None
    entries = [entry for track in recorder.tracks for entry in (*track.pending, track.last) if entry is not None]
    return [
        recorder.time,
        recorder.newest,
        *(track.since for track in recorder.tracks),
        *(entry.created for entry in entries),
        *(sample.time for sample in process.samples),
        process.started,
        process.inside.time if process.inside is not None else 0.0,
    ]


def _by_a_fast_clock(part: Snapshot, by: float) -> Snapshot:
    """A part as a host would have sent it whose clock is ahead."""

    def entry(one: Entry) -> Entry:
        return replace(one, created=one.created + by)

    def rank(one: Rank) -> Rank:
        recorder, process, inside = one.recorder, one.process, one.process.inside
        assert recorder is not None
        tracks = tuple(
            replace(
                track,
                since=track.since + by,
                pending=tuple(map(entry, track.pending)),
                last=entry(track.last) if track.last is not None else None,
            )
            for track in recorder.tracks
        )
        return replace(
            one,
            recorder=replace(recorder, time=recorder.time + by, newest=recorder.newest + by, tracks=tracks),
            process=replace(
                process,
                started=process.started + by if process.started else 0.0,
                inside=replace(inside, time=inside.time + by) if inside is not None else None,
                samples=tuple(replace(sample, time=sample.time + by) for sample in process.samples),
            ),
        )

    return replace(part, time=part.time + by, ranks=tuple(map(rank, part.ranks)))


def test_a_clock_that_differs_less_than_it_is_known_is_left_alone() -> None:
    whole = on_hosts(behind(2), 2)
    hosts = [replace(host, clock=0.02, clock_error=0.05) for host in whole.hosts]
    assert merge(split(whole), hosts=hosts).ranks == whole.ranks


# --- jobs and launchers ------------------------------------------------------------------------------------


def test_the_launcher_is_that_of_rank_0() -> None:
    whole = on_hosts(behind(2), 2)
    first, second = split(whole)
    first = replace(
        first,
        launcher=Process(pid=10, parent=1, command=("torchrun",)),
        job=replace(first.job, launcher_pid=10, started=9.0),
    )
    second = replace(
        second,
        launcher=Process(pid=20, parent=1, command=("x",)),
        job=replace(second.job, launcher_pid=20, started=5.0),
    )
    one = merge([second, first], hosts=whole.hosts)
    assert one.launcher is not None and one.launcher.pid == 10
    assert (one.job.launcher_pid, one.job.started) == (10, 5.0)

    # Of a job without ranks, a launcher that lives.
    dead = replace(first, ranks=(), launcher=replace(first.launcher, state="Z"))
    waits = [dead, replace(second, ranks=())]
    for parts in (waits, [replace(dead, launcher=None), waits[1]]):
        one = merge(parts, hosts=whole.hosts)
        assert one.launcher is not None and one.launcher.pid == 20
    named = merge([second, first], hosts=whole.hosts, job=Job(key="mine", launcher="torchrun", world_size=4))
    assert named.job.key == "mine"


def test_a_rank_that_two_hosts_claim_counts_once() -> None:
    whole = on_hosts(behind(2), 2)
    first, second = split(whole)
    double = replace(second, ranks=(replace(first.ranks[0], host="n2"), *second.ranks))
    one = merge([first, double], hosts=whole.hosts)
    assert [rank.rank for rank in one.ranks] == [0, 1, 2, 3]
    assert one.ranks[0].host == "n1"
    assert "rank 0 is on n1 (pid 100) and on n2 (pid 100)" in one.problems[0].what


def test_problems_name_their_hosts() -> None:
    whole = on_hosts(behind(2), 2)
    first, second = split(whole)
    same, mine = Problem("py-spy is too old"), Problem("process 7 cannot be read", "sudo")
    one = merge([replace(first, problems=(same,)), replace(second, problems=(same, mine))], hosts=whole.hosts)
    assert one.problems == (
        Problem("n[1-2]: py-spy is too old", hosts=("n1", "n2")),
        Problem("n2: process 7 cannot be read", "sudo", hosts=("n2",)),
    )


def test_hosts_without_a_part_are_kept_only_if_nothing_is_known_of_them() -> None:
    whole = on_hosts(behind(2), 2)
    parts = [replace(part, hosts=(replace(part.hosts[0], cpus=8),)) for part in split(whole)]
    told = replace(whole.hosts[0], clock=3.0, clock_error=0.1, addresses=("10.0.0.1",))
    down = Host(name="n9", state="timed-out", reason="no answer in 10 s")
    lost = replace(whole.hosts[1], state="timed-out", reason="no answer")
    one = merge(parts, hosts=[told, lost, Host(name="idle"), down])
    assert one.hosts[0] == replace(told, cpus=8)
    assert [(host.name, host.state, host.cpus) for host in one.hosts] == [
        ("n1", "seen", 8),
        ("n2", "lost", 8),
        ("n9", "timed-out", 0),
    ]


def test_no_part_at_all_is_a_job_without_ranks() -> None:
    one = merge([], hosts=[Host(name="n1", state="refused")], job=Job(key="slurm-7.0", launcher="slurm", world_size=2))
    assert one.ranks == () and one.missing[0].reason == "unreachable"


# --- who is missing ----------------------------------------------------------------------------------------

ELSEWHERE = (Missing(ranks="2-3", reason="elsewhere"),)


def said(missing: Sequence[Missing]) -> list[tuple[str, str, str]]:
    return [(one.ranks, one.reason, one.detail) for one in missing]


def test_ranks_of_another_host_are_not_missing() -> None:
    told = [("n1", ELSEWHERE), ("n2", (Missing(ranks="0-1", reason="elsewhere"),))]
    assert missing_of(told, RankSet(range(4)), 4, [Host(name="n1"), Host(name="n2")]) == ()


def test_the_host_that_it_ran_on_knows_best_why_a_rank_is_gone() -> None:
    told = [
        ("n1", (Missing(ranks="2-3", reason="elsewhere"),)),
        ("n2", (Missing(ranks="0-1", reason="elsewhere"), Missing(ranks="3", reason="exited", detail="x"))),
    ]
    lost = Host(name="n3", state="timed-out", reason="no answer in 10 s")
    found = missing_of(told, RankSet(range(3)), 6, [Host(name="n1"), Host(name="n2"), lost])
    assert said(found) == [("3", "exited", "on n2: x"), ("4-5", "unreachable", "n3: no answer in 10 s")]


def test_ranks_that_no_host_of_the_target_has() -> None:
    told = [
        ("n1", (Missing(ranks="2-7", reason="elsewhere"),)),
        ("n2", (Missing(ranks="0-1,4-7", reason="elsewhere"),)),
    ]
    assert said(missing_of(told, RankSet(range(4)), 8, [])) == [("4-7", "elsewhere", "not in the target")]
    by_hand = [("n1", (Missing(ranks="2-7", reason="absent"),)), ("n2", (Missing(ranks="0-1,4-7", reason="absent"),))]
    assert said(missing_of(by_hand, RankSet(range(4)), 8, [])) == [("4-7", "absent", "")]


def test_a_host_that_lost_some_it_cannot_name() -> None:
    # mpirun --map-by node: which rank was here nobody can tell, only how many.
    gone = (Missing(ranks="1,3", reason="elsewhere", detail="all but 1, which ran on this host and exited", exited=1),)
    told = [("n1", gone), ("n2", (Missing(ranks="0,2", reason="elsewhere"),))]
    assert said(missing_of(told, RankSet([0, 2, 1]), 4, [])) == [("3", "exited", "it ran on n1")]


def test_a_launcher_that_waits() -> None:
    waits = Missing(ranks="0-3", reason="absent", detail="its launcher has started no rank yet", not_started=True)
    told = [("n1", ELSEWHERE), ("n2", (waits,))]
    assert said(missing_of(told, RankSet(range(2)), 4, [])) == [
        ("2-3", "absent", "its launcher has started no rank yet (on n2)")
    ]


def test_ranks_that_nobody_asked_for_are_not_missing() -> None:
    whole = on_hosts(behind(2), 2)
    first, _ = split(whole)
    some = replace(first, ranks=first.ranks[:1])
    places = {rank.rank: rank.host for rank in whole.ranks}
    assert merge([some], hosts=whole.hosts, missing=(), places=places).missing == ()
    down = (whole.hosts[0], replace(whole.hosts[1], state="timed-out", reason="no answer"))
    one = merge([some], hosts=down, missing=(), places=places)
    assert said(one.missing) == [("2-3", "unreachable", "n2: no answer")]


# --- files and names ---------------------------------------------------------------------------------------


def test_a_file_with_a_clock_without_end_is_refused() -> None:
    whole = on_hosts(behind(2), 2)
    bad = replace(whole, hosts=(Host(name="n1", clock=float("nan")),))
    with pytest.raises(SnapshotError, match="n1 that is not a number"):
        unpack(pack(bad))


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
        (["n10", "n9"], "n[9-10]"),
        (["n01", "n02", "n10"], "n[01-02,10]"),
        (["n09", "n10", "n11"], "n[09-11]"),
        (["n1", "n01"], "n[1,01]"),
        (["n1.x.org", "n2.x.org"], "n[1-2].x.org"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["r1n1", "r1n2", "r2n1", "r2n2"], "r[1-2]n[1-2]"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.[1-2]"),
        (["b", "a", "b"], "a,b"),
        (["fe80::1", "fe80::2"], "fe80::1,fe80::2"),
        ([], ""),
    ],
)
def test_names_are_folded(names: list[str], folded: str) -> None:
    assert fold(names) == folded


def _unfold(text: str) -> set[str]:
    found = set()
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        pieces = re.split(r"\[([^\]]*)\]", part)
        choices = [[piece] if at % 2 == 0 else _numbers(piece) for at, piece in enumerate(pieces)]
        found |= {"".join(chosen) for chosen in product(*choices)}
    return found


def _numbers(text: str) -> list[str]:
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += [str(n).zfill(len(first)) for n in range(int(first), int(last or first) + 1)]
    return found


@given(st.sets(st.from_regex(r"(gpu|n)-?[0-9]{1,3}(r[0-9]{1,2})?", fullmatch=True), max_size=30))
def test_folded_names_are_the_same_names(names: set[str]) -> None:
    assert _unfold(fold(names)) == names


def test_a_sleeping_rank_is_named_with_its_host() -> None:
    world = World()
    for rank in range(4):
        world.add(world.in_all_reduce() if rank != 2 else world.thread(own("load", 5), call=LONG_SLEEP))
    found = explain(merged(on_hosts(world.snapshot(), 2))).verdict
    assert found is not None and summary(found).startswith("rank 2 (n2, pid 102) has not entered")
