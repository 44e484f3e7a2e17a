"""The exact output of ``breakranks collectives`` for literal recorders, and of other commands for dumps."""

from __future__ import annotations

import json as stdlib_json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.backend.local_backend import LocalBackend
from breakranks.cli import collectives as command
from breakranks.cli import main
from breakranks.errors import UsageError
from breakranks.explain.collectives import call_facts
from breakranks.explain.collectives.collective_progress import CollectiveProgress
from breakranks.explain.collectives.group_progress import standings
from breakranks.explain.collectives.root_causes import causes
from breakranks.explain.verdict import explain
from breakranks.jobs.found_jobs import FoundJob, LocalJobs
from breakranks.rankset import RankSet
from breakranks.show.call_names import strided
from breakranks.show.collective_lines import collectives_lines
from breakranks.show.collectives_json import collectives_json
from breakranks.show.json_output import to_text
from breakranks.show.terminal_text import TerminalStyle, render
from breakranks.show.verdict_lines import why_lines
from breakranks.show.wording import value_wording
from breakranks.snapshot.merge_hosts import of_hosts
from breakranks.snapshot.model import Frame, Job, Missing, Problem, Process, Rank, Snapshot
from breakranks.snapshot.recorder_tables import Entry, Group, Operation, Recorder, Track, Transfer, pack_rows
from breakranks.snapshot.snapshot_file import save
from support.values import replace

NOW = 1_760_000_100.0
LOOK = TerminalStyle(now=NOW + 86400.0, width=100)
REDUCE, GATHER, SCATTER, EXCHANGE = 1, 2, 3, 4
OPERATIONS = (
    Operation(""),
    Operation("all_reduce", "[1024]", "[1024]", "Float"),
    Operation("_all_gather_base", "[4096]", "[32768]", "BFloat16"),
    Operation("_reduce_scatter_base", "[65536]", "[8192]", "BFloat16"),
    Operation("all_to_all", "[3,8]", "[5,8]", "Float"),
    Operation("all_to_all", "[7,8]", "[9,8]", "Float"),
    Operation("all_reduce", "[2048]", "[2048]", "Float"),
)
FRAMES = (Frame("main", "/home/me/train.py", 30), Frame("step", "/home/me/train.py", 12))
STACK = 1


def track(
    group: int, last: int, *, done: int | None = None, first: int = 1, rows: tuple[int, ...] = (), age: float = 94.0,
    state: str = "scheduled",
) -> Track:  # fmt: skip
    """A rank that has reached number ``last`` and completed ``done``. All later calls are pending."""
    done = last if done is None else done
    history = rows or tuple(REDUCE for _ in range(first, last + 1))

    def entry(number: int) -> Entry:
        return Entry(
            number=number,
            operation=history[number - first],
            record=number + 10 * group,
            state=state,
            created=NOW - age,
            stack=STACK,
        )

    pending = tuple(entry(number) for number in range(done + 1, last + 1))
    return Track(
        group=group,
        first=first,
        history=pack_rows(history),
        completed=done,
        pending=pending,
        last=entry(last),
        since=NOW - 200,
    )


def job(
    groups: tuple[Group, ...],
    tracks: dict[int, tuple[Track, ...]],
    *,
    transfers: dict[int, tuple[Transfer, ...]] | None = None,
    dumps: bool = True,
    world: int = 0,
    operations: tuple[Operation, ...] = OPERATIONS,
) -> Snapshot:
    world = world or max(tracks) + 1
    moved = transfers or {}
    missing = RankSet(range(world)) - RankSet(tracks)
    return Snapshot(
        version=1,
        made_by="test",
        time=NOW,
        job=Job(key="dumps", launcher="dumps", world_size=world, started=NOW - 200)
        if dumps
        else Job(key="torchrun-1", launcher="torchrun", world_size=world, started=NOW - 200),
        ranks=tuple(
            Rank(
                rank=rank,
                host="",
                process=Process(pid=0 if dumps else 100 + rank, parent=0, command=()),
                recorder=Recorder(
                    version="2.10", time=0.0 if dumps else NOW, tracks=mine, transfers=moved.get(rank, ()), newest=NOW
                ),
            )
            for rank, mine in tracks.items()
        ),
        frames=FRAMES,
        stacks=((), (0, 1)),
        missing=(Missing(ranks=str(missing), reason="no-dump", detail="no dump of it in /x"),) if missing else (),
        groups=groups,
        operations=operations,
    )


