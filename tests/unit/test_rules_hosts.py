"""Problems of one host or between two: unreachable, lost, blocked as a whole, clocks that differ, a cut link."""

from __future__ import annotations

import pytest

from breakranks.explain.diagnosis import Diagnosis, Finding
from breakranks.explain.verdict import explain
from breakranks.show import json_output as show_json
from breakranks.show.lost_host_lines import lost_hosts
from breakranks.show.stack_tree import stacks_lines
from breakranks.show.terminal_text import TerminalStyle, render
from breakranks.show.verdict_lines import why_lines
from breakranks.show.wording.finding_wording import evidence_lines, next_lines, summary
from breakranks.snapshot.model import Call, FileLock, Host, Missing, OpenFile, Process, Snapshot, Socket
from support.values import replace

from .jobs import BATON, LONG_SLEEP, World, lib, own
from .recordings import Call as Recorded
from .recordings import pending
from .test_merge_hosts import merged, on_hosts
from .test_recorded_calls import recorded

READ = Call("read", fd=5)
LOOK = TerminalStyle(width=110, now=1001.0)
DOWN = Host(name="n3", state="timed-out", reason="no answer in 10 s", remedy="ping n3")


def all_reduce(ranks: int = 4) -> World:
    world = World()
    for _ in range(ranks):
        world.add(world.in_all_reduce())
    return world


def lacking(state: str = "timed-out") -> Snapshot:
    """Two of three hosts: all their ranks wait for ranks 4-5, which are on the third."""
    snapshot = on_hosts(all_reduce().snapshot(), 2)
    return replace(
        snapshot,
        job=replace(snapshot.job, world_size=6),
        hosts=(*snapshot.hosts, replace(DOWN, state=state)),
        missing=(Missing(ranks="4-5", reason="unreachable", detail="n3: no answer in 10 s"),),
    )


def verdict(snapshot: Snapshot) -> Finding:
    found = explain(snapshot).verdict
    assert found is not None
    return found


def kinds(diagnosis: Diagnosis) -> list[str]:
    return [one.kind for one in diagnosis.findings]


# --- hosts that could not be inspected -----------------------------------------------------------------------


def test_everyone_waits_for_the_ranks_of_a_host_that_does_not_answer() -> None:
    found = verdict(lacking())
    assert (found.kind, found.culprits, found.victims, found.confidence) == ("unreachable", "4-5", "0-3", "likely")
    assert "ranks 4-5 could not be inspected: n3, no answer in 10 s; ranks 0-3 wait for them" in summary(found)
    assert evidence_lines(found)[0] == "n3: no answer in 10 s" and next_lines(found) == ["ping n3"]


def test_a_host_that_answers_and_has_no_python_may_be_well() -> None:
    assert verdict(lacking("no-python")).confidence == "guess"


def asked(groups: dict[str, tuple[int, ...]]) -> Finding:
    """Ranks 0 to 2 wait in the first group, and rank 3 sleeps. Ranks 4 and 5 could not be inspected."""
    world = all_reduce(3)
    world.add(world.thread(own("load_batch", 88), call=LONG_SLEEP))
    first = next(iter(groups))
    calls: dict[int, list[Recorded]] = {rank: [pending(first)] if rank < 3 else [] for rank in range(4)}
    snapshot = on_hosts(recorded(world, calls, groups), 2)
    return verdict(
        replace(
            snapshot,
            job=replace(snapshot.job, world_size=6),
            hosts=(*snapshot.hosts, DOWN),
            missing=(Missing(ranks="4-5", reason="unreachable", detail="n3: no answer in 10 s"),),
        )
    )


def test_recorders_say_whether_it_is_those_ranks_that_are_awaited() -> None:
    # First the sleeping rank is not in the group. Then it is, and the ranks of the host that is down are not.
    found = asked({"mesh_a": (0, 1, 2, 4, 5)})
    assert (found.kind, found.culprits, found.victims, found.confidence) == ("unreachable", "4-5", "0-2", "likely")
    found = asked({"mesh_a": (0, 1, 2, 3), "mesh_b": (4, 5)})
    assert (found.kind, found.culprits) == ("missing-from-collective", "3")


