"""Clients of the Debug Adapter Protocol on two real ranks, by a port and by UNIX sockets, and all ways to leave."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from breakranks.dap.launch_json import config_of, merged
from breakranks.rankset import RankSet
from support.targets import Interpreter, on_every_python, on_every_python_with
from support.waiting import DEADLINE_SECONDS as DEADLINE
from support.waiting import wait_for

from .attaching import link_of
from .dap_place import AFTER, HERE, LINES, RAW, TORCH, UNPREPARED, Place


@pytest.fixture
def place(tmp_path: Path, interpreter: Interpreter) -> Iterator[Place]:
    with Place(tmp_path, interpreter) as place:
        yield place


LEFT = "['MainThread', 'breakranks'] True"


# ---- a session


@on_every_python
def test_a_session_on_each_of_two_ranks(place: Place) -> None:
    """GIVEN two ranks that run WHEN a client debugs each, both at once THEN each does all that a debugger does."""
    place.begin()
    clients = [place.client(place.address) for _ in range(2)]
    for rank, client in enumerate(clients):
        client.attach(**place.key(rank))
        assert client.ask("threads")["threads"] == [{"id": 1, "name": "MainThread"}]
        assert client.event("process")["systemProcessId"] == place.ranks[rank].pid
    threads = [client.run_to(str(place.program), HERE) for client in clients]
    for rank, (client, thread) in enumerate(zip(clients, threads, strict=True)):
        frames = client.ask("stackTrace", {"threadId": thread})["stackFrames"]
        assert [(one["name"], one["line"]) for one in frames[:1]] == [("step", HERE)]
        assert [one["name"] for one in frames] == ["step", "main", "<module>"]
        assert frames[0]["source"]["path"] == str(place.program)
        found = client.locals_of(frames[0]["id"])
        assert (found["number"], found["loss"]) == ("1", "2")
        assert client.ask("evaluate", {"expression": "RANK", "frameId": frames[0]["id"]})["result"] == repr(str(rank))
        client.ask("next", {"threadId": thread})
        client.event("stopped", reason="step")
        frames = client.ask("stackTrace", {"threadId": thread})["stackFrames"]
        assert frames[0]["line"] == AFTER
        assert int(client.locals_of(frames[0]["id"])["total"]) == int(found["total"]) + 2
        client.ask("continue", {"threadId": thread})
        client.event("stopped", reason="breakpoint")
        client.ask("setBreakpoints", {"source": {"path": str(place.program)}, "breakpoints": []})
        client.ask("continue", {"threadId": thread})
        client.ask("disconnect")
        assert client.closed()
        numbers = [one["seq"] for one in client.heard]
        assert numbers == list(range(1, len(numbers) + 1))
    assert place.results() == 2 * [{"child": "None", "debugpy": "True", "left": LEFT, "others": "True"}]


@on_every_python_with("signal_name", ["SIGINT", "SIGKILL"], core=["SIGKILL"])
def test_on_a_job_that_nobody_prepared(place: Place, signal_name: str) -> None:
    """GIVEN a job without a line of ours WHEN `breakranks attach --dap` has stopped a rank and ends, or is killed
    THEN the rank runs on, a child that it forks does too, and nothing of ours is left but debugpy."""
    place.program.write_text(UNPREPARED)
    place.begin()
    client = place.client(place.address)
    client.attach(**place.key(1))
    client.run_to(str(place.program), HERE)
    assert place.bridge is not None
    place.bridge.send_signal(signal.Signals[signal_name])
    assert client.closed()
    place.bridge.wait(DEADLINE)
    wait_for("the end of it", lambda: not list(place.run.iterdir()))
    place.ask_for("fork", 0, 1)
    gone = {"child": "42", "left": "['MainThread'] True", "others": "True"}
    assert place.results() == [{**gone, "debugpy": "False"}, {**gone, "debugpy": "True"}]


def test_by_unix_sockets_nothing_listens_on_a_network(place: Place) -> None:
    """GIVEN --dap-unix WHEN a client comes by a rank's socket THEN it needs no token, and there is no port."""
    place.begin("--dap-unix")
    for rank in (0, 1):
        assert stat.S_IMODE(os.stat(place.path(rank)).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(place.path(0))).st_mode) == 0o700
    client, _ = place.stopped(1)
    assert place.bridge is not None
    assert not any(ports_of(pid) for pid in (place.bridge.pid, *(rank.pid for rank in place.ranks)))
    client.ask("disconnect")
    assert [one["debugpy"] for one in place.results()] == ["False", "True"]