WORLD = Group(name="0", description="default_pg", ranks="0-3", source="config", backend="nccl", timeout=600.0)


def straggler(dumps: bool = True) -> Snapshot:
    """Rank 2 of four has not entered call 7."""
    tracks = {rank: (track(0, 7, done=6) if rank != 2 else track(0, 6, age=100.0),) for rank in range(4)}
    return job((WORLD,), tracks, dumps=dumps)


def shown(snapshot: Snapshot, look: TerminalStyle = LOOK, **options: int) -> str:
    ledger = CollectiveProgress(snapshot)
    return render(collectives_lines(ledger, standings(ledger, causes(ledger)), look, **options), look)


def made_json(snapshot: Snapshot, history: int = 0) -> dict[str, object]:
    ledger = CollectiveProgress(snapshot)
    found: dict[str, object] = stdlib_json.loads(
        to_text(collectives_json(ledger, standings(ledger, causes(ledger)), history=history))
    )
    return found


def test_a_straggler() -> None:
    assert (
        shown(straggler())
        == """\
dumps · 4 ranks · newest call 2025-10-09 08:55:00 UTC

1 group · ranks wait for others in 1

the world group [0-3] (4) · group 0, default_pg · nccl · timeout 10 min · 3 wait for rank 2
  ranks       at  done  state             age  call
  0-1,3  (3)  #7    #6  waiting          94 s  all_reduce [1024] Float
  2      (1)  #6    #6  not entered #7  100 s  all_reduce [1024] Float
      rank 2: in no call; its last was all_reduce #6, from step, train.py:12
"""
    )


def test_it_is_red_and_only_ours() -> None:
    text = shown(straggler(), replace(LOOK, color=True))
    assert "\x1b[1;31mnot entered #7\x1b[0m" in text and "\x1b[1;31m3 wait for rank 2\x1b[0m" in text


def test_members_that_recorded_nothing_and_members_that_are_unseen() -> None:
    group = Group(name="9", description="undefined", ranks="0-4", source="config")
    waits = track(0, 1, done=0)
    snapshot = job((group,), {0: (waits,), 1: (waits,), 2: ()}, world=5)
    assert (
        shown(snapshot).partition("\n\n")[2].partition("\n\n")[2]
        == """\
group 9 [0-4] (5) · 2 wait for rank 2
  ranks       at  done  state                           age  call
  0-1    (2)  #1     -  waiting                        94 s  all_reduce [1024] Float
  2      (1)   -     -  not entered: nothing recorded
      rank 2: in no call, and none is recorded
  3-4    (2)   ?     ?  unseen

[3-4] (2) missing, left no readable dump: it may have died before it wrote one, or its file is else…
"""
    )


def test_members_that_are_only_inferred_are_said_to_be() -> None:
    group = replace(WORLD, name="7", description="pg", source="seen", timeout=0.0)
    text = shown(job((group,), {0: (track(0, 7, done=6),), 1: (track(0, 6),)}))
    assert "pg [0-3] (4) · group 7 · nccl · members as far as known · 1 waits for rank 1\n" in text


def test_calls_that_ran_ahead_name_the_one_that_is_waited_in() -> None:
    rows = (REDUCE, REDUCE, GATHER, SCATTER)
    group = replace(WORLD, ranks="0-1", timeout=0.0)
    text = shown(job((group,), {0: (track(0, 4, done=2, rows=rows, state="started"),), 1: (track(0, 2),)}))
    assert "  0      (1)  #4    #2  started in #3   94 s  all_gather [4096]→[32768] BFloat16\n" in text
    assert "  1      (1)  #2    #2  not entered #3  94 s  all_reduce [1024] Float\n" in text


