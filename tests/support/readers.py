"""All readers of untrusted data in breakranks, each with seeds, for fuzzing.

A reader may refuse its input with a BreakranksError that has a remedy. Any other exception is a bug.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from breakranks.errors import BreakranksError, SnapshotError
from breakranks.rankset import RankSet
from breakranks.snapshot import snapshot_file as snapshot_file
from breakranks.snapshot.model import Snapshot

from .mutations import mutated_bytes, mutated_value

DATA = Path(__file__).parents[1] / "data"
ROUND = 400  # cases for which one process of a reader is kept
_NONCE = "0123456789abcdef"


class Reader(NamedTuple):
    """``seeds`` returns valid inputs, ``read`` is the reader, ``vary`` makes another input of one."""

    seeds: Callable[[], tuple[bytes, ...]]
    read: Callable[[bytes], None]
    vary: Callable[[random.Random, bytes], bytes] | None = None


def case(name: str, seed: int) -> bytes:
    """One input for a reader. The same seed gives the same input again."""
    return varied(name, random.Random(f"{name} {seed}"))


def varied(name: str, chance: random.Random) -> bytes:
    reader = READERS[name]
    seeds = reader.seeds()
    data = chance.choice(seeds)
    if reader.vary is not None and chance.random() < 0.6:
        return reader.vary(chance, data)
    return mutated_bytes(chance, data, seeds)


def tried(name: str, data: bytes) -> str:
    """Pass an input to its reader, and return "read" or "refused". Any other exception is raised."""
    try:
        READERS[name].read(data)
    except BreakranksError as error:
        if not error.message or not error.help:
            raise AssertionError(f"refused without a remedy: {error.message}") from error
        return "refused"
    return "read"


# ---- snapshots


def _looked_at(snapshot: Snapshot) -> None:
    """Print everything that is shown of a snapshot."""
    from breakranks.explain.collectives.collective_progress import CollectiveProgress
    from breakranks.explain.collectives.group_progress import standings
    from breakranks.explain.verdict import explain
    from breakranks.show import ps_lines, stack_tree, top_view
    from breakranks.show.collective_lines import collectives_lines
    from breakranks.show.collectives_json import collectives_json
    from breakranks.show.json_output import ps_json, stacks_json, to_text, why_json
    from breakranks.show.terminal_text import TerminalStyle, render
    from breakranks.show.verdict_lines import why_lines

    look = TerminalStyle(width=100)
    diagnosis = explain(snapshot)
    ledger = CollectiveProgress(snapshot)
    groups = standings(ledger)
    for lines in (
        why_lines(snapshot, diagnosis, look),
        stack_tree.stacks_lines(snapshot, look, threads=True, native=True),
        stack_tree.stacks_lines(snapshot, look, flat=True),
        ps_lines.ps_lines([snapshot], look),
        top_view.frame_lines(snapshot, diagnosis, look, height=40),
        collectives_lines(ledger, groups, look, history=3),
    ):
        render(lines, look)
    for value in (
        why_json(snapshot, diagnosis),
        stacks_json(snapshot, threads=True),
        ps_json([snapshot]),
        collectives_json(ledger, groups),
    ):
        to_text(value)


@cache
def _snapshots() -> tuple[bytes, ...]:
    from unit import test_own_frames, test_rules_introspection, test_snapshot_file

    folders = ("healthy", "missing", "moe", "p2p_unrecorded", "size_differs")
    made = [test_snapshot_file.example(), *(_of_dumps(DATA / "flight" / name) for name in folders)]
    held = test_rules_introspection.held(100, 7)
    made += [test_rules_introspection.with_waits(held).snapshot(), test_own_frames.attached().snapshot()]
    recorded = [path.read_bytes() for path in sorted(DATA.rglob("*.brk"))]
    return (*(snapshot_file.pack(one) for one in made), *recorded)


def _of_dumps(folder: Path) -> Snapshot:
    from breakranks.observe.dump_snapshot import together
    from breakranks.observe.recorder.dump_folder import _read_file, files

    return together(str(folder), map(_read_file, files(str(folder))))


def _read_snapshot(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".brk") as file:
        file.write(data)
        file.flush()
        _looked_at(snapshot_file.load(file.name))


def _sealed(plain: bytes) -> bytes:
    """The file of a snapshot, with a valid header."""
    packed = zlib.compress(plain, 1)
    header = snapshot_file._HEADER.pack(1, zlib.crc32(packed), len(packed), len(plain))
    return snapshot_file.MAGIC + header + packed


def _vary_snapshot(chance: random.Random, data: bytes) -> bytes:
    plain = zlib.decompress(data[snapshot_file.HEADER_BYTES :])
    if chance.random() < 0.3:
        return _sealed(mutated_bytes(chance, plain))
    return _sealed(_packed(_several(chance, msgspec.msgpack.decode(plain))))


def _several(chance: random.Random, value: Any) -> Any:
    for _ in range(chance.choice((1, 1, 2, 5))):
        value = mutated_value(chance, value)
    return value


def _packed(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, RecursionError, UnicodeEncodeError, TypeError):
        return b"\xc0"


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except (RecursionError, TypeError):
        return b"null"


# ---- dumps of the flight recorder


@cache
def _dumps(kind: str) -> tuple[bytes, ...]:
    files = sorted(path for path in (DATA / "flight").glob("*/*") if path.stat().st_size < 60_000)
    found = [data for path in files if (data := path.read_bytes())[:1] in ((b"{",) if kind == "json" else (b"\x80",))]
    if kind == "json":
        found += [json.dumps(pickle.loads(data)).encode() for data in _dumps("pickle")[:10]]
    return tuple(found)


def _read_dump(data: bytes) -> None:
    """Read a dump beside a valid one, as ``why DIR`` does: the valid one must be read in any case."""
    from breakranks.observe.dump_snapshot import together
    from breakranks.observe.recorder.dump_folder import DumpRead, DumpSkipped, _read_file, files

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "nccl_trace_rank_1").write_bytes(data)
        found = [_read_file(file) for file in files(folder)]
        good = DumpRead(*_good_dump())
        _looked_at(together(folder, [good, *found]))
        for one in found:
            if isinstance(one, DumpSkipped):
                raise BreakranksError(one.what, one.remedy)


@cache
def _good_dump() -> tuple[Any, ...]:
    from breakranks.observe.recorder.dump_folder import DumpRead, _read_file, files

    found = _read_file(files(str(DATA / "flight" / "missing"))[0])
    assert isinstance(found, DumpRead)
    return tuple(found)


def _vary_json(chance: random.Random, data: bytes) -> bytes:
    return _json(_several(chance, json.loads(data)))


def _vary_pickle(chance: random.Random, data: bytes) -> bytes:
    try:
        return pickle.dumps(_several(chance, pickle.loads(data)), chance.choice((0, 2, 4)))
    except RecursionError:
        return pickle.dumps(None)


# ---- answers of injected code: flight recorder, locks and loops


@cache
def _facts() -> tuple[bytes, ...]:
    dump = _dumps("pickle")[0]
    flight = json.dumps({"sizes": [len(dump)], "threads": {"1": 2}, "groups": {}, "notes": {"a": "b"}}).encode()
    flight += b"\n" + dump
    lock = {"self": ("object", 1, ("threading.Condition",)), "self.lock": ("object", 2, ("_thread.lock",))}
    frames = ((0, "/x/threading.py", "wait", 3, lock), (1, "/home/me/train.py", "main", 7, {"step": ("int", 3)}))
    threads = ((7, 140, 2, ("wait", "/x/threading.py", 3), frames), (8, 141, 1, ("f", "/home/me/a.py", 0), ()))
    said = {"threads": threads, "flight": len(flight), "error": ""}
    return (repr(said).encode() + b"\n" + flight, repr({**said, "flight": 0}).encode() + b"\n")


def _read_facts(data: bytes) -> None:
    from breakranks.introspect import process_answers
    from breakranks.introspect.interpretation import interpret
    from breakranks.introspect.wanted_variables import SeenThread, SourceCache, questions
    from breakranks.observe.recorder.live_recorder import read_answer
    from breakranks.snapshot.model import Frame

    threads = (SeenThread(7, (Frame("main", "/home/me/train.py", 7), Frame("wait", "/x/threading.py", 3))),)
    try:
        said = process_answers.read(data)
    except ValueError as error:
        raise BreakranksError(f"not understood: {error}", "as reach.recorders says") from None
    interpret(said, questions(SourceCache(), 1, 0.0, threads), threads, 1)
    if said.flight:
        try:
            read_answer(said.flight)
        except BreakranksError as error:
            raise BreakranksError(error.message, error.help or "a problem of the rank's recorder") from None


# ---- messages of hosts and their controller


@cache
def _host_lines() -> tuple[bytes, ...]:
    from breakranks.hosts import host_messages as m
    from breakranks.hosts.framing import MESSAGE, STAGE, FrameWriter
    from breakranks.jobs.found_jobs import FoundJob, FoundRank, LocalJobs
    from breakranks.snapshot.model import Job, Missing, Problem

    job = Job(
        key="torchrun-29500",
        launcher="torchrun",
        world_size=4,
        started=1000.0,
        command=("torchrun", "train.py"),
        ids={"MASTER_ADDR": "n1"},
        launcher_pid=7,
    )
    ranks = (FoundRank(0, 11, 0), FoundRank(1, 12, 1))
    found = LocalJobs(
        (FoundJob(job, ranks, (Missing(ranks="2-3", reason="elsewhere"),)),), (Problem("pid 9 is closed", "sudo"),)
    )
    said: list[Any] = [
        m.Hello(
            protocol=m.PROTOCOL,
            version="0.1",
            python="3.11",
            host="n1",
            user="me",
            pid=5,
            time=1000.0,
            same="x",
            aliases=("n1.x",),
            addresses=("10.0.0.1",),
            shipped=True,
        ),
        m.JobsFound(1, found),
        m.SampleTaken(2, m.pack_snapshot(snapshot_file.unpack(_snapshots()[0]))),
        m.AgentsAttached(3, ({"job": "x", "rank": 0},), ({"rank": 1, "what": "no"},)),
        m.Evaluated(4, ({"rank": 0, "answer": {"rank": 0, "text": "1"}},)),
        m.HostChecked(5, (m.CheckStep("ranks", True, "2"),)),
        m.RequestFailed(6, "no", "do"),
        m.LinkData(7, b"{}\n"),
        m.FindJobs(1, ("1", "0")),
        m.TakeSample(
            id=2, look=m.SelectJob("torchrun-29500", "0-1"), samples=1, native=True, recorders=True, visit="all", keep=3
        ),
        m.Evaluate(id=3, key="k", ranks=None, takers="0-1", question={"source": "x"}, deadline=5.0),
        m.OpenLink(4, 1, "/run/x.sock"),
    ]
    stage = {"stage": "need", "python": "3.11", "suffix": "x", "machine": "x86_64", "magic": "a", "have": ["pystack"]}
    lines = [FrameWriter(_NONCE, 600, at).lines("n1", MESSAGE, m.encode(one)) for at, one in enumerate(said)]
    lines.append(FrameWriter(_NONCE, 600, 50).lines("n2", STAGE, json.dumps(stage).encode()))
    return (*lines, b"".join([b"Welcome to n1\n", *lines]))


def _read_host_lines(data: bytes) -> None:
    from breakranks.hosts import framing
    from breakranks.hosts.host_message_checks import StageReport, report_of
    from breakranks.hosts.host_messages import decode_request

    reader = framing.FrameReader(_NONCE)
    heard = [said for at in range(0, len(data), 700) for said in reader.feed(data[at : at + 700])]
    understood = 0
    for said in heard:
        if said.kind == framing.STAGE:
            with contextlib.suppress(ValueError, RecursionError):  # as the controller does
                told = json.loads(said.body)
                if isinstance(told, dict):
                    StageReport(told)
                    understood += 1
        elif said.kind == framing.MESSAGE:
            for decode in (report_of, decode_request):
                try:
                    message: Any = decode(said.body)
                except (ValueError, RecursionError):
                    continue  # as both ends do
                understood += 1
                _follow_report(message)
    if not understood:
        raise BreakranksError("passed over", "as both ends do")


def _follow_report(report: Any) -> None:
    """Handle a message of a host, as the controller does."""
    from breakranks.hosts.host_message_checks import fault_of, snapshot_of
    from breakranks.hosts.host_messages import JobsFound, SampleTaken
    from breakranks.hosts.hosts_sampler import named
    from breakranks.jobs.merge_jobs import join
    from breakranks.show.lost_host_lines import where_text
    from breakranks.snapshot.merge_hosts import merge
    from breakranks.snapshot.model import Host, only

    if isinstance(report, JobsFound) and not fault_of(report.found):
        for one in join({"n1": report.found}, hosts=[Host(name="n1"), Host(name="n2", state="unreachable")]):
            str(one.missing)
    if isinstance(report, SampleTaken):
        with contextlib.suppress(SnapshotError):
            mine = only(named(snapshot_of(report.snapshot), "n1"), RankSet(range(4)))
            other = named(snapshot_file.unpack(_snapshots()[0]), "n2")
            merged = merge(
                [mine, other], hosts=[Host(name="n1"), Host(name="n2")], job=other.job, missing=(), places={0: "n1"}
            )
            where_text(merged)
            _looked_at(merged)


def _vary_host_lines(chance: random.Random, data: bytes) -> bytes:
    from breakranks.hosts import framing

    written = b""
    for at, said in enumerate(framing.FrameReader(_NONCE).feed(data)):
        body = said.body
        with contextlib.suppress(ValueError, RecursionError):
            body = _json(_several(chance, json.loads(body)))
        written += framing.FrameWriter(_NONCE, 600, at).lines("n1", said.kind, body)
    return written


# ---- messages of the agent in a rank to a console

_WHERE = {"file": "/home/me/train.py", "line": 7, "function": "step", "source": "x = 1"}
_STATE = {
    "turn": 3, "rank": 1, "world": 2, "pid": 12, "host": "n1", "helper": False, "state": "stopped", "tracing": False,
    "off": False, "consoles": 1, "role": "prompt", "stoppers": "0-1", "reason": "breakpoint", "site": "train.py:7",
    "thread": "MainThread", "since": 1000.5, "where": _WHERE, "notes": ["a note"],
    "inside": {"module": "m", "pass": "forward", "kind": "FSDP", "class": "C", "safe": ["x"]},
}  # fmt: skip
_TENSOR = {"kind": "tensor", "shape": [2, 3], "dtype": "torch.float32", "device": "cpu", "min": 0.0, "max": 1.5,
           "mean": 0.5, "std": 0.1, "nan": 0, "inf": 0, "norm": 2.5, "digest": "ab"}  # fmt: skip
_NUMBER = {"kind": "number", "value": 3}
_SAID: tuple[dict[str, Any], ...] = (
    {"event": "hello", "version": 1, **_STATE},
    {"event": "state", **_STATE, "turn": 4, "state": "running"},
    {"event": "state", **_STATE, "turn": 5},
    {"event": "said", "text": "hello\n"},
    {"event": "answer", "id": 1, "text": "3\n", "value": _NUMBER, "cut": 0, "error": False, "state": _STATE},
    {"event": "answer", "id": 1, "text": "tensor(…)", "value": _TENSOR, "went": True, "state": _STATE},
    {"event": "where", "id": 2, "frames": [_WHERE, _WHERE], "blocked": True, "thread": "MainThread",
     "collective": {"op": "all_reduce", "members": [0, 1], **_WHERE}, **_STATE, "state": "running"},
    {"event": "completions", "id": 3, "words": ["a", "b"]},
    {"event": "probe", "hit": 1, "where": _WHERE, "values": [{"text": "3", "value": _NUMBER, "cut": 0}]},
    {"event": "probe", "error": "NameError: x"},
    {"event": "done", "id": 4, "error": "", "notes": []},
)  # fmt: skip


def _agent_lines() -> tuple[bytes, ...]:
    every = [_json(one) + b"\n" for one in _SAID]
    return (b"".join(every), *(every[0] + one for one in every))


def _vary_lines(chance: random.Random, data: bytes) -> bytes:
    lines = [json.loads(line) for line in data.splitlines()]
    at = chance.randrange(len(lines))
    lines[at] = _several(chance, lines[at])
    return b"".join(_json(one) + b"\n" for one in lines)


class _Peers:
    """A folder with the agents of two ranks, as the console sees it: one sends valid messages, the other the input."""

    rescan = 1e9

    def __init__(self, data: bytes) -> None:
        self._data = {0: _agent_lines()[0], 1: data}
        self.ends: list[socket.socket] = []

    def find(self) -> list[Any]:
        from breakranks.backend.found_agents import FoundAgent

        return [
            FoundAgent(job="x", rank=rank, pid=11 + rank, helper=False, path="", debugging=True) for rank in self._data
        ]

    def connect(self, found: Any) -> socket.socket:
        mine, theirs = socket.socketpair()
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        mine.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            mine.send(self._data[found.rank])
        theirs.settimeout(2.0)
        self.ends.append(mine)
        return theirs


def _read_agent(data: bytes) -> None:
    from breakranks.backend.local_backend import LocalBackend
    from breakranks.console.commands import Console
    from breakranks.console.console_options import ConsoleOptions
    from breakranks.console.debug_session import DebugSession

    peers = _Peers(data)
    backend = LocalBackend()
    backend.agents = peers  # type: ignore[assignment]
    session = DebugSession("x", backend=backend)
    try:
        session.scan()
        console = Console(session, ConsoleOptions(interactive=False, patience=0.0))
        pending = session.start("p x", session.ranks)
        replies = session._replies[next(session._numbers)] = {}
        session.drain()
        _follow_console(console, session, pending, replies)
        json.dumps([session.state(rank).plain() for rank in session.ranks])
        if 1 not in session.ranks:
            raise BreakranksError("hung up", "as of a rank that has ended")
    finally:
        session.close(armed=True)
        for end in peers.ends:
            end.close()


def _follow_console(console: Any, session: Any, pending: Any, replies: dict[int, Any]) -> None:
    """Handle messages of a rank, as a console does."""
    from breakranks.console.command_results import RanksStopped
    from breakranks.console.logpoints import Logpoint, _hit
    from breakranks.console.unanswered import waits_of
    from breakranks.rank_messages import WhereEvent
    from breakranks.show import answer_lines, stop_lines
    from breakranks.show.answers_json import as_json
    from breakranks.show.terminal_text import TerminalStyle, render
    from breakranks.snapshot.answer_groups import FoldedAnswers, fold

    look = TerminalStyle(width=100)
    shown: list[Any] = []
    for outcome in [*console.news(), fold(pending.answers.values())]:
        if isinstance(outcome, RanksStopped):
            shown += stop_lines.stopped_lines(outcome.states, look)
        elif isinstance(outcome, FoldedAnswers):
            shown += answer_lines.lines(outcome, look)
            json.dumps(as_json(outcome))
    shown += stop_lines.stopped_lines([session.state(rank) for rank in session.stopped], look)
    where = {rank: reply for rank, reply in replies.items() if isinstance(reply, WhereEvent)}
    states = [where.get(rank) or session.state(rank) for rank in session.ranks]
    shown += stop_lines.standing_lines(states, session.absent, look)
    shown += stop_lines.inspected_lines(where.values(), look)
    waits_of(where, stopped=session.stopped, here=session.ranks)
    session.unmoved(session.stops())
    session.debugged, session.held, console.focus, console.prompt, console._runner._is_more_expected()
    probe = Logpoint(place="train.py:7", prints=("x",), when="", times=1)
    for rank, message in session.hits:
        hit = _hit(message.hit, {rank: message}, probe)
        shown += [
            stop_lines.place(hit.where, look),
            *(line for _, folded in hit.values for line in answer_lines.lines(folded, look)),
        ]
    render(shown, look)


_TOLD: tuple[dict[str, Any], ...] = (
    {"value": "3", "described": _NUMBER, "printed": "x\n", "cut": 0, "where": _WHERE, "thread": "MainThread"},
    {"error": "NameError: x", "where": _WHERE, "thread": ""},
    {"effect": "a statement", "cut": 2},
    {"refused": "no such thread"},
)


def _read_told(data: bytes) -> None:
    """Read the answer of a rank to `eval` or to an attach."""
    from breakranks.backend.evaluate import _answer
    from breakranks.rank_messages import read_place
    from breakranks.show import answer_lines, stop_lines
    from breakranks.show.terminal_text import TerminalStyle, render
    from breakranks.snapshot.answer_groups import fold

    look = TerminalStyle(width=100)
    told = [_answer(0, _json(_TOLD[0])), _answer(1, data)]
    places = [(one.rank, place, one.thread_name) for one in told if (place := read_place(one.where)) is not None]
    render([*stop_lines.where_lines(places, look), *answer_lines.lines(fold(one.answer for one in told), look)], look)
    msgspec.to_builtins(told)
    if told[1].help:
        raise BreakranksError(told[1].answer.text, told[1].help)


# ---- files of a rank in the folder that consoles read


def _entries() -> tuple[bytes, ...]:
    from breakranks.rank.run_dir import started

    pid = 1
    entry = {"pid": pid, "start": started(pid), "rank": 0, "helper": False, "debugging": True, "ended": False}
    return (_json({**entry, "program": "train.py", "where": _WHERE}), _json({**entry, "where": None}))


def _read_entry(data: bytes) -> None:
    from breakranks.backend import found_agents

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job").mkdir(mode=0o700)
        Path(folder, "job", "rank-0.json").write_bytes(data)
        found = found_agents._agents_of(folder, "job")
        json.dumps(msgspec.to_builtins(found))
        if not found:
            raise BreakranksError("passed over", "as find_agents does")


# ---- messages to a rank

_ASKED: tuple[dict[str, Any], ...] = (
    {"do": "hello", "console": True, "version": 1},
    {"do": "run", "id": 1, "line": "p 1 + 1", "takers": "0", "look": False},
    {"do": "run", "id": 2, "line": "w", "takers": "0-3", "look": True},
    {"do": "go", "id": 3, "ranks": "0", "only": True},
    {"do": "interrupt", "id": 4, "hold": True, "reason": "hold"},
    {"do": "withdraw", "id": 5},
    {"do": "where", "id": 6},
    {"do": "probe", "id": 7, "place": "program.py:4", "prints": ["turn"], "when": "turn > 3", "times": 2},
    {"do": "complete", "id": 8, "text": "tu"},
    {"do": "patience", "id": 9, "needed": True},
    {"do": "state", "id": 10},
    {"do": "bye", "armed": True},
)
_PROGRAM = """\
import breakranks, time
turn = 0
while True:
    turn += 1
    time.sleep(0.01)
    breakranks.breakpoint()