def test_with_a_port_only_the_bridge_listens_and_only_on_loopback(place: Place) -> None:
    place.begin()
    assert place.bridge is not None
    place.stopped(0)
    host, port = place.address
    assert (host, ports_of(place.bridge.pid)) == ("127.0.0.1", [("0100007F", port)])
    assert not any(ports_of(rank.pid) for rank in place.ranks)


def ports_of(pid: int) -> list[tuple[str, int]]:
    """What a process listens on: addresses as the kernel writes them, and ports."""
    links = (link_of(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    mine = {found[1] for found in (re.match(r"socket:\[(\d+)\]", link) for link in links) if found}
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in mine:
                host, port = fields[1].split(":")
                listening.append((host, int(port, 16)))
    return listening


def test_while_a_client_is_there_the_others_know(place: Place) -> None:
    """GIVEN a client on rank 0 THEN rank 0 tells the others, who keep their timeouts long, and takes it back."""
    place.begin("--dap-unix")
    assert not place.entry(0)["debugging"]
    client, _ = place.stopped(0)
    assert place.entry(0)["debugging"]
    assert not place.entry(1)["debugging"]
    client.ask("disconnect")
    wait_for("the end of it", lambda: not place.entry(0)["debugging"])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_a_stopped_rank_costs_the_others_no_timeout(place: Place) -> None:
    """GIVEN gloo with two seconds WHEN a client keeps rank 0 for four THEN rank 1, without a client, waits for it."""
    place.program.write_text(TORCH)
    place.begin("--dap-unix")
    line = next(at for at, text in enumerate(TORCH.splitlines(), 1) if text.endswith("# here"))
    client = place.client(place.path(0))
    client.attach()
    (place.folder / "begin").touch()
    thread = client.run_to(str(place.program), line)
    time.sleep(4)
    assert [rank.poll() for rank in place.ranks] == [None, None]
    client.ask("continue", {"threadId": thread})
    client.event("stopped")
    (place.folder / "end").touch()  # soon: without a client two seconds are two seconds again
    client.ask("disconnect")
    assert [rank.communicate(timeout=DEADLINE)[0] for rank in place.ranks] == 2 * ["timeout 0:00:02\n"]


@on_every_python
def test_a_child_that_is_forked_meanwhile_is_not_stopped(place: Place) -> None:
    """GIVEN a breakpoint in step() WHEN the rank forks a child that calls step() THEN the child runs through."""
    place.begin("--dap-unix")
    client, thread = place.stopped(0)
    (place.folder / "fork").touch()
    while not (place.folder / "fork0").exists():  # the rank itself comes to the breakpoint again and again
        client.ask("continue", {"threadId": thread})
        client.event("stopped")
    client.ask("disconnect")
    place.ask_for("fork", 1)
    assert [one["child"] for one in place.results()] == ["42", "42"]


@on_every_python
def test_a_rank_that_is_blocked_in_c_is_said_to_be(place: Place) -> None:
    """GIVEN a rank asleep in C WHEN it is to pause THEN the client is told where it is and why it does not stop."""
    place.begin("--dap-unix")
    client = place.client(place.path(0))
    client.attach()
    client.ask("configurationDone")
    place.ask_for("sleep", 0)
    wait_for("its read", lambda: Path(f"/proc/{place.ranks[0].pid}/syscall").read_text().startswith("0 "))
    client.ask("pause", {"threadId": 1})
    said = client.event("output", category="important")["output"]
    line = next(at for at, text in enumerate(LINES, 1) if text.endswith("# in C"))
    assert f"rank 0 is in main, program.py:{line}" in said
    assert "debugpy cannot stop it there" in said and "breakranks stacks" in said
    (place.folder / "wake").write_text("xx")
    assert client.event("stopped", reason="pause")["threadId"] == 1


@on_every_python
def test_debugpy_of_the_bridge_serves_a_rank_that_has_none(place: Place) -> None:
    """GIVEN ranks of a Python without packages WHEN a client comes THEN they get our debugpy, and nothing beside it."""
    place.begin("--dap-unix", bare=True)
    client, _ = place.stopped(0)
    client.ask("disconnect")
    assert [(one["debugpy"], one["others"]) for one in place.results()] == [("True", "False"), ("False", "False")]


def test_debugpy_nowhere_is_said_with_the_remedy(place: Place) -> None:
    place.begin("--dap-unix", "--no-debugpy", bare=True)
    assert place.bridge is not None and place.bridge.wait(DEADLINE) == 1
    assert "debugpy is missing, both in the environment of breakranks and in ranks 0-1|" in place.said
    assert "pip install 'breakranks[dap]'" in place.said


# ---- who may not come in


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ({}, "breakranksToken is not the one"),
        ({"breakranksRank": 0}, "breakranksToken is not the one"),
        ({"breakranksRank": 0, "breakranksToken": "wrong"}, "breakranksToken is not the one"),
        ({"breakranksRank": 0, "breakranksToken": None}, "breakranksToken is not the one"),
        ({"breakranksRank": 0, "breakranksToken": "é"}, "breakranksToken is not the one"),
        ({"breakranksToken": "THE TOKEN"}, "breakranksRank is missing"),
        ({"breakranksRank": 7, "breakranksToken": "THE TOKEN"}, "it is not served here; ranks 0-1 are"),
    ],
)
def test_without_the_token_nobody_comes_in(place: Place, key: dict[str, Any], said: str) -> None:
    place.begin()
    if key.get("breakranksToken") == "THE TOKEN":
        key = {**key, "breakranksToken": place.key(0)["breakranksToken"]}
    client = place.client(place.address)
    client.ask("initialize", {"clientID": "test"})
    assert said in client.refused("attach", key)
    assert client.closed()
    assert [one["debugpy"] for one in place.results()] == ["False", "False"]