def differing() -> Snapshot:
    """Call 3 differs on rank 1; the ring of rank 3 begins after it; rank 0 has reached call 4."""
    return job(
        (WORLD,),
        {
            0: (track(0, 4, done=2, rows=(REDUCE, REDUCE, REDUCE, GATHER)),),
            1: (track(0, 3, done=2, rows=(REDUCE, REDUCE, SCATTER)),),
            2: (track(0, 3, done=2),),
            3: (track(0, 4, done=3, first=4, rows=(GATHER,)),),
        },
    )


def test_calls_that_differ_and_their_history() -> None:
    assert (
        shown(differing(), history=3).partition("\n\n")[2]
        == """\
1 group · calls differ in 1

the world group [0-3] (4) · group 0, default_pg · nccl · timeout 10 min · 1 waits for ranks 1-2
  ranks       at  done  state                age  call
  3      (1)  #4    #3  waiting             94 s  all_gather [4096]→[32768] BFloat16
  0      (1)  #4    #2  waiting in #3       94 s  all_reduce [1024] Float
  1      (1)  #3    #2  waiting, not in #4  94 s  reduce_scatter [65536]→[8192] BFloat16
  2      (1)  #3    #2  waiting, not in #4  94 s  all_reduce [1024] Float
  call #3 differs between members
  call           ranks
    #2           0-2    (3)  all_reduce [1024] Float
                 3      (1)  no longer recorded
    #3  differs  0,2    (2)  all_reduce [1024] Float
                 1      (1)  reduce_scatter [65536]→[8192] BFloat16
                 3      (1)  no longer recorded
    #4           0,3    (2)  all_gather [4096]→[32768] BFloat16
                 1-2    (2)  not entered
"""
    )


def test_sizes_that_may_differ_are_one_side() -> None:
    group = replace(WORLD, ranks="0-1")
    tracks = {rank: (track(0, 1, done=0, rows=(EXCHANGE + rank,)),) for rank in range(2)}
    text = shown(job((group,), tracks), history=1)
    assert "  0-1    (2)  #1     -  waiting  94 s  all_to_all of different sizes Float\n" in text
    assert "differs" not in text
    calls = made_json(job((group,), tracks), 1)["groups"][0]["history"][0]["calls"]  # type: ignore[index]
    assert [(one["ranks"], one["inputs"]) for one in calls] == [("0", "[3,8]"), ("1", "[7,8]")]


def mesh(groups: int, size: int = 8, *, behind: bool = False) -> Snapshot:
    """Many groups of one description. ``behind``: the first rank of each is blocked in a group of those first ranks,
    which rank 0 has not entered."""
    rows = [
        Group(
            name=str(at + 1),
            description="mesh_tp",
            ranks=str(RankSet.span(at * size, at * size + size)),
            source="config",
            backend="nccl",
        )
        for at in range(groups)
    ]
    rows.append(
        Group(
            name="99",
            description="mesh_dp",
            ranks=str(RankSet(range(0, groups * size, size))),
            source="config",
            backend="nccl",
        )
    )
    tracks = {}
    for rank in range(groups * size):
        at, first = divmod(rank, size)
        mine = [track(at, 5 if behind and not first else 6, done=5 if behind else 6)]
        if not first:
            mine.append(track(groups, 3 if behind and rank else 2, done=2))
        tracks[rank] = tuple(mine)
    return job(tuple(rows), tracks)


def test_groups_in_which_all_is_well_are_a_line() -> None:
    assert (
        shown(mesh(128))
        == """\
dumps · 1,024 ranks · newest call 2025-10-09 08:55:00 UTC

129 groups · 129 healthy

mesh_tp  128 groups of 8, all at #6, nothing pending
mesh_dp  128 ranks, all at #2, nothing pending
"""
    )
    assert shown(mesh(3), replace(LOOK, full=True)).count("\n  ranks ") == 4