def test_a_stopped_rank_is_the_verdict_and_the_host_is_told_too() -> None:
    world = all_reduce(3)
    world.add(world.in_all_reduce(), state="T")
    snapshot = on_hosts(world.snapshot(), 2)
    snapshot = replace(
        snapshot, hosts=(*snapshot.hosts, DOWN), missing=(Missing(ranks="4", reason="unreachable", detail="x"),)
    )
    found = explain(snapshot)
    assert found.verdict is not None and found.verdict.kind == "rank-stopped"
    assert summary(found.verdict).startswith("rank 3 (n2, pid 103) is stopped")
    assert next_lines(found.verdict) == ["ssh n2 kill -CONT 103"]
    assert "unreachable" in kinds(found)


def test_a_job_that_moves_is_well_though_a_host_was_not_seen() -> None:
    world = World()
    for _ in range(4):
        places = [world.thread(own("step", line), call=None, state="R", ran=line * 10**9) for line in (1, 2, 3)]
        world.add_moving(*places)
    snapshot = on_hosts(world.snapshot(), 2)
    snapshot = replace(
        snapshot, hosts=(*snapshot.hosts, DOWN), missing=(Missing(ranks="4-5", reason="unreachable", detail="x"),)
    )
    found = explain(snapshot)
    assert found.verdict is None and all(one.informational for one in found.findings)
    assert kinds(found) == ["moving", "unreachable"]


def test_a_host_that_was_lost_in_the_middle() -> None:
    snapshot = on_hosts(all_reduce().snapshot(), 2)
    lost = replace(snapshot.hosts[1], state="lost", reason="its ssh ended (255)")
    found = verdict(replace(snapshot, hosts=(snapshot.hosts[0], lost)))
    assert (found.kind, found.culprits, found.victims) == ("unreachable", "2-3", "0-1")
    assert "n2 was lost during the inspection (its ssh ended (255)), and with it ranks 2-3" in summary(found)


def test_two_lost_hosts_are_not_each_others_victims() -> None:
    snapshot = on_hosts(all_reduce(3).snapshot(), 1)
    lost = [replace(host, state="lost", reason="gone") for host in snapshot.hosts[1:]]
    found = explain(replace(snapshot, hosts=(snapshot.hosts[0], *lost)))
    assert [(one.kind, one.culprits, one.victims) for one in found.findings] == [
        ("unreachable", "1", "0"),
        ("unreachable", "2", "0"),
    ]


def test_what_a_lost_host_did_before_is_no_verdict() -> None:
    world = all_reduce(2)
    for _ in range(2):
        world.add(world.thread(own("load_batch", 88), call=LONG_SLEEP))
    snapshot = on_hosts(world.snapshot(), 2)
    assert verdict(snapshot).kind == "missing-from-collective"
    lost = replace(snapshot.hosts[1], state="lost", reason="gone")
    found = explain(replace(snapshot, hosts=(snapshot.hosts[0], lost)))
    assert found.verdict is not None and found.verdict.kind == "unreachable"


# --- all ranks of one host ---------------------------------------------------------------------------------


def blocked(paths: list[str]) -> Snapshot:
    world = all_reduce(2)
    for path in paths:
        thread = world.thread(own("load", 7), call=READ, state="D")
        world.add(thread, state="D", files=(OpenFile(5, path, "file"),))
    return on_hosts(world.snapshot(), 2)


def test_all_ranks_of_a_host_read_the_same_file() -> None:
    found = verdict(blocked(["/nfs/data/a.bin"] * 2))
    assert (found.kind, found.culprits, found.victims) == ("blocked-io", "2-3", "0-1")
    assert summary(found).startswith("all ranks of n2 (2-3) are reading /nfs/data/a.bin")
    assert next_lines(found)[0].startswith("ssh n2 'ls -l /nfs/data/a.bin; findmnt")