def test_before_attach_nothing_passes(place: Place) -> None:
    place.begin()
    for command in ("evaluate", "threads", "setBreakpoints", "disconnect", "launch", "attach", "terminate"):
        for first in (True, False):
            client = place.client(place.address)
            if first:
                client.ask("initialize")
            seq = client.send(command, {"expression": "1"})
            assert client.answer(seq)["success"] == (command == "disconnect")
            assert client.closed()
    assert [one["debugpy"] for one in place.results()] == ["False", "False"]


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "post": b'POST / HTTP/1.1\r\nContent-Length: 49\r\n\r\n{"seq":1,"type":"request","command":"initialize"}',
    "no number": b"Content-Length: many\r\n\r\n{}",
    "negative": b"Content-Length: -5\r\n\r\n{}",
    "huge": b"Content-Length: 99999999999\r\n\r\n{}",
    "no json": b"Content-Length: 5\r\n\r\n{{{{{",
    "deep": b"Content-Length: 200000\r\n\r\n" + 200000 * b"[",
    "a list": b"Content-Length: 2\r\n\r\n[]",
    "no kind": b"Content-Length: 2\r\n\r\n{}",
    "no seq": b'Content-Length: 36\r\n\r\n{"type":"request","command":"attach"}',
    "not utf-8": b"Content-Length: 4\r\n\r\n\xff\xfe\xfd\xfc",
    "a response": b'Content-Length: 27\r\n\r\n{"seq":1,"type":"response"}',
    "no end": 200_000 * b"x",
    "a header without end": b"Content-Length: 2\r\n" + 200_000 * b"a: b\r\n",
}