def test_of_groups_that_wait_alike_a_few_are_shown_and_the_root_first() -> None:
    text = shown(mesh(128, behind=True))
    titles = [line for line in text.splitlines() if "] (" in line]
    assert titles == [
        "mesh_dp [0-1016/8] (128) · group 99 · nccl · 127 wait for rank 0",
        "mesh_tp [0-7] (8) · group 1 · nccl · 7 wait for rank 0",
        "mesh_tp [8-15] (8) · group 2 · nccl · 7 wait for rank 8",
        "mesh_tp [16-23] (8) · group 3 · nccl · 7 wait for rank 16",
        "mesh_tp [24-31] (8) · group 4 · nccl · 7 wait for rank 24",
    ]
    assert "      rank 8: waits in all_reduce #3 of mesh_dp (0-1016/8), from step, train.py:12\n" in text
    assert text.endswith("mesh_tp  124 more groups, 868 ranks wait for 124 (--full, --group)\n")
    assert max(map(len, text.splitlines())) <= 100 and len(text.splitlines()) < 40


def test_calls_that_all_have_entered_are_no_trouble() -> None:
    snapshot = job((WORLD,), {rank: (track(0, 3, done=2, state="started"),) for rank in range(4)})
    assert "the world group  4 ranks, all at #3, all have entered it, started for 94 s\n" in shown(snapshot)


def test_a_group_is_shown_whole_for_its_history() -> None:
    snapshot = job((WORLD,), {rank: (track(0, 3),) for rank in range(4)})
    assert "  0-3    (4)  #3    #3  completed  94 s  all_reduce [1024] Float\n" in shown(snapshot, history=1)


def test_sends_and_recvs() -> None:
    recv = Transfer(
        0, False, 1, Entry(number=0, operation=REDUCE, record=50, state="scheduled", created=NOW - 60, stack=STACK)
    )
    send = Transfer(0, True, 3, Entry(number=0, operation=REDUCE, record=50, state="scheduled", created=NOW - 30))
    got = Transfer(0, False, 2, Entry(number=0, operation=REDUCE, record=50, state="scheduled", created=NOW - 30))
    tracks = {rank: (track(0, 1),) for rank in range(4)}
    text = shown(job((WORLD,), tracks, transfers={0: (recv, recv), 2: (send,), 3: (got,)}))
    assert text.endswith("""\
point to point · 4 calls not completed
  0  (1)  recv from rank 1, 2 calls  60 s  rank 1 has not called send  the world group
  2  (1)  send to rank 3             30 s  both ends have called       the world group
  3  (1)  recv from rank 2           30 s  both ends have called       the world group
""")


def test_a_live_job_whose_waits_are_young_may_simply_run() -> None:
    assert "healthy job" not in shown(straggler(dumps=False))
    young = {rank: (track(0, 7, done=6, age=0.3) if rank else track(0, 6, age=0.5),) for rank in range(4)}
    assert "The longest wait has lasted 0.3 s: a healthy job looks the same" in shown(job((WORLD,), young, dumps=False))


def test_recorders_that_could_not_be_read_say_why_once() -> None:
    snapshot = straggler(dumps=False)
    blind = [replace(rank, recorder=None) for rank in snapshot.ranks[:2]]
    problems = tuple(unreadable(100 + rank) for rank in range(2))
    snapshot = replace(snapshot, ranks=(*blind, *snapshot.ranks[2:]), problems=(*problems, Problem("something else")))
    text = shown(snapshot)
    assert text.endswith("""\
[0-1] (2) unseen: cannot be read: no answer
    ask again
not seen: something else
""")
    assert made_json(snapshot)["unread"] == [{"ranks": "0-1", "why": "cannot be read: no answer"}]


def test_a_group_that_its_dump_does_not_name_is_named_by_its_members() -> None:
    tracks = {rank: (track(0, 3, done=2),) for rank in range(4)}
    unnamed = Group(name="ranks 0-3", ranks="0-3", unnamed=True)
    for group, text in (
        (unnamed, "the group of ranks 0-3"),
        (replace(unnamed, unnamed=False), "group ranks 0-3 (0-3)"),
    ):
        progress = CollectiveProgress(job((group,), tracks))
        assert value_wording.group(call_facts.group_name(progress, 0)) == text


def unreadable(pid: int, detail: str = "cannot be read: no answer") -> Problem:
    return Problem(f"the recorder of process {pid} {detail}", "ask again", recorder_pid=pid, detail=detail)