"""


class _Rank:
    """A real program that stops at breakpoints, and the socket of its agent."""

    def __init__(self) -> None:
        import os

        self._folder = tempfile.TemporaryDirectory()
        place = Path(self._folder.name)
        program = place / "program.py"
        program.write_text(_PROGRAM)
        environ = {**os.environ, "BREAKRANKS_RUN": str(place / "run"), "RANK": "0", "WORLD_SIZE": "1"}
        (place / "run").mkdir(mode=0o700)
        self.process = subprocess.Popen(
            [sys.executable, str(program)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=place,
        )
        end = time.monotonic() + 90
        while not self._listens(place / "run"):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the program did not come to its breakpoint: {self.ended()}")
            time.sleep(0.01)

    def _listens(self, folder: Path) -> bool:
        """Whether the agent listens: the socket has its name a moment earlier."""
        from breakranks.backend.found_agents import connected

        for self._path in folder.glob("*/*.sock"):
            with contextlib.suppress(OSError), connected(str(self._path)):
                return True
        return False

    def ended(self) -> str:
        assert self.process.stderr is not None
        self.process.kill()
        self.process.wait()
        return self.process.stderr.read().decode(errors="replace")[-3000:]

    def close(self) -> None:
        self.ended()
        if self.process.stderr is not None:
            self.process.stderr.close()
        self._folder.cleanup()

    def says(self, data: bytes) -> None:
        """Send it a message. It must still answer the next client."""
        from breakranks.backend.found_agents import connected

        with connected(str(self._path)) as odd:
            odd.settimeout(5.0)
            with contextlib.suppress(OSError):  # it closes connections that send too much
                odd.sendall(data + b"\n")
                odd.sendall(b'{"do": "bye", "armed": true}\n')
            with connected(str(self._path)) as good:
                good.settimeout(60.0)
                good.sendall(b'{"do": "state", "id": 77}\n')
                heard = b""
                while b"\n" not in heard:
                    piece = good.recv(65536)
                    if not piece:
                        raise AssertionError(f"its agent hangs up: {self.ended()}")
                    heard += piece
        answer = json.loads(heard.splitlines()[0])
        assert answer.get("event") == "state" and answer.get("id") == 77, heard


_rank: list[_Rank] = []


def _read_as_rank(data: bytes) -> None:
    if not _rank:
        _rank.append(_Rank())
    _rank[0].says(data)


def close() -> None:
    """End the processes that were started for readers."""
    while _rank:
        _rank.pop().close()


# ---- what an agent answers to `why`: stacks, and the answers of payloads

_STACKS: dict[str, Any] = {
    "event": "stacks", "id": 1, "functions": ["main", "step"], "files": ["/home/me/train.py", "/home/me/train.py"],
    "stacks": [[0, 7], [0, 7, 1, 12]], "cut": 1,
    "threads": [
        {"tid": 12, "name": "MainThread", "stack": 1,
         "variables": [{"depth": 1, "names": ["x", "lock"], "texts": ["3", "<locked>"]}]},
        {"tid": 13, "name": "Thread-1", "stack": 0, "variables": []},
    ],
    "calls": [{"tid": 12, "text": "202 0x7f00 0x80 0x0 0x0 0x0 0x0 0x7ffc 0x7f01", "addresses": [32512],
               "memory": ["AAAAAAAAAAA="]}],
}  # fmt: skip
_ANSWERS: tuple[dict[str, Any], ...] = (
    _STACKS,
    {"event": "payload", "id": 1, "answer": "e30="},
    {"event": "payload", "id": 1, "error": "ValueError: x"},
)


def _read_stacks(data: bytes) -> None:
    from breakranks.backend.agent_stacks import _as_py_spy, _memory
    from breakranks.backend.rank_decoder import read_event
    from breakranks.observe import pyspy_parse, syscalls
    from breakranks.rank_messages import PayloadEvent, StacksEvent

    event = read_event(data)
    if isinstance(event, StacksEvent):
        list(map(pyspy_parse.thread_of, _as_py_spy(event)))
        for call in event.calls:
            known = dict(zip(call.addresses, call.memory, strict=True))
            memory = partial(_memory, known)
            syscalls.call_of(1, call.text, syscalls.table_for(), True, "futex_wait", memory)
    elif not isinstance(event, PayloadEvent):
        raise BreakranksError("passed over", "as an agent of another version is")


# ---- what the ranks of a run tell: registrations, exceptions, ends, relayed lines


def _registrations() -> tuple[bytes, ...]:
    registration = {
        "rank": 1, "world": 2, "local_rank": 1, "attempt": 0, "launcher": "torchrun", "host": "n1", "host_key": "n1 x",
        "pid": 12, "start": 77, "parent": 11, "python": "3.11.7", "out": "/logs/rank-1.out", "err": "/logs/rank-1.err",
        "shown": "tail", "shown_out": "tail", "shown_err": "relay", "time": 1000.5, "slurm_job": "7", "ready": True,
    }  # fmt: skip
    exception = {"type": "ValueError", "message": "x", "traceback": "Traceback …\n", "time": 1000.5}
    return tuple(map(_json, (registration, {**registration, "slurm_job": ""}, exception, {"time": 1000.5})))


def _read_registration(data: bytes) -> None:
    """Read it as a registration, as an exception and as an end."""
    from breakranks.run.hang_guard import HangOptions, watch_words
    from breakranks.run.rank_registry import RankRegistration, RankRegistry, is_running
    from breakranks.run.run_folder import RunFolder

    good = RankRegistration(rank=1, world=2, pid=12, host="n1", shown="tail")
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.registrations.mkdir()
        for end in ("", ".exception", ".end"):
            (folder.registrations / f"rank-1.attempt-0{end}.json").write_bytes(data)
        registry = RankRegistry(folder)
        registry.refresh()
        told = [registry.exception(good), registry.end(good)]
        for found in registry.registrations:
            is_running(found)
            watch_words(HangOptions(seconds=5.0), folder, [found, good], 1)
        if not registry.registrations and not any(told):
            raise BreakranksError("passed over", "as of a rank that has not registered")


_RELAYED = (
    b"[n1:0] step 1\n[n2:1] step 1\nthe launcher\n[n1:0] step 2\n",
    b"[1,0]<stdout>:[n1:0] a[1,1]<stdout>:[n2:1] b\n[1,0]<stdout>: more\n[1,1]<stderr>:\n",
    b"0: [n1:0] " + b"x" * 1014 + b"\n0: rest\n1: [n2:1] short\n1: plain\n",
    b"[n1:0] " + b"y" * 4090 + b" \\\n[n2:1] other\n[n1:0] end\n",
)


def _read_relayed(data: bytes) -> None:
    """Read it in blocks of whole lines: no line of a rank may be without its end."""
    from breakranks.run.relayed_lines import RelayedStream

    stream = RelayedStream()
    lines = data.splitlines(keepends=True) if data else []
    blocks = [b"".join(lines[at : at + 3]) for at in range(0, len(lines), 3)]
    found = [part for block in blocks for part in stream.split(block, lambda host, rank: rank < 4)]
    for part in [*found, *stream.close(lambda host, rank: rank < 4)]:
        assert part.lines.endswith(b"\n"), part


# ---- logs


@cache
def _logs() -> tuple[bytes, ...]:
    found = [path for path in sorted((DATA / "logs").rglob("*")) if path.is_file()]
    return tuple(path.read_bytes() for path in found if 0 < path.stat().st_size < 60_000)


def _read_log(data: bytes) -> None:
    """Read it as the log of all ranks, as that of one, and as an error file of torchrun."""
    from breakranks.logs.job_logs import JobLogs
    from breakranks.logs.log_sources import find_sources
    from breakranks.show.crash_json import report_json
    from breakranks.show.crash_lines import report_lines
    from breakranks.show.json_output import to_text
    from breakranks.show.terminal_text import TerminalStyle, render

    look = TerminalStyle(width=100)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("train.log", "rank-1.err", "run/attempt_0/2/error.json"):
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for place in (f"{folder}/train.log", folder):
            logs = JobLogs(find_sources([place]))
            logs.read()
            report = logs.report()
            render(report_lines(report, look), look)
            render(report_lines(report, TerminalStyle(width=100, full=True)), look)
            to_text(report_json(report))


# ---- files that users write


def _launches() -> tuple[bytes, ...]:
    from breakranks.dap.launch_json import config_of

    own = config_of(RankSet(range(3)), "127.0.0.1", 5678, "token")
    mine = {"name": "mine", "type": "python", "request": "launch", "program": "${file}"}
    return (
        json.dumps({"version": "0.2.0", "configurations": [mine], "compounds": []}, indent=4).encode(),
        json.dumps({**own, "configurations": [mine, *own["configurations"]]}, indent=4).encode(),
        b'{\n    // a comment\n    "configurations": [],\n}\n',
    )


def _read_launch(data: bytes) -> None:
    from breakranks.dap.launch_json import config_of, write

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "launch.json")
        path.write_bytes(data)
        why = write(str(path), config_of(RankSet(range(2)), "127.0.0.1", 5678, "token"))
        if why:
            assert path.read_bytes() == data, "refused, and yet changed"
            raise BreakranksError(why, "as cli.dap_server says")
        assert len(json.loads(path.read_bytes())["configurations"]) >= 2


_CONFIG = b"""\
# a comment
target = "ssh:n[1-16]"
ssh_config = "~/.ssh/cluster"
ssh_options = ["-p", "2222"]
python = "/opt/python/bin/python3"
setup = "module load python"
sudo = true
deadline = 20
"""
_MEANINGS = b"""\
[[meaning]]
activity = "socket"
file = "mycompany/rpc.py"
function = "call"