def test_garbage_ends_the_connection_and_nothing_else(place: Place) -> None:
    """GIVEN a bridge and a client WHEN others send anything at all THEN they are hung up on, and the client is not."""
    place.begin()
    good, thread = place.stopped(0)
    for name, data in GARBAGE.items():
        for address in (place.address, place.path(1)):
            bad = place.client(address)
            try:
                bad.socket.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # hung up on before all of it was there
            assert bad.closed(), name
    good.ask("continue", {"threadId": thread})
    good.event("stopped")
    good.socket.sendall(GARBAGE["http"])  # and from one that was good so far
    assert good.closed()
    assert [one["debugpy"] for one in place.results()] == ["True", "False"]


def test_one_client_a_rank(place: Place) -> None:
    """GIVEN a client on rank 0 WHEN another comes THEN it is refused; when the first has left it is let in."""
    place.begin()
    first, thread = place.stopped(0)
    second = place.client(place.address)
    second.ask("initialize")
    assert "another client is attached" in second.refused("attach", place.key(0))  # the rank stands still meanwhile
    assert second.closed()
    first.ask("continue", {"threadId": thread})
    first.event("stopped")
    first.ask("disconnect")
    third, _ = place.stopped(0)
    third.ask("disconnect")
    assert place.results()[0]["left"] == LEFT


def test_no_client_ends_a_rank(place: Place) -> None:
    """GIVEN a client WHEN it says terminate, and disconnects with terminateDebuggee THEN the rank runs on."""
    place.begin("--dap-unix")
    client, _ = place.stopped(0)
    can = next(one["body"]["capabilities"] for one in client.heard if one.get("event") == "capabilities")
    assert not (can["supportsTerminateRequest"] or can["supportTerminateDebuggee"])
    assert "a client does not end a rank" in client.refused("terminate")
    client.ask("disconnect", {"terminateDebuggee": True})
    assert client.closed()
    place.results()


# ---- leaving


@on_every_python
def test_a_client_that_vanishes_leaves_the_rank_running(place: Place) -> None:
    """GIVEN a stopped rank WHEN its client is gone without a word THEN it runs on, and does not stop again."""
    place.begin("--dap-unix")
    client = place.client(place.path(0))
    client.attach(redirectOutput=True)
    client.run_to(str(place.program), HERE)
    client.close()
    wait_for("the end of it", lambda: "has left" in place.said)
    again, _ = place.stopped(0)
    again.close()
    assert place.results()[0]["left"] == LEFT


@on_every_python
def test_a_client_that_leaves_at_once_leaves_no_thread(place: Place) -> None:
    """GIVEN a client WHEN it has gone before pydevd has started all that it needs THEN nothing of that stays."""
    place.begin("--dap-unix")
    client = place.client(place.path(0))
    client.attach()
    client.ask("disconnect")
    assert place.results()[0]["left"] == LEFT


def test_a_thread_that_ended_meanwhile_is_not_listed_for_ever(place: Place) -> None:
    """GIVEN a thread without an object WHEN pydevd has made one for it, and it ends THEN it is gone with the client."""
    place.program.write_text(RAW)
    place.begin("--dap-unix")
    client = place.client(place.path(0))
    client.attach()
    client.ask("configurationDone")
    client.ask("threads")
    (place.folder / "raw-end").touch()
    for rank in (0, 1):
        wait_for("its end", (place.folder / f"raw{rank}").exists)
    client.ask("disconnect")
    assert [one["left"] for one in place.results()] == [LEFT, LEFT]


def test_a_bridge_killed_with_9_leaves_the_ranks_running(place: Place) -> None:
    """GIVEN two stopped ranks WHEN the bridge is killed THEN they run on, and another bridge can be started."""
    place.begin("--dap-unix")
    clients = [place.stopped(rank)[0] for rank in (0, 1)]
    assert place.bridge is not None
    place.bridge.kill()
    place.bridge.wait()
    assert all(client.closed() for client in clients)
    wait_for("the end of it", lambda: not any(place.entry(rank)["debugging"] for rank in (0, 1)))
    place.serve("--dap-unix")
    again, _ = place.stopped(1)
    again.ask("disconnect")
    assert [one["left"] for one in place.results()] == [LEFT, LEFT]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_bridge_that_is_ended_cleans_up(place: Place, number: signal.Signals) -> None:
    """GIVEN a stopped rank WHEN the bridge gets Ctrl-C THEN the client is told, and nothing of it is left."""
    place.begin()
    client, _ = place.stopped(0)
    assert place.bridge is not None
    place.bridge.send_signal(number)
    client.event("terminated")
    assert client.closed()
    assert place.bridge.wait(DEADLINE) == 0
    assert not list(place.run.glob("*/dap-*"))
    assert "the job keeps running" in place.said
    assert place.results()[0]["left"] == LEFT