def test_a_recorder_that_could_not_be_read_is_told_apart_by_its_host() -> None:
    # GIVEN two hosts, each with a rank of the same pid
    snapshot = straggler(dumps=False)
    blind = [
        replace(rank, recorder=None, host=f"n{rank.rank}", process=replace(rank.process, pid=100))
        for rank in snapshot.ranks[:2]
    ]
    problems = of_hosts({"n0": (unreadable(100, "cannot be read: the GIL is held"),), "n1": (unreadable(100),)})
    snapshot = replace(snapshot, ranks=(*blind, *snapshot.ranks[2:]), problems=problems)

    # THEN
    assert made_json(snapshot)["unread"] == [
        {"ranks": "0", "why": "cannot be read: the GIL is held"},
        {"ranks": "1", "why": "cannot be read: no answer"},
    ]
    assert "not seen:" not in shown(snapshot)


def test_the_reason_of_one_named_host_is_kept() -> None:
    snapshot = straggler(dumps=False)
    blind = replace(snapshot.ranks[0], recorder=None)
    snapshot = replace(snapshot, ranks=(blind, *snapshot.ranks[1:]), problems=(unreadable(100),), target="ssh:n1")
    assert made_json(snapshot)["unread"] == [{"ranks": "0", "why": "cannot be read: no answer"}]


def test_a_copied_dump_has_no_age_of_its_own() -> None:
    snapshot = straggler()
    for later, age in ((300.0, "394 s"), (90_000.0, "94 s"), (-1.0, "94 s")):
        ranks = [replace(rank, recorder=replace(rank.recorder, time=NOW + later)) for rank in snapshot.ranks]
        text = shown(replace(snapshot, ranks=tuple(ranks)))
        assert age.replace("394 s", "6 min 34 s") in text


@pytest.mark.parametrize("unicode", [True, False])
def test_nobody_elses_control_characters(unicode: bool) -> None:
    evil = "\x1b[2Jpwn\r\n\u202e" + "x" * 300
    group = Group(name=evil, description=evil, ranks="0-1", source="config", backend=evil)
    operations = (OPERATIONS[0], Operation(evil, evil, evil, evil))
    snapshot = job((group,), {0: (track(0, 2, done=1),), 1: (track(0, 1),)}, operations=operations)
    snapshot = replace(snapshot, frames=(Frame(evil, evil, 1), Frame(evil, evil, 1)), problems=(Problem(evil, evil),))
    for full in (True, False):
        look = replace(LOOK, full=full, unicode=unicode)
        text = shown(snapshot, look, history=2)
        assert not set("\x1b\r\u202e") & set(text)
        assert max(map(len, text.splitlines())) <= 100
    assert made_json(snapshot)["groups"][0]["description"] == evil  # type: ignore[index]


@given(st.sets(st.integers(0, 60)))
def test_strides_say_the_same_set(ranks: set[int]) -> None:
    full = replace(LOOK, full=True)
    assert RankSet.parse(strided(RankSet(ranks), full)) == RankSet(ranks)


def test_strides() -> None:
    sets = (range(5, 1024, 8), [0, 1, 2, 9], [3, 9], [0, 2, 4, 5], range(0, 999, 7), [*range(0, 90, 3), 1000, 1007])
    assert [strided(RankSet(one), LOOK) for one in sets] == [
        "5-1021/8", "0-2,9", "3,9", "0,2,4-5", "0-994/7", "0-87/3,1000,1007",
    ]  # fmt: skip
    scattered = strided(RankSet(n * n for n in range(2, 40)), LOOK)
    assert scattered.endswith(",…") and len(scattered) <= 30