def test_all_ranks_of_a_host_read_a_file_each() -> None:
    found = verdict(blocked(["/nfs/data/2.bin", "/nfs/data/3.bin"]))
    assert (found.kind, found.culprits) == ("blocked-io", "2-3")
    assert summary(found).startswith("all ranks of n2 (2-3) are blocked on files under /nfs/data (uninterruptible")
    assert "rank 2 is reading /nfs/data/2.bin" in evidence_lines(found)[0]


def test_files_on_different_disks_are_different_causes() -> None:
    found = explain(blocked(["/nfs/2.bin", "/scratch/3.bin"]))
    assert [one.culprits for one in found.findings if one.kind == "blocked-io"] == ["2", "3"]


def test_stopped_ranks_of_several_hosts_are_let_go_a_line_a_host() -> None:
    world = all_reduce(1)
    for line in (20, 20, 21):
        world.add(world.in_all_reduce(line=line), state="T")
    found = verdict(on_hosts(world.snapshot(), 2))
    assert found.kind == "rank-stopped"
    both = explain(on_hosts(world.snapshot(), 1))
    assert both.verdict is not None and next_lines(both.verdict) == ["ssh n2 kill -CONT 101", "ssh n3 kill -CONT 102"]
    world = all_reduce(2)
    for line in (20, 21):
        world.add(world.in_all_reduce(line=line), state="T")
    whole = verdict(on_hosts(world.snapshot(), 2))
    assert summary(whole).startswith("all ranks of n2 (2-3) are stopped by a signal")
    assert next_lines(whole) == ["ssh n2 kill -CONT 102 103"]


# --- pids are per host -------------------------------------------------------------------------------------


def same_pids(snapshot: Snapshot, pid: int) -> Snapshot:
    """Every host numbers its processes by itself."""
    firsts: dict[str, int] = {}
    ranks = []
    for rank in snapshot.ranks:
        number = firsts[rank.host] = firsts.get(rank.host, pid - 1) + 1
        ranks.append(replace(rank, process=replace(rank.process, pid=number)))
    return replace(snapshot, ranks=tuple(ranks))


def test_a_lock_is_held_by_a_process_of_the_same_host() -> None:
    world = all_reduce(1)
    world.add(world.thread(own("save", 5), call=LONG_SLEEP))
    world.add(world.thread(own("save", 6), call=LONG_SLEEP))
    lock = FileLock(path="/tmp/x.lock", kind="flock", waiter=51, holder=50, holder_command="python")
    world.add(world.thread(own("save", 9), call=Call("flock", fd=3)), locks=(lock,))
    # n1 has ranks 0 and 1, n2 has 2 and 3, and both number them 50 and 51: the holder is rank 2, not rank 0.
    snapshot = same_pids(on_hosts(world.snapshot(), 2), 50)
    held = [one for one in explain(snapshot).findings if one.kind == "lock-held"]
    assert [(one.culprits, "rank 2 (n2, pid 50) holds" in summary(one)) for one in held] == [("2", True)]


def baton(rank: int, opens: str = "") -> Snapshot:
    """Ranks 2 and 3, on the second host, poll for a lock file that no process there has."""
    world = World()
    path = "/home/me/.cache/torch_extensions/lock"
    for number in range(4):
        if number < 2:
            files = (OpenFile(9, opens, "file"),) if number == rank and opens else ()
            world.add(world.thread(own("build", 5), call=LONG_SLEEP), files=files)
        else:
            poll = world.thread(own("load", 8), lib("wait", BATON), call=Call("clock_nanosleep", left=0.1))
            world.add(poll, locks=(FileLock(path=path, kind="file", waiter=100 + number, age=500.0),))
    return on_hosts(world.snapshot(), 2)


def test_a_lock_file_on_a_shared_disk_may_be_another_hosts() -> None:
    stale = verdict(baton(1))
    assert (stale.kind, stale.confidence) == ("stale-lock-file", "likely")
    assert any(
        "no process on n2 has it open or locked, and no rank on another" in line for line in evidence_lines(stale)
    )
    held = verdict(baton(1, "/home/me/.cache/torch_extensions/lock"))
    assert (held.kind, held.culprits, held.victims) == ("lock-held", "1", "2-3")
    assert summary(held).startswith("rank 1 (n1, pid 101) holds the lock")


