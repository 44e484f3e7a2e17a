"""Promise 1 with breakpoints: whatever becomes of a console or of a rank, all others run on, with right results."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.targets import Interpreter, on_every_python
from support.waiting import DEADLINE_SECONDS as DEADLINE
from support.waiting import wait_for

from .console_program import everyone_total, steps_total
from .terminals import BREAKRANKS, CTRL_C, Place, Terminal, line_of, said_to_have_ended

NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path, interpreter: Interpreter) -> Iterator[Place]:
    with Place(tmp_path, interpreter) as place:
        yield place


def kill(console: Terminal) -> None:
    console.process.kill()


def hang_up(console: Terminal) -> None:
    console.close()


# ---- consoles that are gone


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("", kill),
        ("", hang_up),
        ("!while True: pass", kill),
        ("!import time; time.sleep(1000)", hang_up),
        ("all !import time; time.sleep(1000)", kill),
    ],
    ids=[
        "killed at a prompt",
        "hung up at a prompt",
        "killed in a loop",
        "hung up in a sleep",
        "killed, all in a sleep",
    ],
)
def test_a_console_that_is_gone_holds_nobody(place: Place, line: str, end: Callable[[Terminal], None]) -> None:
    """GIVEN a console at its prompt, or whose ranks evaluate WHEN it is killed or its terminal closed THEN all end."""
    job = place.job(3, "steps", "3")
    job.stopped()
    console = place.console()
    if line:
        console.keys(line + "\r")
        console.expect(re.compile(r"ranks? 0.* in .*\n"))  # it says where they are
    end(console)
    job.ends()
    assert [job.result(rank) for rank in range(3)] == [str(steps_total(rank, 3)) for rank in range(3)]
    assert console.process.wait(DEADLINE) != 0


@pytest.mark.parametrize(("command", "end"), [("unt", kill), ("c", kill), ("c", hang_up)])
@on_every_python
def test_a_console_that_is_gone_leaves_nobody_traced(
    place: Place, command: str, end: Callable[[Terminal], None]
) -> None:
    """WHEN it is gone while ranks run to the end of a step, or to a breakpoint THEN they run as if never traced."""
    job = place.job(2, "spin")
    job.stopped()
    console = place.console()
    console.ask("n")
    console.ask("n")
    console.ask(f"b {line_of('behind')}")
    if command == "unt":  # to a line after the loop
        command = f"unt {line_of('behind')}"
    console.keys(command + "\r")
    console.expect(re.compile(r"running|in spin.*\n|in stat.*\n|breakpoints\n"))
    end(console)
    wait_for("nobody to be traced", lambda: not job.stops())
    (place.folder / "end").touch()
    job.ends()
    assert [job.result(rank) for rank in range(2)] == ["spun"] * 2


@on_every_python
def test_two_consoles_at_once(place: Place) -> None:
    """Both are answered. One is killed: the ranks stay. The second leaves: they go."""
    job = place.job(2, "everyone", "3")
    job.stopped()
    first, second = place.console(), place.console()
    assert "1 other console is connected: ranks stay stopped until all have left" in second.opening
    assert first.ask("p RANK * 0 + 1") == second.ask("p RANK * 0 + 1") == "[0-1] 1"
    assert "counted" in first.ask("n")
    # What one does is seen in the other, which may be just about to say it by itself.
    wait_for("the other to see it", lambda: f":{line_of('counted')} in everyone" in second.ask("ranks"))
    first.process.kill()
    first.process.wait(DEADLINE)
    time.sleep(1.0)  # that is several looks of the agents'
    assert set(job.stops()) == {0, 1}
    assert second.ask("p 2") == "[0-1] 2"
    assert " stopped, " in second.ask("c")
    wait_for("both to have stopped again", lambda: second.ask("p i") == "[0-1] 1")
    second.keys("q\r")
    assert second.ends() == 0
    job.ends()
    assert [job.result(rank) for rank in range(2)] == [str(everyone_total(rank, 3)) for rank in range(2)]


def turns(place: Place, rank: int) -> int:
    path = place.folder / f"turns.{rank}"
    return int(path.read_text()) if path.exists() else 0


def test_after_q_breakpoints_are_off_until_somebody_comes_again(place: Place) -> None:
    job = place.job(2, "passing")
    job.stopped()
    for _ in range(2):
        console = place.console()
        # The other rank, which is held for this one, may come first.
        wait_for("rank 0 at its prompt", lambda console=console: re.match("0 +prompt ", console.ask("ranks")))
        assert "rank 0 stopped, " in console.seen
        assert console.at == "[0] > "
        assert console.ask("p 5").splitlines()[0] == "5"  # the other rank may come after it
        console.keys("q\r")
        assert console.ends() == 0
        assert "the job keeps running\n" in console.rest()
        seen = [turns(place, rank) for rank in range(2)]
        wait_for("both to run on", lambda seen=seen: all(turns(place, rank) > seen[rank] + 20 for rank in range(2)))
        assert not job.stops()
    # A script arms them too, and leaves the ranks at their prompt.
    assert place.batch("p 6").stdout == "[0] > p 6\n6\n"
    job.stopped()
    assert place.batch("q").returncode == 0
    seen = [turns(place, rank) for rank in range(2)]
    wait_for("both to run on", lambda: all(turns(place, rank) > seen[rank] + 20 for rank in range(2)))
    (place.folder / "end").touch()
    job.ends()
    said = job.said(0)
    assert said.count("breakpoints have been off since the console left; `breakranks console` turns them on\n") == 1


# ---- ranks that are gone


@pytest.mark.parametrize("watched", [True, False])
def test_a_rank_that_is_killed_at_its_prompt_holds_nobody(place: Place, watched: bool) -> None:
    job = place.job(3, "steps", "3")
    job.stopped()
    console = place.console() if watched else None
    job.ranks[0].kill()
    job.ends(but=[0])
    assert [job.result(rank) for rank in (1, 2)] == [str(steps_total(rank, 3)) for rank in (1, 2)]
    if console is not None:  # it sees it, unasked
        assert console.ends() == 0
        assert 0 in said_to_have_ended(console.seen)  # the others may have ended by then, too
        assert "the job has ended" in console.seen


@on_every_python
def test_a_rank_that_ends_itself_at_its_prompt(place: Place) -> None:
    job = place.job(3, "steps", "2")
    job.stopped()
    console = place.console()
    console.keys("!import os; os._exit(3)\r")
    console.expect("has ended")
    job.ends(but=[0])
    assert job.ranks[0].wait(DEADLINE) == 3
    assert [job.result(rank) for rank in (1, 2)] == [str(steps_total(rank, 2)) for rank in (1, 2)]
    assert console.ends() == 0


@on_every_python
def test_an_exit_at_the_prompt_is_no_exit_of_the_job(place: Place) -> None:
    """As in pdb, what a line raises is said at the prompt."""
    job = place.job(2, "steps", "1")
    job.stopped()
    console = place.console()
    for line, said in (
        ("!raise SystemExit(3)", "*** SystemExit: 3"),
        ("!import sys; sys.exit(3)", "*** SystemExit: 3"),
        ("p exit(4)", "*** SystemExit: 4"),
        ("pp exit(4)", "*** SystemExit: 4"),
        ("!raise KeyboardInterrupt", "*** KeyboardInterrupt"),
        ("p (_ for _ in ()).throw(GeneratorExit)", "*** GeneratorExit"),
    ):
        assert (line, console.ask(line)) == (line, said)
        assert console.at == "[0] > "
    assert console.ask("p loss") == "0.0"
    console.keys("c\r")
    assert console.ends() == 0
    job.ends()


# ---- what is too much, and what never ends


def peak(pid: int) -> tuple[int, int]:
    """The resident memory of a process in MiB: now, and at its highest."""
    found = dict(re.findall(r"(VmRSS|VmHWM):\s*(\d+)", Path(f"/proc/{pid}/status").read_text()))
    return int(found["VmRSS"]) >> 10, int(found["VmHWM"]) >> 10


def test_values_and_prints_of_a_gigabyte_are_cut(place: Place) -> None:
    """Bounded, in the console and in the rank; what is missing is counted."""
    job = place.job(1, "everyone", "1")
    job.stopped()
    console = place.console()
    for line, made, begins in (
        ("p 'x' * 10**9", 10**9, "'xxx"),
        ("!import sys; [print('y' * 1000) for _ in range(10**6)]", 1001 * 10**6 + len("None, ") * 10**6, ""),
        ("p list(range(10**6))", 0, "[0, 1, 2"),
    ):
        shown = console.ask(line)
        assert begins in shown[:100]
        assert len(shown) < 400_000
        if made:
            [more] = re.findall(r"… ([\d,]+) characters more \(cut\)", shown)
            assert abs(int(more.replace(",", "")) + 256 * 1024 - made) < 10_000
        now, _ = peak(job.ranks[0].pid)
        assert now < 300
    assert console.ask("p 1") == "1"
    console.keys("c\r")
    assert console.ends() == 0
    job.ends()


@on_every_python
def test_what_never_ends_is_ended_by_interrupt(place: Place) -> None:
    job = place.job(2, "steps", "1")
    job.stopped()
    console = place.console()
    for line in ("!while True: pass", "!import time; time.sleep(1000)", "!import os; os.read(os.pipe()[0], 1)"):
        console.keys(line + "\r")
        console.expect(re.compile(r"rank 0 is in .*\n"))
        console.keys(CTRL_C)
        console.prompt()
        assert console.at == "[0] > "
        assert re.search(r"^0  evaluating  ", console.ask("ranks"), re.MULTILINE)
        console.ask("interrupt")
        wait_for("the end of it", lambda: "evaluating" not in console.ask("ranks"))
        assert console.ask("p loss") == "0.0"
        assert console.ask("p loss + 1") == "1.0"  # an answer of its own, not the one before
    console.keys("c\r")
    assert console.ends() == 0
    job.ends()
    assert [job.result(rank) for rank in range(2)] == [str(steps_total(rank, 1)) for rank in range(2)]


def test_a_script_does_not_wait_for_ever(place: Place) -> None:
    job = place.job(2, "steps", "1")
    job.stopped()
    done = place.batch("!while True: pass", "interrupt", "p loss", "go", options=["--timeout", "3"])
    assert done.returncode == 1  # something was not answered
    assert done.stdout.splitlines()[-3:] == ["0.0", "[0] > go", "ranks 0-1 resume"]
    job.ends()


# ---- folders that are not private


def is_open(run: Path) -> str:
    run.chmod(0o777)
    return "is open to other users (mode 777). Run: chmod 700 "


def is_a_link(run: Path) -> str:
    run.rename(run.with_name("other"))
    run.symlink_to("other")
    return "is not a folder (a link or a file). Remove it, or set BREAKRANKS_RUN to a folder that you own."


def is_a_file(run: Path) -> str:
    run.rmdir()
    run.touch()
    return "is not a folder (a link or a file). Remove it, or set BREAKRANKS_RUN to a folder that you own."


def is_anothers(run: Path) -> str:
    os.chown(run, NOBODY, -1)
    return f"belongs to user {NOBODY}. Set BREAKRANKS_RUN to a folder that you own."


def has_no_parent(run: Path) -> str:
    run.rmdir()
    run.symlink_to("missing/run")
    return "is not a folder (a link or a file). Remove it, or set BREAKRANKS_RUN to a folder that you own."


@pytest.mark.parametrize("spoil", [is_open, is_a_link, is_a_file, is_anothers, has_no_parent])
def test_a_folder_that_is_not_private_is_not_used(place: Place, spoil: Callable[[Path], str]) -> None:
    """THEN the ranks say it with the remedy and run to their end; the console says it and ends with status 2."""
    if spoil is is_anothers and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    said = spoil(place.run)
    job = place.job(2, "steps", "2")
    job.ends()
    assert [job.result(rank) for rank in range(2)] == [str(steps_total(rank, 2)) for rank in range(2)]
    for rank in range(2):
        assert job.said(rank).count("breakranks: breakpoints are off in this process.") == 1
        assert said in job.said(rank)
        assert len(job.said(rank).splitlines()) == 1
    assert not place.run.is_dir() or not list(place.run.iterdir())
    done = place.batch("w", options=["--wait", "1"])
    assert done.returncode == 2
    assert said in done.stderr
    terminal = place.terminal([BREAKRANKS, "console"])
    assert terminal.ends() == 2
    assert said in terminal.seen


def test_a_folder_that_opens_while_the_job_is_stopped(place: Place) -> None:
    """The console does not trust what it finds there; put right, it goes on."""
    job = place.job(2, "steps", "1")
    job.stopped()
    place.run.chmod(0o777)
    done = place.batch("p loss", options=["--wait", "1"])
    assert done.returncode == 2
    assert f"Run: chmod 700 {place.run}" in done.stderr
    place.run.chmod(0o700)
    assert place.batch("p loss", "go").returncode == 0
    job.ends()


# ---- strangers at the socket


def connect(path: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.settimeout(DEADLINE)
    handle = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        found.connect(f"/proc/self/fd/{handle}/{path.name}")  # the path itself may be too long for a socket
    finally:
        os.close(handle)
    return found


class Talk:
    """A console by hand: a connection to the agent of one rank."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile("rw", encoding="utf-8")

    def ask(self, **request: object) -> dict[str, Any]:
        """Send a request; the reply to it."""
        print(json.dumps({"id": 5, **request}), file=self._lines, flush=True)
        while True:
            line = self._lines.readline()
            assert line, f"no answer to {request}"
            reply: dict[str, Any] = json.loads(line)
            if reply.get("id") == 5 or reply["event"] == "hello":
                return reply