def test_json_is_the_contract() -> None:
    made = made_json(straggler(), history=2)
    assert made["schema"] == 1 and made["job"]["ranks"] == "0-3"  # type: ignore[index]
    (group,) = made["groups"]  # type: ignore[misc]
    call = {"operation": "all_reduce", "inputs": "[1024]", "outputs": "[1024]", "types": "Float"}
    assert {key: group[key] for key in ("name", "description", "ranks", "members_from", "backend", "timeout")} == {
        "name": "0",
        "description": "default_pg",
        "ranks": "0-3",
        "members_from": "config",
        "backend": "nccl",
        "timeout": 600.0,
    }
    assert (group["not_entered"], group["unseen"], group["waiting"], group["awaited"]) == ("2", "", "0-1,3", "2")
    front, behind = group["at"]
    assert front == {
        "ranks": "0-1,3", "number": 7, "completed": 6, **call, "state": "waiting", "seconds": 94.0, "waits_in": 7,
        "waits_seconds": 94.0, "not_entered": None, "stale": False,
    }  # fmt: skip
    assert (behind["ranks"], behind["number"], behind["state"], behind["not_entered"]) == ("2", 6, "completed", 7)
    assert group["history"] == [
        {
            "number": 6,
            "differs": False,
            "calls": [{"ranks": "0-3", **call}],
            "not_entered": "",
            "forgotten": "",
        },
        {
            "number": 7,
            "differs": False,
            "calls": [{"ranks": "0-1,3", **call}],
            "not_entered": "2",
            "forgotten": "",
        },
    ]
    assert made["transfers"] == [] and made["unread"] == []
    history = made_json(differing(), history=2)["groups"][0]["history"]  # type: ignore[index]
    assert [(one["number"], one["differs"], one["forgotten"]) for one in history] == [(3, True, "3"), (4, False, "")]
    recv = Transfer(0, False, 1, Entry(number=0, operation=REDUCE, record=50, state="scheduled", created=NOW - 60))
    moved = made_json(job((WORLD,), dict.fromkeys(range(4), ()), transfers={0: (recv,)}))
    assert moved["transfers"] == [{"rank": 0, "sends": False, "peer": 1, "group": "0", "seconds": 60.0}]


# --- the command line -------------------------------------------------------------------------------------


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main.main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "x.brk")
    save(mesh(4, behind=True), path)
    status, out, _ = run("collectives", path, "--group", "mesh_dp", capsys=capsys)
    assert status == 1 and out.count("] (") == 1 and "mesh_dp [0-24/8] (4)" in out
    for group in ("2", "8-15", "mesh_tp (8-15)"):
        status, out, _ = run("collectives", path, "--group", group, capsys=capsys)
        assert "mesh_tp [8-15] (8) · group 2" in out and out.count("] (") == 1
    status, out, _ = run("collectives", path, "--rank", "9", "--json", capsys=capsys)
    assert [one["name"] for one in stdlib_json.loads(out)["groups"]] == ["2"]
    status, out, err = run("collectives", path, "--group", "pp", capsys=capsys)
    assert (status, out) == (2, "")
    assert err == "breakranks: no group is called 'pp'\n  The groups are: mesh_tp (4 groups), mesh_dp.\n"
    assert run("collectives", path, "--history", "-1", capsys=capsys)[0] == 2
    well = str(tmp_path / "well.brk")
    save(mesh(4), well)
    assert run("collectives", well, "--no-inject", capsys=capsys)[0] == 0


def test_without_recorders_it_could_not_look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = straggler(dumps=False)
    blind = [replace(rank, recorder=None) for rank in snapshot.ranks]
    save(replace(snapshot, ranks=tuple(blind), groups=(), operations=()), str(tmp_path / "x.brk"))
    status, out, err = run("collectives", str(tmp_path / "x.brk"), capsys=capsys)
    assert (status, out) == (2, "") and "contains no flight recorder" in err and err.count("\n") > 1


def test_from_outside_nothing_is_known_of_a_live_job(monkeypatch: pytest.MonkeyPatch) -> None:
    found = LocalJobs((FoundJob(Job(key="k", launcher="torchrun", world_size=1), ()),))
    monkeypatch.setattr(LocalBackend, "find", lambda backend: found)
    args = main.parser_of("collectives", command).parse_args(["--no-inject"])
    with pytest.raises(UsageError, match="from outside") as caught:
        command.run(args)
    assert "--no-inject" in caught.value.help


# --- a folder of dumps, and the other commands ------------------------------------------------------------