def test_what_the_kernel_killed_is_looked_up_on_the_right_host() -> None:
    world = all_reduce(3)
    world.add(state="Z")
    kill = {"oom_kills": ("process 103 (python) 9 s ago",), "oom_killed": (103,)}
    snapshot = on_hosts(world.snapshot(), 2)
    first, second = snapshot.hosts
    wrong = replace(snapshot, hosts=(replace(first, **kill), second))
    right = replace(snapshot, hosts=(first, replace(second, **kill)))
    assert not any("memory ran out" in line for line in evidence_lines(verdict(wrong)))
    assert any("memory ran out" in line for line in evidence_lines(verdict(right)))


def test_commands_say_the_host() -> None:
    world = all_reduce(3)
    child = Process(pid=900, parent=103, command=("sleep", "99"), state="S")
    waits = world.thread(own("prepare", 5), lib("wait", "/usr/lib/python3.11/subprocess.py"), call=Call("wait4"))
    world.add(waits, children=(child,))
    found = verdict(on_hosts(world.snapshot(), 2))
    assert found.kind == "subprocess-wait" and next_lines(found)[0].startswith("ssh n2 kill 900")


def test_our_own_commands_say_how_to_get_there() -> None:
    world = all_reduce(3)
    world.add(world.thread(own("load", 5), call=LONG_SLEEP))
    snapshot = replace(on_hosts(world.snapshot(), 2), target="'ssh:n[1-2]'")
    assert next_lines(verdict(snapshot)) == [
        "breakranks stacks 'ssh:n[1-2]' --rank 3 --threads --native",
        "breakranks attach 'ssh:n[1-2]' --rank 3",
    ]
    assert explain(snapshot).verdict == explain(snapshot).findings[0]


# --- clocks ------------------------------------------------------------------------------------------------


def skewed(*clocks: float, error: float = 0.02) -> Diagnosis:
    snapshot = on_hosts(all_reduce(len(clocks)).snapshot(), 1)
    hosts = [replace(host, clock=c, clock_error=error) for host, c in zip(snapshot.hosts, clocks, strict=True)]
    return explain(replace(snapshot, hosts=tuple(hosts)))


def test_clocks_that_differ() -> None:
    note = skewed(0.1, 12.0, 0.0).findings[-1]
    assert note.kind == "clock-skew" and note.informational
    assert summary(note) == "the clocks of the hosts differ: n2 is 12 s ahead"
    assert next_lines(note) == ["ssh n2 chronyc tracking"]
    assert summary(skewed(0.0, -40.0).findings[-1]) == "the clock of n1 is 40 s ahead of n2's"


@pytest.mark.parametrize("clocks", [(0.1, 0.4, 0.0), (60.0, 60.1, 60.0)])
def test_clocks_that_agree_among_themselves(clocks: tuple[float, ...]) -> None:
    assert "clock-skew" not in kinds(skewed(*clocks))


def test_a_clock_that_was_read_badly_says_nothing() -> None:
    assert "clock-skew" not in kinds(skewed(0.0, 3.0, 0.0, error=4.0))


# --- a cut link --------------------------------------------------------------------------------------------

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def tcp(
    local: str, peer: str, *, sent: int = 0, unread: int = 0, retries: int = 0, status: str = "established"
) -> Socket:
    return Socket(
        fd=7,
        protocol="tcp",
        local=local,
        peer=peer,
        status=status,
        send_queue=sent,
        receive_queue=unread,
        retries=retries,
    )


def linked(sockets: dict[int, tuple[Socket, ...]], addresses: tuple[str, ...] = (A, B, C), **states: str) -> Snapshot:
    """Three hosts of one rank each, all in the same all_reduce."""
    world = World()
    for rank in range(3):
        state = states.get(f"rank{rank}", "S")
        world.add(world.in_all_reduce(), sockets=sockets.get(rank, ()), state=state)
    snapshot = on_hosts(world.snapshot(), 1)
    hosts = [replace(h, addresses=(a,) if a else ()) for h, a in zip(snapshot.hosts, addresses, strict=True)]
    return replace(snapshot, hosts=tuple(hosts))