def test_what_resumes_a_rank_is_not_for_its_next_stop(place: Place) -> None:
    """GIVEN a rank that is held again WHEN a `go` and a `c` for the stop before come late THEN it stays."""
    job = place.job(2, "steps", "2")
    job.stopped()
    sockets = place.sockets()
    with connect(sockets[0]) as first, connect(sockets[1]) as second:
        stopper, held = Talk(first), Talk(second)
        stopper.ask(do="hello", console=True)
        before = held.ask(do="hello", console=True)
        stopper.ask(do="go")
        wait_for("the next stop", lambda: held.ask(do="state")["turn"] > before["turn"] + 1)
        later = wait_for("rank 1 to be held", lambda: seen if (seen := held.ask(do="state")).get("role") else None)
        held.ask(do="go", turn=before["turn"])
        late = held.ask(do="run", line="c", turn=before["turn"])
        assert late["went"], late
        answer = held.ask(do="run", line="p 6 * 7")
        assert (answer.get("text"), answer["state"]["turn"]) == ("42\n", later["turn"]), answer
        held.ask(do="go", turn=later["turn"])
        wait_for("rank 1 to run", lambda: set(job.stops()) == {0})
        stopper.ask(do="go")
    job.ends()


def test_a_step_of_a_stop_that_has_ended_is_not_for_the_running_rank(place: Place) -> None:
    """GIVEN a rank that has resumed WHEN a `c` for its stop comes late, as in an attach THEN that is no error."""
    job = place.job(1, "spin")
    job.stopped()
    with connect(place.sockets()[0]) as connection:
        rank = Talk(connection)
        before = rank.ask(do="hello", console=True)
        rank.ask(do="go")
        running = wait_for("it to run", lambda: seen if (seen := rank.ask(do="state"))["state"] == "running" else None)
        late = rank.ask(do="run", line="c", look=True, turn=before["turn"])
        assert late["went"], late
        # A `c` that is meant for the running rank is refused.
        refused = rank.ask(do="run", line="c", look=True, turn=running["turn"] + 1)
        assert "not stopped" in refused["text"], refused
        (place.folder / "end").touch()
        wait_for("the next stop", lambda: rank.ask(do="state")["state"] == "stopped")
        rank.ask(do="go")
    job.ends()


