"""A host that lies: what it says is data, the other hosts are shown all the same, and nothing of it runs or hangs here.

Both are peers (see ``peers``): `good` is honest and has rank 0 of a job, `evil` has rank 1 and tells the lie of the
test. The command runs in the test's own process, from its arguments to the text that it shows. Ten run as a person
runs them, against a real agent and a real rank 0.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from breakranks.hosts.controller import HostController
from breakranks.hosts.framing import FrameReader, FrameWriter
from breakranks.hosts.host_messages import FindJobs
from breakranks.hosts.transport_loop import TransportLoop
from breakranks.hosts.transports.transport_plan import HostPlan, Transport
from support.processes import Processes
from support.waiting import wait_for

from . import peers
from .in_process import Done, memory, run_here
from .peers import PORT

KEY = f"python-{PORT}"
# Seconds: to begin with; and where the good one was late or no lie was told, on a machine that stood still.
DEADLINES = (1.0, 10.0, 60.0)
LATE = re.compile("no answer in time|did not answer within|has not answered")
LONGEST = 300.0
TWO_JOBS = "2 jobs start with"
JOB = """
import os, time
def load_batch():
    time.sleep(1000)
open(os.environ["READY"], "w").close()
load_batch()
"""


Br = Callable[..., Done]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder with the server of the peers, while rank 0 of their job runs."""
    with tempfile.TemporaryDirectory() as name, Processes(Path(name)) as processes:
        folder = Path(name)
        (folder / "run").mkdir(mode=0o700)
        (folder / "train.py").write_text(JOB)
        env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        env |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(PORT), "READY": str(folder / "ready")}
        quiet = {"stdin": subprocess.DEVNULL}
        processes.start([sys.executable, str(folder / "train.py")], env, **quiet)
        processes.start([sys.executable, peers.__file__, str(folder / "peers")], **quiet)
        wait_for("rank 0 and the peers", lambda: (folder / "ready").exists() and (folder / "peers").exists())
        yield folder


@pytest.fixture
def br(place: Path, monkeypatch: pytest.MonkeyPatch) -> Br:
    """Run a command in this process, against both peers."""
    monkeypatch.setenv("BREAKRANKS_RUN", str(place / "run"))
    monkeypatch.chdir(place)

    def call(
        lie: str,
        command: str,
        *words: str,
        hosts: str = "good,evil",
        job: str = KEY,
        real: bool = False,
        deadlines: Sequence[float] = DEADLINES,
        timely: bool = False,  # whether the liar answers, so that one that is late has not been heard
    ) -> Done:
        argv = command_line(place, lie, command, *words, hosts=hosts, job=job, real=real)
        for deadline in deadlines:
            done = run_here([*argv, f"--deadline={deadline}"])
            shown = "good" not in hosts or is_shown(done, command) or TWO_JOBS in done.err
            told = not lie or (place / "lie.py.told").exists()
            if shown and told and not (timely and LATE.search(done.out + done.err)):
                break
        assert told, f"the lie was not told: {done}"
        return done

    return call


def command_line(place: Path, lie: str, command: str, *words: str, hosts: str, job: str, real: bool) -> list[str]:
    (place / "lie.py").write_text(lie)
    (place / "lie.py.told").unlink(missing_ok=True)
    transport = (
        f"{shlex.quote(sys.executable)} -I -S {shlex.quote(peers.__file__)} "
        f"{peers.REAL if real else ''}{place}/peers {place}/lie.py {{host}}"
    )
    argv = [command, f"exec:{transport}@{hosts}", *words]
    if command != "hosts":
        argv += ["--job", job]
    if command == "why":
        argv += ["--patience", "0", "--interval", "0"]
    return argv