STUCK = tcp(f"{B}:5000", f"{C}:6000", sent=1440, retries=7)
OTHER_END = tcp(f"{C}:6000", f"{B}:5000")
FULL = replace(STUCK, send_queue=2_500_000, retries=0)
FINE = tcp(f"{A}:5001", f"{B}:6001")


def test_a_cut_link_is_seen_at_both_ends() -> None:
    found = verdict(linked({0: (FINE,), 1: (STUCK,), 2: (OTHER_END,)}))
    assert (found.kind, found.culprits, found.victims, found.confidence) == ("link-cut", "1-2", "0", "certain")
    assert summary(found).startswith(
        "the network between n2 and n3 carries no data: data from rank 1 (n2, pid 101) to rank 2 (n3, pid 102) is not "
        "acknowledged and was retransmitted 7 times; rank 0 waits in all_reduce"
    )
    assert evidence_lines(found)[0] == (
        f"n2 {B}:5000 to n3 {C}:6000: 1,440 bytes unacknowledged, retransmitted 7 times; the other end has 0 bytes "
        "unread, 0 unacknowledged"
    )
    assert next_lines(found)[0] == f"ssh n2 ping -c 3 {C}"


def test_both_directions_are_one_pair() -> None:
    back = tcp(f"{C}:6000", f"{B}:5000", sent=800, retries=6)
    found = verdict(linked({1: (STUCK,), 2: (back,)}))
    assert (found.kind, found.confidence) == ("link-cut", "certain")
    assert summary(found).startswith("the network between n2 and n3 carries no data")


def test_a_host_that_is_cut_off_from_several() -> None:
    also = tcp(f"{A}:5000", f"{C}:6002", sent=10, retries=4)
    ends = (OTHER_END, tcp(f"{C}:6002", f"{A}:5000"))
    assert summary(verdict(linked({0: (also,), 1: (STUCK,), 2: ends}))).startswith("n3 is cut off from n[1-2]: ")


def test_one_end_alone_is_likely() -> None:
    found = verdict(linked({1: (STUCK,)}))
    assert (found.kind, found.confidence) == ("link-cut", "likely")
    assert "no rank of n3 has the other end" in evidence_lines(found)[0]


def test_addresses_are_known_from_the_ranks_own_sockets() -> None:
    found = verdict(linked({1: (STUCK,), 2: (OTHER_END,)}, ("", "", "")))
    assert (found.kind, found.confidence) == ("link-cut", "certain")


def test_one_packet_sent_again_is_not_certain() -> None:
    assert verdict(linked({1: (replace(STUCK, retries=1),), 2: (OTHER_END,)})).confidence == "likely"


def test_a_connection_that_is_never_answered() -> None:
    found = verdict(linked({1: (tcp(f"{B}:5000", f"{C}:29500", sent=1, retries=4, status="connecting"),)}))
    assert found.kind == "link-cut" and f"trying to connect to {C}:29500 (n3)" in summary(found)


@pytest.mark.parametrize(
    ("sockets", "addresses"),
    [
        # A stopped or slow reader: its kernel accepts what it can, and nothing is retransmitted.
        ({1: (FULL,), 2: (replace(OTHER_END, receive_queue=6_000_000),)}, (A, B, C)),
        # On one host, or in one.
        ({1: (tcp("127.0.0.1:5", "127.0.0.1:6", sent=9, retries=9),)}, (A, B, C)),
        ({1: (tcp(f"{B}:5", f"{B}:6", sent=9, retries=9),)}, (A, B, C)),
        # The other end is not part of the job: its log server is not why it hangs.
        ({1: (tcp(f"{B}:5", "52.1.1.1:443", sent=9, retries=9),)}, (A, B, C)),
        # An address that two hosts have belongs to neither.
        ({1: (tcp("172.17.0.1:5", "172.17.0.2:6", sent=9, retries=9),)}, (A, "172.17.0.2", "172.17.0.2")),
        # Retransmitted, and acknowledged since.
        ({1: (replace(STUCK, send_queue=0),), 2: (OTHER_END,)}, (A, B, C)),
    ],
)  # fmt: skip
def test_what_is_no_cut_link(sockets: dict[int, tuple[Socket, ...]], addresses: tuple[str, ...]) -> None:
    assert "link-cut" not in kinds(explain(linked(sockets, addresses)))