GARBAGE = (
    b"garbage",
    b"\x00\xff\xfe\x80",
    b"",
    b"null",
    b"[1, 2]",
    b'"hello"',
    b"1e400",
    b"[" * 100_000,
    b"{}",
    b'{"do": null}',
    b'{"do": ["run"]}',
    b'{"do": "no such word", "id": {}}',
    b'{"do": "run"}',
    b'{"do": "run", "id": "x", "line": "p 1"}',
    b'{"do": "run", "id": 1e400, "line": "p 1"}',
    b'{"do": "run", "id": [], "line": 7}',
    b'{"do": "run", "id": 1, "line": "p 1", "takers": "junk"}',
    b'{"do": "run", "id": 1, "line": "p 1", "takers": "0-99999999999999999999"}',
    b'{"do": "run", "id": 1, "line": "\\ud800\\u0000"}',
    b'{"do": "go", "only": true, "ranks": "junk"}',
    b'{"do": "go", "only": true, "ranks": {"a": 1}}',
    b'{"do": "complete", "text": "loss.\\u0000("}',
    b'{"do": "where", "id": ' + b"9" * 5000 + b"}",
    b'{"do": "hello", "console": "maybe", "version": []}',
    b'{"do": "interrupt", "hold": {}}',
)


@on_every_python
def test_garbage_at_the_socket_harms_nobody(place: Place) -> None:
    """GIVEN a stopped rank WHEN nonsense, a huge line and half a line come THEN it is there for consoles as before."""
    job = place.job(2, "steps", "1")
    job.stopped()
    path = place.sockets()[0]
    keeper = place.console()  # ranks go on when the last console leaves: garbage may say that it is one
    for message in GARBAGE:
        with connect(path) as stranger:
            stranger.sendall(message + b"\n")
            stranger.sendall(b'{"do": "state", "id": 77}\n')
            reply = b""
            while b'"id": 77' not in reply:
                chunk = stranger.recv(65536)
                assert chunk, message[:100]
                reply += chunk
        assert keeper.ask("p loss") == "0.0", message[:100]
    assert place.batch("p loss").stdout == "[0] > p loss\n0.0\n"
    with connect(path) as half, connect(path) as huge:
        half.sendall(b'{"do": "hel')
        with pytest.raises((BrokenPipeError, ConnectionResetError, TimeoutError)):  # it is not read to its end
            for _ in range(64):
                huge.sendall(b"x" * (1 << 20))
        assert place.batch("p loss").stdout == "[0] > p loss\n0.0\n"
        assert peak(job.ranks[0].pid)[1] < 200
    assert keeper.ask("all p 3") == "[0-1] 3"
    assert set(job.stops()) == {0, 1}
    keeper.keys("go\r")
    assert keeper.ends() == 0
    job.ends()
    assert [job.result(rank) for rank in range(2)] == [str(steps_total(rank, 1)) for rank in range(2)]