def run(argv: list[str], env: dict[str, str], folder: Path) -> Done:
    """A command to its end in a process of its own, with the most memory that it had."""
    with Processes(folder) as processes, open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        one = processes.start(argv, env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        peak = 0

        def ended() -> bool:
            nonlocal peak
            peak = max(peak, memory("VmHWM", one.pid))
            assert peak < 1500, f"{peak} MiB"  # this machine has others
            return one.poll() is not None

        wait_for(f"the end of {argv}", ended, LONGEST)
    text = [(folder / name).read_bytes().decode(errors="replace") for name in ("out", "err")]
    return Done(one.returncode, text[0], text[1], peak)


def decent(done: Done) -> None:
    """It ended, in words, and nothing of a terminal's language came through."""
    said = done.out + done.err
    assert done.status in (0, 1, 2), said
    assert "Traceback" not in said and "unexpected" not in said, said
    odd = sorted({c for c in said if not c.isprintable() and c != "\n"})
    assert not odd, f"{odd}: {said}"


def is_shown(done: Done, command: str) -> bool:
    """Whether the good one is, by what it alone can say."""
    words = {"hosts": "good", "ps": "train.py", "attach": "42", "eval": "42"}
    return words.get(command, "load_batch") in done.out


def good_is_shown(done: Done, command: str) -> None:
    decent(done)
    assert is_shown(done, command), done


def evil_is_named(done: Done) -> bool:
    """Whether the other one is, as a host that is not seen."""
    return "evil" in done.out + done.err


def test_without_a_lie_both_are_shown(br: Br) -> None:
    done = br("", "stacks")
    decent(done)
    assert done.status == 0, done
    assert "load_batch" in done.out and "stand_here" in done.out, done.out
    decent(br("", "hosts"))


# ---- before it has said who it is

STREAMS = {
    "garbage": "def begin():\n while True: raw(os.urandom(65536)); time.sleep(0.01)",
    "no newline": "def begin():\n while True: raw(b'x' * 65536)",
    "no mark": "def begin():\n while True: raw(b'hello\\n' * 10000)",
    "marks alone": "def begin():\n while True: raw(b'@br1 ' * 10000 + b'\\n')",
    "empty pieces": "def begin():\n while True: raw(f'@br1 {nonce} evil 0 + \\n'.encode() * 2000)",
    "many senders": """def begin():
 for n in range(10**9): raw(f'@br1 {nonce} e{n} 0 + {"A" * 60000}\\n'.encode())""",
    "messages that never end": """def begin():
 for n in range(10**9): raw(f'@br1 {nonce} e{n // 3000} 0 + {"A" * 60000}\\n'.encode())""",
    "floods stderr": "def begin():\n while True: os.write(2, b'no ' * 20000)",
    "closes stdout": "def begin():\n os.close(1)\n time.sleep(600)",
    "closes stdout, floods stderr": "def begin():\n os.close(1)\n while True: os.write(2, b'no ' * 20000)",
    "bombs": "def begin():\n raw(writer.lines('evil', b'z', BOMBS['message']) * 3)\n os._exit(3)",
    "bombs that fit": "def begin():\n raw(writer.lines('evil', b'z', BOMBS['fits']) * 3)\n os._exit(3)",
}


@pytest.mark.parametrize("name", STREAMS)
def test_noise_takes_neither_memory_nor_time(br: Br, name: str) -> None:
    # Where it ends without a word, we wait a few seconds for its process, and for the others meanwhile not at all.
    done = br(STREAMS[name], "stacks", deadlines=(4.5, 40.0) if "closes" in name else DEADLINES)
    good_is_shown(done, "stacks")
    assert evil_is_named(done), done
    assert done.peak < (850 if "bomb" in name else 400), f"{done.peak} MiB"


FLOOD = """
from breakranks.hosts.framing import FrameReader
reader = FrameReader("0" * 16)
for n in range(600):
    assert not list(reader.feed(b"@br1 %s e%d 0 + %s\\n" % (b"0" * 16, n // SENDERS, b"QUFB" * 200_000)))
assert reader.broken
"""


@pytest.mark.parametrize("pieces", [1, 100, 600])
def test_messages_that_never_end(place: Path, pieces: int) -> None:
    """360 MB of beginnings, by many senders or by one: all together are bounded, not each."""
    done = run([sys.executable, "-c", FLOOD.replace("SENDERS", str(pieces))], {}, place)
    assert (done.status, done.err) == (0, "")
    assert done.peak < 330, f"{done.peak} MiB"


STAGES = {
    "failed, odd": "stage(stage='failed', what={'a': [1]}, help=[5])",
    "failed, and more": 'raw(writer.lines(\'evil\', b\'j\', b\'{"stage":"failed","what":"x"}\') * 9)',
    "no-python, a number": "stage(stage='no-python', found=5)",
    "no-python, odd": "stage(stage='no-python', found=[None, {'a': 1}, ESC])",
    "unknown": "stage(stage='../../x'); stage(stage=['need']); stage(stage={}); stage(); hello()",
    "no objects": "raw(writer.lines('evil', b'j', b'[1]')); raw(writer.lines('evil', b'j', b'\\xff{')); hello()",
    "deep": "raw(writer.lines('evil', b'j', b'[' * 200000)); hello()",
    "digits": "raw(writer.lines('evil', b'j', b'{\"stage\":' + b'9' * 100000 + b'}')); hello()",
    "need, lists": "stage(stage='need', suffix=['a'], machine={}, magic=5, have=7); hello()",
    "need, paths": "stage(stage='need', suffix='../../../etc', machine='/', magic='..', have=['../x'] * 9999); hello()",
    "need, deep in have": "stage(stage='need', suffix=None, machine=None, magic=None, have=[[], {}, None, 1]); hello()",
    "kinds": "[raw(writer.lines('evil', k, b'x' * 50)) for k in (b'f', b'q', b'\\x00', b'j', b'm')]; hello()",
}


@pytest.mark.parametrize("name", STAGES)
def test_stages(br: Br, name: str) -> None:
    done = br(f"def begin():\n {STAGES[name]}", "stacks")
    good_is_shown(done, "stacks")


@pytest.mark.slow
def test_need_again_and_again(br: Br) -> None:
    """It is sent once; asking for it again buys neither memory nor, for ever, time."""
    lie = """
def begin():
 for n in range(10**9):
  stage(stage='need', suffix=f's{n}', machine=os.uname().machine, magic=str(n), have=[])
  time.sleep(0.05)
"""
    done = br(lie, "stacks")
    decent(done)
    assert "load_batch" in done.out, done
    assert done.peak < 170, f"{done.peak} MiB"


# ---- its first word

HELLOS = {
    "escapes": "hello(host=ESC, user=ESC, python=ESC, version=ESC, aliases=[ESC], addresses=[ESC])",
    "protocol, and more": "hello(protocol=10**18); hello(); say('clock', time=1.0)",
    "types": "hello(pid='x'); hello(time='now'); say('hello'); hello(addresses=5); hello()",
    "nan": "hello(time=float('nan')); say('clock', time=float('nan'))",
    "infinite": "hello(time=float('inf')); say('clock', time=float('-inf'))",
    "far": "hello(time=1e300); say('clock', time=-1e300)",
    "addresses": "hello(addresses=['x' * 1000] * 20000 + ['localhost', 'good', '', '127.0.0.1'])",
    "twice": "[hello(pid=n) for n in range(2000)]",
    "somebody else": "say('hello', who='good', **dict(protocol=1, version='', python='', host='good', user='', pid=1, "
    "time=time.time(), same='other', aliases=['good']))",
    "unasked": "hello(); [say('taken', id=n, snapshot=b'') or say('failed', id=n, what='no') for n in range(-5, 50)]",
    "links": "hello(); [say('data', link=n, data=b'x' * 9999) or say('shut', link=n) for n in range(-5, 2000)]",
    "unknown words": "hello(); say('exec', code='1'); say(5); raw(writer.lines('evil', b'm', b'[' * 100000))",
    "requests": "hello(); say('eval', id=1, key='', ranks=None, takers='', question={}, deadline=1.0); say('bye')",
}


@pytest.mark.parametrize("command", ["why", "hosts"])
@pytest.mark.parametrize("name", HELLOS)
def test_first_words(br: Br, name: str, command: str) -> None:
    done = br(f"def begin():\n {HELLOS[name]}", command)
    good_is_shown(done, command)


# ---- which jobs it has

FOUND = {
    "negative": "found(ranks=[[-1, 5]])",
    "huge rank": "found(ranks=[[2**62, 5]])",
    "out of the world": "found(ranks=[[7, 5], [9_999_999, 6]])",
    "good's rank": "found(ranks=[[0, 5], [1, 6]])",
    "twice": "found(ranks=[[1, 5], [1, 6], [1, 5]])",
    "a million": "found(ranks=[[n, n] for n in range(1_000_000)], world_size=2)",
    "a million, in its world": "found(ranks=[[n, n] for n in range(1_000_000)], world_size=1_000_000)",
    "world": "found(world_size=2**62)",
    "negative world": "found(world_size=-(2**62))",
    "missing": "found(missing=[dict(ranks='x' + ESC, reason='exited')])",
    "missing, huge": "found(missing=[dict(ranks='0-' + '9' * 5000, reason='exited', detail=ESC)])",
    "nan": "found(started=float('nan'))",
    "at the end of time": "found(started=1e17)",
    "escapes": "found(key=ESC, launcher=ESC, command=[ESC], problems=[[ESC, ESC]])",
    "escapes, joined": "found(command=[ESC], problems=[[ESC, ESC]], missing=[dict(ranks='1', reason=ESC, detail=ESC)])",
    "types": "[[['x']]]",
    "many jobs": "[[[job(key=f'k{n}', ids={'a': str(n)}), [[n, n]], []] for n in range(3000)], []]",
    "pids": "found(ranks=[[1, -(2**60)]], launcher_pid=-1)",
}


@pytest.mark.parametrize("name", FOUND)
def test_jobs(br: Br, name: str) -> None:
    lie = f"def jobs(request):\n return {FOUND[name]}"
    deadlines = (6.0, 60.0) if "million" in name else DEADLINES
    timely = name not in ("types", "nan")  # which are not answers
    for command in ("ps", "stacks"):
        done = br(lie, command, deadlines=deadlines, timely=timely)
        if TWO_JOBS in done.err:  # two hosts say that they have the same rank: then these are two jobs
            decent(done)
            done = br(lie, command, job=f"{KEY}-good", deadlines=deadlines, timely=timely)
        good_is_shown(done, command)


# ---- what it sees

SNAPSHOTS = {
    "nothing": "b''",
    "text": "b'BREAKRANKS' + b'x' * 5000",
    "bomb": "BOMB",
    "cut off": "pack(snapshot())[:50]",
    "deep": 'zlib.compress(b\'{"launcher":{"children":[\' * 100_000)',
    "frame": "pack(replace(snapshot(), stacks=((), (5,))))",
    "stack": "pack(replace(snapshot(), stacks=((),)))",
    "good's rank": "pack(snapshot(0))",
    "not its rank": "pack(snapshot(9_999_999))",
    "negative rank": "pack(snapshot(-3))",
    "no rank": "pack(replace(snapshot(), ranks=()))",
    "many ranks": "pack(replace(snapshot(), ranks=tuple("
    "Rank(rank=n, host='good', process=Process(pid=n, parent=1, command=())) for n in range(100000))))",
    "hosts": "pack(replace(snapshot(), hosts=tuple(Host(name='good', state='lost', reason=ESC) for n in range(1000))))",
    "no hosts": "pack(replace(snapshot(), hosts=()))",
    "nan": "zlib.compress(zlib.decompress(pack(snapshot())).replace(b'\"interval\":0.0', b'\"interval\":NaN'))",
    "times": "pack(replace(snapshot(), time=1e300, interval=-1e300))",
    "escapes": "pack(replace(snapshot(), problems=(Problem(ESC, ESC),), frames=(Frame(ESC, ESC, -5),), "
    "hosts=(Host(name=ESC, oom_kills=(ESC,), reason=ESC),), made_by=ESC, "
    "missing=(Missing(ranks='0', reason=ESC, detail=ESC),)))",
    "process": "pack(replace(snapshot(), ranks=(replace(snapshot().ranks[0], process=Process("
    "pid=2**60, parent=-1, command=(ESC,) * 9, name=ESC, user=ESC, state=ESC, started=1e300, rss=-(2**60), "
    "cpu_percent=1e300, wchan=ESC, problems=(Problem(ESC, ESC),))),)))",
    "launcher": "pack(replace(snapshot(), "
    "launcher=Process(pid=1, parent=1, command=(ESC,), problems=(Problem(ESC),))))",
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_liar_can_make_its_snapshot(name: str) -> None:
    """GIVEN what a peer is to send THEN it is there: a peer that fails at it would seem to do no harm."""
    bombs = dict.fromkeys(peers.BOMBS, b"")
    space = {"host": "evil", "nonce": "0" * 16, "PORT": str(peers.PORT), "BOMBS": bombs, "BOMB": b""}
    exec(peers.PEER, space)
    assert isinstance(eval(SNAPSHOTS[name], space), bytes)


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_snapshots(br: Br, name: str) -> None:
    lie = f"BOMB = BOMBS['snapshot']\ndef taken(request):\n return {SNAPSHOTS[name]}"
    deadlines = (6.0, 60.0) if "many" in name else DEADLINES
    for command in ("why", "stacks") if name in ("escapes", "process", "times", "many ranks") else ("why",):
        done = br(lie, command, deadlines=deadlines, timely=True)
        good_is_shown(done, command)
        assert done.peak < 650, f"{done.peak} MiB"
    if name in ("good's rank", "not its rank", "many ranks"):
        assert "stand_here" not in done.out, f"it spoke for a rank that is not its own: {done.out}"


# ---- answers

ANSWERS = {
    "silence": "pass",
    "another kind": "say('checked', id=request.get('id', 0), steps=[])",
    "twice": "[say('failed', id=request.get('id', 0), what='no' + ESC, help=ESC) for _ in range(50)]",
    "long words": "say('failed', id=request.get('id', 0), what='no ' * 1000000, help='x' * 1000000)",
    "cut": "os.write(1, f'@br1 {nonce} evil 9 + QUFB'.encode()); os._exit(0)",
    "exit": "os.write(2, ESC.encode()); os.write(1, ESC.encode()); os._exit(3)",
    "ladder": "say('checked', id=request.get('id', 0), steps=[dict(name=ESC, fine=False, what=ESC, remedy=ESC)] * 3)",
    "signs of life": "[(say('clock', time=time.time()), time.sleep(0.1)) for _ in range(9000)]",
}


@pytest.mark.parametrize("command", ["ps", "stacks", "hosts", "why"])
@pytest.mark.parametrize("name", ANSWERS)
def test_answers(br: Br, name: str, command: str) -> None:
    done = br(f"def answer(request):\n {ANSWERS[name]}", command)
    good_is_shown(done, command)
    assert len(done.out + done.err) < 200_000


@pytest.mark.parametrize("name", ["exit", "twice"])
def test_alone(br: Br, name: str) -> None:
    """Then all that is said is an error."""
    for command in ("ps", "stacks", "why", "hosts"):
        decent(br(f"def answer(request):\n {ANSWERS[name]}", command, hosts="evil"))


def test_one_that_does_not_say_which_jobs_it_has(br: Br, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is lost before the others are looked at, and not only a moment later, with words behind the JSON."""
    lose = TransportLoop._lose

    def slowly(loop: TransportLoop, *which: Any) -> None:
        time.sleep(1.0)
        lose(loop, *which)

    monkeypatch.setattr(TransportLoop, "_lose", slowly)
    done = br("def jobs(request):\n time.sleep(600)", "why", "--json")
    good_is_shown(done, "why")
    assert [(one["hosts"], one["state"]) for one in json.loads(done.out)["job"]["lost_hosts"]] == [
        ("evil", "timed-out")
    ]
    assert "has not answered yet" not in done.out, done


def test_late_and_lost(br: Br) -> None:
    """Those that come in a second round are told of on another way."""
    done = br(
        "def begin():\n time.sleep(2.5)\n stage(stage='failed', what=ESC, help=ESC)", "stacks", deadlines=(4.0, 40.0)
    )
    good_is_shown(done, "stacks")
    assert evil_is_named(done), done


AGENTS = {
    "types": "[dict(job=5)]",
    "no path": "[dict(job='j', rank=1, pid=99, helper=False, path=ESC, debugging=False, program=ESC, place=ESC)]",
    "good's rank": "[dict(job='j', rank=0, pid=99, helper=False, path='/tmp/x', debugging=False)]",
    "many": "[dict(job='j', rank=1, pid=n, helper=False, path='/tmp/x', debugging=False) for n in range(300)]",
}


@pytest.mark.parametrize("name", AGENTS)
def test_agents_in_ranks(br: Br, name: str) -> None:
    lie = f"""
plain = answer
def answer(request):
 if request["type"] in ("attach", "agents"):
  say("attached", id=request["id"], agents={AGENTS[name]}, unreached=[dict(rank=1, pid=9, what=ESC, help=ESC)])
 elif request["type"] == "connect":
  say("data", link=request["link"], data=b"\\xff" * 70000)
  say("shut", link=request["link"])
 else:
  plain(request)
"""
    done = br(lie, "attach", "-c", "p 40 + 2", real=True)
    good_is_shown(done, "attach")


TOLD = {
    "types": "[dict(rank='x')]",
    "escapes": "[dict(rank=1, answer=dict(rank=1, text=ESC, value=dict(kind=ESC, type=ESC)), thread=ESC, help=ESC)]",
    "good's rank": "[dict(rank=r, answer=dict(rank=r, text='mine')) for r in (0, 1)]",
    "out of the world": "[dict(rank=r, answer=dict(rank=r, text='mine')) for r in (-5, 2**60)]",
    "where": "[dict(rank=1, answer=dict(rank=1, text='x'), where=dict(file=5, line=ESC, function=[1]))]",
}


@pytest.mark.parametrize("name", TOLD)
def test_what_ranks_say(br: Br, name: str) -> None:
    lie = f"""
plain = answer
def answer(request):
 if request["type"] == "eval":
  time.sleep(0.3)  # until the good one has answered
  say("told", id=request["id"], told={TOLD[name]})
 else:
  plain(request)
"""
    done = br(lie, "eval", "40 + 2")
    good_is_shown(done, "eval")


# ---- as a person runs it: a process of its own, a real agent on the good one, and a real rank in it

WHOLE: dict[str, tuple[str, tuple[str, ...], str]] = {
    "no lie": ("", ("stacks",), "load_batch"),
    "garbage": (STREAMS["garbage"], ("stacks",), "load_batch"),
    "bombs that fit": (STREAMS["bombs that fit"], ("stacks",), "load_batch"),
    "stage": (f"def begin():\n {STAGES['no-python, odd']}", ("stacks",), "load_batch"),
    "hello": (f"def begin():\n {HELLOS['escapes']}", ("why", "--patience=0"), "load_batch"),
    "jobs": (f"def jobs(request):\n return {FOUND['many jobs']}", ("ps",), "train.py"),
    "snapshot": (
        f"BOMB = BOMBS['snapshot']\ndef taken(request):\n return {SNAPSHOTS['bomb']}",
        ("why", "--patience=0"),
        "load_batch",
    ),
    "silence": (f"def answer(request):\n {ANSWERS['silence']}", ("hosts",), "good"),
    "exit": (f"def answer(request):\n {ANSWERS['exit']}", ("ps",), "train.py"),
    "long words": (f"def answer(request):\n {ANSWERS['long words']}", ("stacks", "--json"), "load_batch"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_command_lines(place: Path, name: str) -> None:
    lie, (command, *words), shown = WHOLE[name]
    argv = command_line(place, lie, command, *words, hosts="good,evil", job=KEY, real=True)
    environment = {"BREAKRANKS_RUN": str(place / "run")}
    for deadline in (4.0, 60.0):
        done = run([sys.executable, "-m", "breakranks", *argv, f"--deadline={deadline}"], environment, place)
        if shown in done.out:
            break
    decent(done)
    assert shown in done.out and evil_is_named(done), done
    assert not lie or (place / "lie.py.told").exists()
    assert done.peak < (900 if "bomb" in name else 450), f"{done.peak} MiB"


# ---- links


def test_no_host_speaks_on_anothers_link(place: Path) -> None:
    """Links are numbered through all hosts, so one knows the numbers of the others'."""
    (place / "lie.py").write_text("""
def answer(request):
 if request["type"] == "find":
  [say("data", link=n, data=b"injected") for n in range(5)]
  [say("shut", link=n) for n in range(5)]
  say("failed", id=request["id"], what="done")
 elif request["type"] == "connect" and host == "first":
  say("data", link=request["link"], data=b"mine")
""")
    nonce = "0123456789abcdef"
    words = (sys.executable, "-I", "-S", peers.__file__, str(place / "peers"), str(place / "lie.py"))
    transports = tuple(
        Transport(hosts=(one,), argv=(*words, one, f"@br1 {nonce} x"), piece=48_000) for one in ("first", "evil")
    )
    plan = HostPlan(name="exec:x@first,evil", scheme="exec", hosts=("first", "evil"), transports=transports)
    with HostController(plan, nonce=nonce, deadline=60, supply=lambda need: iter(())) as controller:
        assert controller.wait(lambda: len(controller.up) == 2, 60), controller.lost
        ours = controller.connect("first", "/nowhere")
        ours.settimeout(60)
        assert ours.recv(100) == b"mine"
        assert [name for name, _ in controller.ask({"evil": FindJobs(0)}, 60)] == ["evil"]
        ours.settimeout(0.5)
        with pytest.raises(TimeoutError):
            got = ours.recv(100)
            pytest.fail(f"another host said {got!r} on it, or shut it")
        ours.close()


# ---- the other way: an agent, and what it is told


class Told(NamedTuple):
    said: list[dict[str, object]]
    alive: bool
    peak: int


def tell_agent(place: Path, lines: Iterator[bytes], seconds: float = 90) -> Told:
    """A real agent, told lines; what it says until it has answered a question that comes after them."""
    nonce = "0123456789abcdef"
    code = f"from breakranks.hosts.host_agent import serve; serve(0, 1, nonce={nonce!r})"
    env = {**os.environ, "BREAKRANKS_RUN": str(place / "run")}
    agent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    assert agent.stdin is not None and agent.stdout is not None
    reader, alive = FrameReader(nonce), False
    said: list[dict[str, object]] = []
    try:
        try:
            for line in lines:
                agent.stdin.write(line)
            last = encoded({"type": "check", "id": 4242})
            agent.stdin.write(FrameWriter(nonce, 48_000, 10**9).lines("*", b"m", last))
            agent.stdin.flush()
        except BrokenPipeError:
            return Told(said, False, 0)
        until = time.monotonic() + seconds
        while not alive and time.monotonic() < until:
            data = os.read(agent.stdout.fileno(), 1 << 16)
            if not data:
                break
            said += [json.loads(one.body) for one in reader.feed(data)]
            alive = any(one.get("id") == 4242 for one in said)
        return Told(said, alive, memory("VmHWM", agent.pid))
    finally:
        agent.kill()
        agent.wait()
        agent.stdin.close()
        agent.stdout.close()


def encoded(message: object) -> bytes:
    return json.dumps(message, default=lambda data: base64.b64encode(data).decode()).encode()


def words(*messages: object) -> Iterator[bytes]:
    writer = FrameWriter("0123456789abcdef", 48_000)
    for message in messages:
        yield writer.lines("*", b"m", message if isinstance(message, bytes) else encoded(message))


LINES: dict[str, Callable[[], Iterator[bytes]]] = {
    "unknown": lambda: words({"type": "exec", "code": "1"}, {"type": 5}, [1], None, b"\xc1", {}),
    "types": lambda: words(
        {"type": "find", "id": "x"},
        {"type": "sample", "id": 1, "look": 5},
        {"type": "data", "link": "x", "data": 5},
        {"type": "eval", "id": 1, "key": "", "ranks": None, "takers": "x", "question": {"a": 1}, "deadline": 1.0},
        {"type": "attach", "id": 2, "key": "../..", "ranks": "x", "deadline": 1e300},
        {"type": "end", "id": 3, "pids": []},
    ),
    "links": lambda: words(
        {"type": "data", "link": 77, "data": b"x" * 100_000}, {"type": "shut", "link": 77}, {"type": "shut", "link": -1}
    ),
    "deep": lambda: words(b'{"type":"eval","question":{"a":' + b"[" * 200_000),
    "300 MB": lambda: (b"@br1 0123456789abcdef * 5 + " + b"QUFB" * 12_000 + b"\n" for _ in range(8_400)),
    "bomb": lambda: iter(
        [FrameWriter("0123456789abcdef", 48_000).lines("*", b"z", zlib.compress(b"m" + bytes((1 << 28) + (1 << 20))))]
    ),
    "noise": lambda: iter([os.urandom(3_000_000), b"\n", b"@br1 " * 100_000, b"\n", b"x" * 3_000_000, b"\n"]),
    "another's": lambda: iter([FrameWriter("f" * 16, 48_000).lines("*", b"m", encoded({"type": "bye"}))]),
    "another host's": lambda: iter(
        [FrameWriter("0123456789abcdef", 48_000).lines("nobody", b"m", encoded({"type": "bye"}))]
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_an_agent_goes_on(place: Path, name: str) -> None:
    told = tell_agent(place, LINES[name]())
    assert told.alive, told.said
    assert told.peak < 1100, f"{told.peak} MiB"


def test_an_agent_connects_only_where_it_has_told_of(place: Path) -> None:
    path = str(place / "secret.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(0.3)
        told = tell_agent(place, words({"type": "connect", "id": 0, "link": 3, "path": path}))
        assert told.alive
        assert {"type": "shut", "link": 3} in told.said
        with pytest.raises(TimeoutError):
            listener.accept()