def test_a_stopped_peer_is_the_verdict() -> None:
    found = verdict(linked({1: (FULL,), 2: (replace(OTHER_END, receive_queue=6_000_000),)}, rank2="T"))
    assert (found.kind, found.culprits) == ("rank-stopped", "2")


def test_data_for_a_host_that_does_not_answer_is_told_with_it() -> None:
    inside = tcp("127.0.0.1:5", "127.0.0.1:6", sent=9, retries=9)
    snapshot = linked({0: (inside,), 1: (STUCK,)})
    snapshot = replace(
        snapshot,
        ranks=snapshot.ranks[:2],
        hosts=(*snapshot.hosts[:2], DOWN),
        missing=(Missing(ranks="2", reason="unreachable", detail="n3: no answer in 10 s"),),
    )
    found = verdict(snapshot)
    assert found.kind == "unreachable"
    assert evidence_lines(found)[1] == (
        f"rank 1 (n2) has 1,440 unacknowledged bytes for {C}:6000, retransmitted 7 times"
    )


# --- output for people and programs --------------------------------------------------------------------------


def test_lost_hosts_are_lines_with_the_reason_and_the_remedy() -> None:
    snapshot = lacking()
    more = Host(name="n7", state="timed-out", reason="no answer in 10 s", remedy="ping n7")
    refused = Host(name="n8", state="refused", reason="Permission denied (publickey)", remedy="ssh n8 must work")
    old = Host(name="n9", state="no-python", reason="no Python 3.10 or newer there (found: 3.6)")
    snapshot = replace(snapshot, hosts=(*snapshot.hosts, more, refused, old))
    text = render(stacks_lines(snapshot, LOOK), LOOK)
    assert "torchrun · 4 of 6 ranks · n[1-2] (4 more not seen)" in text
    assert "n[3,7]  timed out: no answer in 10 s\n    ping n3\n" in text
    assert "n8  refused: Permission denied (publickey)\n    ssh n8 must work\n" in text
    assert "n9  no Python 3.10 or newer there (found: 3.6)\n" in text
    why = render(why_lines(snapshot, explain(snapshot), LOOK), LOOK)
    assert "  n[3,7]  timed out: no answer in 10 s" in why


def test_reasons_of_hosts_with_short_names_are_folded() -> None:
    hosts = [
        Host(name=name, state="unreachable", reason=f"no route to host {name}", remedy=f"ssh {name} true")
        for name in ("n", "o", "r")
    ]
    assert list(lost_hosts(hosts)) == [("unreachable", "no route to host n,o,r", "ssh n true")]


def test_lost_hosts_in_json() -> None:
    snapshot = lacking()
    job = show_json.job_json(snapshot)
    assert job["hosts"] == "n[1-2]"
    assert job["lost_hosts"] == [
        {"hosts": "n3", "state": "timed-out", "reason": "no answer in 10 s", "remedy": "ping n3"}
    ]
    assert show_json.why_json(snapshot, explain(snapshot))["verdict"] is not None


def test_one_host_is_shown_as_ever() -> None:
    snapshot = all_reduce().snapshot()
    text = render(stacks_lines(snapshot, LOOK), LOOK)
    assert "n1" not in text
    assert show_json.job_json(snapshot)["lost_hosts"] == []


def test_the_same_verdict_after_merging() -> None:
    whole = linked({0: (FINE,), 1: (STUCK,), 2: (OTHER_END,)})
    assert explain(merged(whole)) == explain(whole)
