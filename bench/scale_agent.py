"""An agent of a simulated host: the real agent of breakranks, with the evidence of ranks that do not exist.

``bench/scale.py`` starts hundreds of them, by ``exec:``, and each is a process with pipes of its own. Only the evidence
is made up: eight ranks per host, of a training job with tensor parallel groups in a host and data parallel groups
across all hosts. One rank of the whole job reads data. All others wait for it in an all_reduce.

    python scale_agent.py h7 300 WORDS…                serve, as host h7 of h1 to h300
    python scale_agent.py --nursery SOCKET             fork an agent for each client
    python -ISc MESSENGER SOCKET h7 300 WORDS…         have a nursery serve the host, and wait for its end
    python scale_agent.py --play FOLDER NONCE 300      replay the messages of h1 to h300 from files

A nursery has already imported everything, so that the start of Python is not measured. ``WORDS`` is the command that
breakranks would run on the host, from which the nonce of the run is taken.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from breakranks.jobs.found_jobs import LocalJobs
    from breakranks.snapshot.model import Call, Job, Process, Rank, Sample, Snapshot, StackTable
    from breakranks.snapshot.recorder_tables import Group, Operation, Recorder

RANKS = 8  # a host
CALLS = 120  # of the world group; the last one never completes
WAYS = 3  # different stacks of waiting ranks
SAMPLES = 2  # at most, as `why` keeps
BEGAN = 1_800_000_000.0
SITE = "/opt/conda/envs/train/lib/python3.11/site-packages"
_OPTIONS = re.compile(r"([0-9a-f]{16}),(\d+),([\d.]+),[0-9a-f]{64}")
_LIBRARY = f"{SITE}/torch/lib/libtorch_cpu.so"
_LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
# Passes its pipes to an agent, and waits until that has ended. It imports only built-in modules.
MESSENGER = ";".join(
    (
        "import _socket,posix,sys",
        "nursery=_socket.socket(_socket.AF_UNIX,_socket.SOCK_STREAM)",
        "nursery.connect(sys.argv[1])",
        "pipes=[(_socket.SOL_SOCKET,_socket.SCM_RIGHTS,b''.join(fd.to_bytes(4,sys.byteorder) for fd in (0,1,2)))]",
        "nursery.sendmsg([chr(0).join((*sys.argv[2:],chr(0))).encode()],pipes)",
        "posix.closerange(0,3)",
        "nursery.recv(1)",
    )
)
# Threads of a rank besides its main one: name, system call, Python frames, C frames.
_HELPERS = (
    ("pt_autograd_0", "futex", (), ("__clone3", "start_thread", "torch::autograd::Engine::thread_main", "futex")),
    ("pt_nccl_watchdg", "futex", (), ("__clone3", "start_thread", "c10d::ProcessGroupNCCL::ncclCommWatchdog", "futex")),
    ("pt_nccl_heartbt", "futex", (), ("__clone3", "start_thread", "c10d::ProcessGroupNCCL::heartbeatMonitor", "futex")),
    ("pt_tcpstore_uv", "epoll_wait", (), ("__clone3", "start_thread", "uv__io_poll", "epoll_wait")),
    ("cuda-EvtHandlr", "poll", (), ("__clone3", "start_thread", "cuEventHandler", "poll")),
    ("Thread-1", "futex", ("_bootstrap", "run", "_pin_memory_loop", "get", "wait"), ("futex",)),
    ("Thread-2", "futex", ("_bootstrap", "run", "write_metrics", "get", "wait"), ("futex",)),
)


def culprit(hosts: int) -> int:
    """The rank that all others wait for."""
    return hosts // 2 * RANKS + RANKS // 2


# ---- the jobs and the snapshot of a host


def found_of(host: int, hosts: int) -> LocalJobs:
    """The jobs of host ``h{host}``."""
    from breakranks.jobs.found_jobs import FoundJob, FoundRank, LocalJobs
    from breakranks.snapshot.model import Missing

    first = (host - 1) * RANKS
    ranks = tuple(FoundRank(first + local, 4000 + local, local) for local in range(RANKS))
    others = [text for text in (_range(0, first), _range(first + RANKS, hosts * RANKS)) if text]
    missing = (Missing(ranks=",".join(others), reason="elsewhere", detail="of other hosts"),) if others else ()
    return LocalJobs((FoundJob(_job(hosts), ranks, missing),))


def snapshot_of(host: int, hosts: int, samples: int = SAMPLES, *, details: bool = True, deep: bool = True) -> Snapshot:
    """The snapshot of host ``h{host}``. ``details``: files and sockets. ``deep``: C frames and flight recorders."""
    from breakranks import __version__
    from breakranks.snapshot.model import FORMAT_VERSION, Host, Snapshot, StackTable

    table = StackTable()
    stacks = _Stacks(table, deep)
    groups = _groups(host, hosts) if deep else ()
    found = found_of(host, hosts).jobs[0]
    return Snapshot(
        version=FORMAT_VERSION,
        made_by=f"breakranks {__version__}",
        time=BEGAN + 4000.0,
        job=found.job,
        ranks=tuple(_rank(one.rank, host, hosts, stacks, samples, details, deep) for one in found.ranks),
        frames=tuple(table.frames),
        stacks=tuple(table.stacks),
        hosts=(Host(name=f"h{host}", cpus=96, load=8.5 + host % 7, memory=1 << 40),),
        missing=found.missing,
        interval=0.5 if samples > 1 else 0.0,
        native=deep,
        groups=groups,
        operations=_operations() if deep else (),
    )


def _range(first: int, end: int) -> str:
    return "" if end <= first else str(first) if end == first + 1 else f"{first}-{end - 1}"


def _job(hosts: int) -> Job:
    from breakranks.snapshot.model import Job

    command = ("torchrun", f"--nnodes={hosts}", f"--nproc-per-node={RANKS}", "--rdzv-endpoint=h1:29500", "train.py")
    ids = {"TORCHELASTIC_RUN_ID": "bench", "MASTER_ADDR": "h1", "MASTER_PORT": "29500"}
    return Job(
        key="torchrun-bench",
        launcher="torchrun",
        world_size=hosts * RANKS,
        started=BEGAN,
        command=command,
        ids=ids,
        launcher_pid=3999,
    )


class _Stacks:
    """The stacks of the ranks of a host, as rows of its table: with Python frames only, and with C frames."""

    def __init__(self, table: StackTable, deep: bool) -> None:
        from breakranks.snapshot.model import Frame

        begun = [Frame("<module>", "/home/me/train.py", 210), Frame("main", "/home/me/train.py", 190)]
        trainer = [Frame(f"fit_{i}", f"{SITE}/trainer/loop_{i % 4}.py", 100 + 7 * i) for i in range(10)]
        reduce = [
            Frame("backward", f"{SITE}/torch/_tensor.py", 647),
            Frame("reduce_gradients", "/home/me/train.py", 151),
            Frame("wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 81),
            Frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 3000),
        ]
        names = ("c10d::Work::wait", "std::condition_variable::wait", "__pthread_cond_wait_common", "__futex_wait")
        below = [Frame(name, _LIBRARY if "::" in name else _LIBC, 0, True) for name in names]
        ways = [(*begun, *trainer[: 10 - way], *reduce) for way in range(WAYS)]
        reads = (*begun, *trainer, Frame("next_batch", "/home/me/data.py", 88), Frame("read", "/home/me/data.py", 31))
        read = Frame("__libc_read", _LIBC, 0, True)
        self.waiting = [(table.add(way), table.add((*way, *below)) if deep else 0) for way in ways]
        self.reading = (table.add(reads), table.add((*reads, read)) if deep else 0)
        self.helpers = []
        for name, call, python, native in _HELPERS:
            frames = tuple(Frame(word, "/usr/lib/python3.11/threading.py", 900 + i) for i, word in enumerate(python))
            deeper = tuple(Frame(word, _LIBRARY, 0, True) for word in native)
            self.helpers.append((name, call, table.add(frames), table.add((*frames, *deeper)) if deep else 0))


def _rank(rank: int, host: int, hosts: int, stacks: _Stacks, samples: int, details: bool, deep: bool) -> Rank:
    from breakranks.snapshot.model import Call, Rank

    reads = rank == culprit(hosts)
    rows = stacks.reading if reads else stacks.waiting[rank % WAYS]
    call = Call("read", 31) if reads else Call("futex")
    taken = tuple(_sample(rank, at, rows, call, stacks, deep) for at in range(samples))
    process = _process(rank % RANKS, host, taken, details)
    return Rank(
        rank=rank,
        host=f"h{host}",
        process=process,
        local_rank=rank % RANKS,
        recorder=_recorder(rank, hosts, reads) if deep else None,
    )


def _sample(rank: int, at: int, rows: tuple[int, int], call: Call, stacks: _Stacks, deep: bool) -> Sample:
    from breakranks.snapshot.model import Call, Sample, Thread

    time = BEGAN + 3999.0 + at / 2
    pid = 4000 + rank % RANKS
    # Numbers that differ from rank to rank are not compressed away.
    ran = 5_000_000_000 + rank * 7_919 % 1_000_003
    native = at > 0 or not deep
    main = Thread(
        tid=pid,
        name="MainThread",
        stack=rows[0],
        native=rows[1] * native,
        state="S",
        python=True,
        gil=False,
        call=call,
        ran=ran,
        switches=900 + rank % 97,
        idle=31.5,
    )
    helpers = tuple(
        Thread(
            tid=6000 + pid + i,
            name=name,
            stack=row,
            native=deeper * native,
            state="S",
            python=bool(row),
            gil=False,
            call=Call(what),
            ran=ran // (i + 2),
            switches=18 + i,
            idle=0.4,
        )
        for i, (name, what, row, deeper) in enumerate(stacks.helpers)
    )
    return Sample(
        time=time,
        state="S",
        cpu=812.4 + rank % 13,
        read_bytes=10**9 + rank,
        write_bytes=10**6,
        threads=(main, *helpers),
        quiet=0.49 * at,
        quiet_ran=() if at else None,
    )


def _process(local: int, host: int, samples: tuple[Sample, ...], details: bool) -> Process:
    from breakranks.snapshot.model import OpenFile, Process, Socket

    pid = 4000 + local
    files = (
        OpenFile(0, "/dev/null", "device"),
        OpenFile(1, f"pipe:[{90_000 + pid}]", "pipe"),
        OpenFile(2, f"pipe:[{91_000 + pid}]", "pipe"),
        OpenFile(6, "anon_inode:[eventpoll]", "anon"),
        OpenFile(31, f"/data/shard-{host:05}-{local}.tar", "file"),
        *(OpenFile(40 + i, f"/dev/nvidia{i}", "device") for i in range(RANKS)),
    )
    own = f"10.{host >> 8}.{host & 255}.1"
    sockets = (
        Socket(fd=3, protocol="tcp", local=f"{own}:{42_000 + local}", peer="10.0.1.1:29500", status="established"),
        *(
            Socket(
                fd=7 + i,
                protocol="tcp",
                local=f"{own}:{33_000 + local}",
                peer=f"{own}:{43_000 + i}",
                status="established",
            )
            for i in range(RANKS)
        ),
    )
    return Process(
        pid=pid,
        parent=3999,
        command=("/opt/conda/envs/train/bin/python", "-u", "/home/me/train.py", "--config", "/home/me/big.yaml"),
        name="python",
        user="me",
        state="S",
        started=BEGAN + 4,
        rss=(9 << 30) + 4096 * pid,
        cpu_percent=1.0,
        wchan="futex_do_wait",
        samples=samples,
        files=files if details else (),
        sockets=sockets if details else (),
    )


def _groups(host: int, hosts: int) -> tuple[Group, ...]:
    """The world, the tensor parallel group of the host, and the data parallel groups of its ranks."""
    from breakranks.snapshot.recorder_tables import Group

    first = (host - 1) * RANKS
    across = enumerate(_across(hosts), hosts + 1)
    return (
        Group(
            name="0",
            description="default_pg",
            ranks=_range(0, hosts * RANKS),
            source="config",
            backend="nccl",
            timeout=600.0,
        ),
        Group(
            name=str(host),
            description="mesh_tp",
            ranks=_range(first, first + RANKS),
            source="config",
            backend="nccl",
            timeout=600.0,
        ),
        *(
            Group(name=str(number), description="mesh_dp", ranks=ranks, source="config", backend="nccl", timeout=600.0)
            for number, ranks in across
        ),
    )


@functools.cache
def _across(hosts: int) -> list[str]:
    """For each local rank, the ranks with that number on all hosts, as ``observe.recorder`` writes members."""
    from breakranks.rankset import RankSet, short_text

    return [short_text(RankSet(range(local, hosts * RANKS, RANKS)), None) for local in range(RANKS)]


def _operations() -> tuple[Operation, ...]:
    from breakranks.snapshot.recorder_tables import Operation

    sizes = [f"[[{1 << (10 + i)}]]" for i in range(6)]
    return (Operation(""), *(Operation("all_reduce", size, size, "['BFloat16']") for size in sizes))


def _recorder(rank: int, hosts: int, reads: bool) -> Recorder:
    """The calls of the world group, of which the reading rank never made the last. The other groups are done."""
    from breakranks.snapshot.recorder_tables import COMPLETED, STARTED, Entry, Recorder, Track, pack_rows

    now = BEGAN + 3968.0
    made = CALLS - reads
    tracks = []
    for row, calls in ((0, made), (1, 4 * CALLS), (2 + rank % RANKS, 2 * CALLS)):
        pending = row == 0 and not reads
        history = pack_rows(1 + (number + row) % 6 for number in range(calls))
        state = STARTED if pending else COMPLETED
        last = Entry(
            number=calls,
            operation=1 + (calls - 1 + row) % 6,
            record=7 * made - 3 + row,
            state=state,
            created=now - row + rank * 1e-4,
            stack=0,
            thread=4000 + rank % RANKS,
        )
        tracks.append(
            Track(
                group=row,
                first=1,
                history=history,
                completed=calls - pending,
                pending=(last,) if pending else (),
                last=last,
                since=now - 900.0,
            )
        )
    return Recorder(version="2.10", time=now + 31.0, tracks=tuple(tracks), newest=now)


# ---- serving it


def serve(inp: int, out: int, words: list[str]) -> None:
    """Run as the agent of a host until the controller disconnects. Does not return."""
    from dataclasses import replace

    from breakranks.hosts.host_agent import HostAgent
    from breakranks.hosts.host_handlers import HostService
    from breakranks.hosts.host_messages import FindJobs, Hello, JobsFound, Report, SampleTaken, pack_snapshot
    from breakranks.hosts.host_messages import TakeSample as Asked

    name, hosts = words[0], int(words[1])
    number = int(name.removeprefix("h"))
    nonce, piece, patience = options_of(words[2:])

    class MadeUp(HostService):
        """Answers requests with made-up evidence."""

        def _find(self, request: FindJobs) -> JobsFound:
            return JobsFound(request.id, found_of(number, hosts))

        def _sample(self, request: Asked) -> SampleTaken:
            look = request.look
            self._details = look.details if look is not None else self._details
            self._taken = (0 if look is not None else self._taken) + request.samples
            kept = min(self._taken, request.keep or SAMPLES)
            seen = snapshot_of(number, hosts, kept, details=self._details, deep=request.recorders)
            return SampleTaken(request.id, pack_snapshot(seen))

        _details, _taken = True, 0

    class Stand(HostAgent):
        """The state of a host that seems to be a machine of its own."""

        def __init__(self) -> None:
            super().__init__(inp, out, nonce=nonce, piece=piece, patience=patience)
            self.host = name
            self._service = MadeUp()

        def tell(self, report: Report) -> None:
            if isinstance(report, Hello):
                report = replace(report, same=name, addresses=(f"10.{number >> 8}.{number & 255}.1",))
            super().tell(report)

    Stand().run(b"", "")


def options_of(words: list[str]) -> tuple[str, int, float]:
    """The nonce, the size of a piece and the patience, from the command that breakranks would run on the host."""
    for word in words:
        found = _OPTIONS.fullmatch(word)
        if found is not None:
            return found[1], int(found[2]), float(found[3])
    raise SystemExit("scale_agent: not the words of a remote command of breakranks")


def nurse(path: str) -> None:
    """Fork an agent for each client, from a process that has imported everything. Ends with its input."""
    import gc
    import selectors
    import signal

    import breakranks.hosts.host_agent as agent
    import breakranks.hosts.host_handlers  # noqa: F401

    snapshot_of(1, 2)
    agent._hello("h1", False)  # imports the rest
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the agents are not waited for
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door, selectors.DefaultSelector() as selector:
        door.bind(path)
        door.listen(1024)
        selector.register(door, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while all(key.fd != 0 for key, _ in selector.select()):
            asker, _ = door.accept()
            data, fds, _, _ = socket.recv_fds(asker, 1 << 20, 3)
            while not data.endswith(b"\0\0"):
                data += asker.recv(1 << 20)
            if os.fork() == 0:
                selector.close()
                door.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd, place in zip(fds, (0, 1, 2), strict=True):
                    os.dup2(fd, place)
                    os.close(fd)
                serve(0, 1, data.decode().rstrip("\0").split("\0"))  # the client sees its end by the socket
                os._exit(0)
            asker.close()
            for fd in fds:
                os.close(fd)


def play(folder: str, nonce: str, count: str) -> None:
    """Replay the messages of hosts, from one file per request; the first is the greeting. Ends with its input."""
    import time

    from breakranks.hosts.framing import ALL, MESSAGE, FrameReader, FrameWriter
    from breakranks.hosts.host_messages import ClockReply, Ping, decode_request, encode

    hosts = [f"h{host}" for host in range(1, int(count) + 1)]
    reader, writer = FrameReader(nonce), FrameWriter(nonce, 48_000, 1_000_000)

    def send(number: int) -> None:
        with open(f"{folder}/{number}", "rb") as file:
            while os.sendfile(1, file.fileno(), None, 1 << 20):
                pass

    def say(data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    send(0)
    while data := os.read(0, 1 << 16):
        for said in reader.feed(data):
            request = decode_request(said.body)
            if isinstance(request, Ping):
                now = encode(ClockReply(time.time()))
                say(b"".join(writer.lines(who, MESSAGE, now) for who in (hosts if said.who == ALL else (said.who,))))
            elif said.who == ALL:
                send(request.id)


def main(words: list[str]) -> None:
    if words[:1] == ["--nursery"]:
        nurse(words[1])
    elif words[:1] == ["--play"]:
        play(*words[1:4])
    else:
        serve(0, 1, words)


if __name__ == "__main__":
    main(sys.argv[1:])