def test_one_that_asks_and_never_reads_is_let_go(place: Place) -> None:
    """WHEN somebody asks for much and reads nothing THEN the rank's memory does not grow for it."""
    job = place.job(1, "everyone", "1")
    job.stopped()
    keeper = place.console()
    with connect(place.sockets()[0]) as deaf:
        deaf.settimeout(0.5)
        try:
            for number in range(1000):
                ask = {"do": "run", "id": number, "line": "p 'x' * 250000", "takers": "0"}
                deaf.sendall(json.dumps(ask).encode() + b"\n")
        except (TimeoutError, OSError):
            pass
        assert keeper.ask("p 1") == "1"  # behind all of them
        assert peak(job.ranks[0].pid)[1] < 180
    keeper.keys("c\r")
    assert keeper.ends() == 0
    job.ends()


STRANGER = """
import json, os, socket, sys
found = []
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:3]:
    try:
        found.append(os.listdir(path))
    except OSError as error:
        found.append(type(error).__name__)
one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
one.settimeout(60)
try:
    one.connect(sys.argv[3])
    one.sendall(b'{"do": "hello", "console": true}\\n')
    found.append(one.recv(65536).decode())
except OSError as error:
    found.append(type(error).__name__)
print(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_nothing() -> None:
    """Not the names in the folder, not a connection; and where the folder has been opened, not a word."""
    folder = Path(tempfile.mkdtemp(prefix="br-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        with Place(folder) as place:
            job = place.job(2, "steps", "1")
            job.stopped()
            path = place.sockets()[0]
            assert path.stat().st_mode & 0o777 == 0o600
            command = [sys.executable, "-c", STRANGER, str(place.run), str(path.parent), str(path)]

            def ask() -> list[object]:
                return list(json.loads(place.call(command).stdout))

            assert ask() == ["PermissionError"] * 3
            for one, mode in ((place.run, 0o777), (path.parent, 0o777), (path, 0o666)):
                one.chmod(mode)
            listing, inner, heard = ask()
            assert isinstance(listing, list) and isinstance(inner, list)  # as root opened them to all
            assert heard in ("", "ConnectionResetError", "BrokenPipeError")
            for one, mode in ((place.run, 0o700), (path.parent, 0o700), (path, 0o600)):
                one.chmod(mode)
            assert set(job.stops()) == {0, 1}  # a stranger who leaves is no console that leaves
            assert place.batch("p loss", "go").returncode == 0
            job.ends()
    finally:
        shutil.rmtree(folder)


# ---- and nothing is left


def test_nothing_is_left_in_the_folder(place: Place) -> None:
    """WHEN all have ended, well or by -9 THEN a console finds nobody, and the folder of the job goes."""
    job = place.job(2, "steps", "1")
    job.stopped()
    assert place.batch("go").returncode == 0
    job.ends()
    assert [path.name for path in place.run.iterdir() if path.name != "print.lock"] == []
    job = place.job(2, "steps", "1")
    job.stopped()
    for rank in job.ranks:
        rank.kill()
        rank.wait(DEADLINE)
    assert place.batch("w", options=["--wait", "0"]).returncode == 2
    assert [path.name for path in place.run.iterdir() if path.name != "print.lock"] == []


def test_a_job_without_file_handles_runs_on(place: Place) -> None:
    """WHEN the socket cannot be had (no file handles are left) THEN it is said, and the job runs to its end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (5, hard))

    job = place.job(1, "steps", "2", preexec_fn=few)
    assert soft > 5
    job.ends()
    assert job.result(0) == str(steps_total(0, 2))
    assert "breakranks: breakpoints are off in this process." in job.said(0)
    assert "Traceback" not in job.said(0)
    assert signal.SIGKILL not in [-(rank.returncode or 0) for rank in job.ranks]