def folder(path: Path, *, behind: bool, frames: bool = True, ranks: int = 4) -> str:
    """Dumps as torch writes them: all ranks except 2 wait in call 3 of the world group, or none does."""
    for rank in range(ranks):
        entries = [
            {
                "record_id": number, "process_group": ("0", "default_pg"), "collective_seq_id": number, "p2p_seq_id": 0,
                "profiling_name": "nccl:all_reduce", "input_sizes": [[8]], "output_sizes": [[8]],
                "input_dtypes": ["Float"], "output_dtypes": ["Float"],
                "time_created_ns": (1_760_000_000 + number) * 10**9,
                "state": "scheduled" if behind and number == 3 else "completed", "retired": not behind or number < 3,
                "is_p2p": False,
                "frames": [{"name": "step", "filename": "/home/me/train.py", "line": 12}] if frames else [],
            }
            for number in (1, 2, 3)
            if not (behind and rank == 2 and number == 3)
        ]  # fmt: skip
        members = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
        path.mkdir(exist_ok=True)
        (path / f"nccl_trace_rank_{rank}").write_bytes(
            pickle.dumps({"version": "2.10", "pg_config": members, "entries": entries})
        )
    return str(path)


def test_why_of_dumps_says_nothing_of_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("why", folder(tmp_path / "d", behind=True), capsys=capsys)
    assert status == 1
    assert out.startswith("dumps · 4 ranks · newest call 2025-10-09 08:53:23 UTC\n\nrank 2 has not entered")
    assert not any(word in out for word in ("standing", "no Python stack", " up ", " ago", "state"))
    status, out, _ = run("why", folder(tmp_path / "d", behind=False), capsys=capsys)
    assert status == 0 and "Nothing is pending: every recorded call has completed." in out
    status, out, _ = run("why", str(tmp_path / "d"), "--json", capsys=capsys)
    job = stdlib_json.loads(out)["job"]
    assert (job["started"], job["hosts"], job["ranks"]) == (0.0, "", "0-3")


def test_why_of_some_ranks_does_not_take_the_others_for_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder(tmp_path / "d", behind=True)
    status, out, _ = run("why", path, "--rank", "0-1", capsys=capsys)
    assert status == 1 and "rank 2 has not entered" in out and "left no dump" not in out


def test_files_that_are_left_out_are_folded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path / "d", behind=False, ranks=3)
    for rank in range(3, 30):
        (tmp_path / "d" / f"nccl_trace_rank_{rank}").write_bytes(b"junk")
    _, out, _ = run("why", path, capsys=capsys)
    assert "  [3] (1) missing, left no readable dump: it may have died" in out
    assert out.count("not seen: ") == 7 and out.endswith("not seen: and 21 more, with --full\n")
    assert out.count("      If it is a dump, copy it again") == 1
    _, out, _ = run("why", path, "--full", capsys=capsys)
    assert out.count("not seen: ") == 27


def test_what_is_pending_and_waits_for_nobody() -> None:
    snapshot = job((WORLD,), {rank: (track(0, 3, done=2),) for rank in range(4)})
    text = render(why_lines(snapshot, explain(snapshot), LOOK), LOOK)
    assert "No rank is missing from a pending call." in text and "all 4 members are in all_reduce #3" in text


def test_the_other_commands_on_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path / "d", behind=True)
    for name in ("ps", "top"):
        status, out, err = run(name, path, capsys=capsys)
        assert (status, out) == (2, "") and "no processes" in err and f"breakranks collectives {path}" in err
    status, out, _ = run("stacks", path, capsys=capsys)
    assert status == 0 and "[0-3] (4)\n  step " in out and "newest recorded call" in out
    kept = str(tmp_path / "kept.brk")
    status, out, _ = run("snapshot", path, "-o", kept, capsys=capsys)
    assert status == 0 and "4 flight recorders, 1 different stack" in out
    assert run("collectives", kept, capsys=capsys)[1] == run("collectives", path, capsys=capsys)[1]
    assert run("snapshot", kept, capsys=capsys)[0] == 2 and run("snapshot", path, "--rank", "1", capsys=capsys)[0] == 2
    status, out, err = run("stacks", folder(tmp_path / "bare", behind=True, frames=False), capsys=capsys)
    assert (status, out) == (2, "") and "no stacks" in err and "breakranks why" in err