def test_two_bridges_do_not_fight_over_a_rank(place: Place) -> None:
    place.begin("--dap-unix")
    first = place.bridge
    try:
        place.serve("--dap-unix")
        assert place.bridge is not None and place.bridge.wait(DEADLINE) == 1
        assert "another `breakranks attach --dap` serves rank 0|End that one first" in place.said
    finally:
        place.bridge = first
    place.stopped(0)


def test_a_rank_that_ends_while_a_client_is_there(place: Place) -> None:
    """GIVEN a client WHEN the program comes to its end THEN the client is told, and the bridge ends with the job."""
    place.begin("--dap-unix")
    client = place.client(place.path(0))
    client.attach()
    client.ask("configurationDone")
    (place.folder / "end").touch()
    client.event("terminated")
    assert client.closed()
    assert [rank.wait(DEADLINE) for rank in place.ranks] == [0, 0]
    assert place.bridge is not None and place.bridge.wait(DEADLINE) == 0
    assert "the job has ended" in place.said


def test_a_rank_that_is_killed_while_a_client_is_there(place: Place) -> None:
    place.begin("--dap-unix")
    client, _ = place.stopped(0)
    place.ranks[0].kill()
    client.event("terminated")
    assert client.closed()
    other, _ = place.stopped(1)
    other.ask("disconnect")


# ---- launch.json


def test_launch_json_is_written_and_is_what_works(place: Place) -> None:
    """GIVEN a launch.json with entries of its own WHEN ours are written, twice THEN theirs stay and ours are new."""
    target = place.folder / ".vscode" / "launch.json"
    target.parent.mkdir()
    theirs = {"version": "0.1.0", "inputs": [1], "configurations": [{"name": "mine"}], "compounds": [{"name": "two"}]}
    target.write_text(json.dumps(merged(theirs, config_of(RankSet.parse("0-3"), "127.0.0.1", 1, "old"))))
    target.chmod(0o640)
    place.begin("--launch-json", str(target))
    found = json.loads(target.read_text())
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert (found["version"], found["inputs"]) == ("0.1.0", [1])
    names = ["rank 0 (breakranks)", "rank 1 (breakranks)"]
    assert [one["name"] for one in found["configurations"]] == ["mine", *names]
    assert found["compounds"][0] == {"name": "two"}
    assert found["compounds"][1:] == [{"name": "breakranks: ranks 0-1", "configurations": names, "stopAll": True}]
    assert {(one["type"], one["request"]) for one in found["configurations"][1:]} == {("debugpy", "attach")}
    place.config = {"configurations": found["configurations"][1:]}
    client = place.client(place.address)
    client.attach(**found["configurations"][2])  # an editor passes on all of it
    assert client.event("process")["systemProcessId"] == place.ranks[1].pid
    client.ask("disconnect")
    place.results()


def test_a_launch_json_with_comments_is_left_alone(place: Place) -> None:
    target = place.folder / "launch.json"
    target.write_text('// mine\n{"configurations": []}\n')
    place.begin("--launch-json", str(target))
    assert target.read_text() == '// mine\n{"configurations": []}\n'
    assert "is not plain JSON (comments?) and is left as it is. Add this to it:" in place.said
    assert '"breakranksToken"' in place.said


def test_a_new_launch_json_is_for_its_owner_alone(place: Place) -> None:
    target = place.folder / "new" / "launch.json"
    place.begin("--launch-json", str(target))
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert len(json.loads(target.read_text())["configurations"]) == 2