[[meaning]]
activity = "compute"
function = "a|b.*"
op = "x"
"""


def _read_config(data: bytes) -> None:
    from breakranks.cli.config import read_file

    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        read_file({"BREAKRANKS_CONFIG": file.name})


def _read_meanings(data: bytes) -> None:
    from breakranks.explain.meanings_file import read_meanings

    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        read_meanings(file.name).python("call", "/x/mycompany/rpc.py")


READERS: dict[str, Reader] = {
    "snapshot": Reader(_snapshots, _read_snapshot, _vary_snapshot),
    "dump-pickle": Reader(lambda: _dumps("pickle"), _read_dump, _vary_pickle),
    "dump-json": Reader(lambda: _dumps("json"), _read_dump, _vary_json),
    "host-protocol": Reader(_host_lines, _read_host_lines, _vary_host_lines),
    "rank-says": Reader(_agent_lines, _read_agent, _vary_lines),
    "rank-hears": Reader(lambda: tuple(_json(one) + b"\n" for one in _ASKED), _read_as_rank, _vary_lines),
    "rank-told": Reader(lambda: tuple(map(_json, _TOLD)), _read_told, _vary_json),
    "rank-entry": Reader(_entries, _read_entry, _vary_json),
    "rank-facts": Reader(_facts, _read_facts),
    "launch-json": Reader(_launches, _read_launch, lambda chance, data: _vary_launch(chance, data)),
    "rank-stacks": Reader(lambda: tuple(map(_json, _ANSWERS)), _read_stacks, _vary_json),
    "registration": Reader(_registrations, _read_registration, _vary_json),
    "relayed-lines": Reader(lambda: _RELAYED, _read_relayed),
    "log": Reader(_logs, _read_log),
    "config": Reader(lambda: (_CONFIG,), _read_config),
    "meanings": Reader(lambda: (_MEANINGS,), _read_meanings),
}


def _vary_launch(chance: random.Random, data: bytes) -> bytes:
    try:
        return _vary_json(chance, data)
    except ValueError:
        return mutated_bytes(chance, data)


def seeds_are_read() -> Iterator[tuple[str, str]]:
    """The results of each reader for its own seeds."""
    for name, reader in READERS.items():
        for data in reader.seeds():
            yield name, tried(name, data)
