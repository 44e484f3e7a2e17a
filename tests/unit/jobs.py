"""Snapshots from a few words, so that a test of a rule reads like the situation it is about."""

from __future__ import annotations

from breakranks.snapshot.model import (
    FORMAT_VERSION,
    Call,
    FileLock,
    Frame,
    Host,
    Job,
    Missing,
    OpenFile,
    Process,
    Rank,
    Sample,
    Snapshot,
    Socket,
    StackTable,
    Thread,
)

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
WORKER = "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"
BATON = "/venv/lib/python3.11/site-packages/torch/utils/file_baton.py"
THREADING = "/usr/lib/python3.11/threading.py"
SUBPROCESS = "/usr/lib/python3.11/subprocess.py"
PDB = "/usr/lib/python3.11/pdb.py"
OWN = "/home/me/train.py"

FUTEX = Call("futex")
LONG_SLEEP = Call("clock_nanosleep", left=3600.0)


def own(function: str, line: int = 10) -> tuple[str, str, int]:
    return (function, OWN, line)


def lib(function: str, file: str = C10D, line: int = 1) -> tuple[str, str, int]:
    return (function, file, line)


class World:
    """Collects processes into one snapshot with a shared stack table."""

    def __init__(self, world_size: int = 0, span: float = 1.0) -> None:
        self.table = StackTable()
        self.ranks: list[Rank] = []
        self.missing: list[Missing] = []
        self.world_size = world_size
        self.span = span

    def row(self, frames: tuple[tuple[str, str, int], ...], native: tuple[str, ...] = ()) -> int:
        made = tuple(Frame(*frame) for frame in frames)
        return self.table.add(made + tuple(Frame(name, "/lib/x.so", 0, True) for name in native))

    def thread(
        self,
        *frames: tuple[str, str, int],
        tid: int = 1,
        name: str = "MainThread",
        native: tuple[str, ...] = (),
        call: Call | None = FUTEX,
        state: str = "S",
        ran: int = 0,
        idle: float | None = 60.0,
        gil: bool = False,
        hints: dict[str, str] | None = None,
    ) -> Thread:
        merged = self.row(frames, native) if native else 0
        return Thread(
            tid=tid,
            name=name,
            stack=self.row(frames),
            native=merged,
            state=state,
            python=True,
            gil=gil,
            call=call,
            ran=ran,
            switches=0,
            idle=idle,
            hints=hints or {},
        )

    def process(
        self,
        pid: int,
        *samples: tuple[Thread, ...],
        state: str = "S",
        children: tuple[Process, ...] = (),
        files: tuple[OpenFile, ...] = (),
        sockets: tuple[Socket, ...] = (),
        locks: tuple[FileLock, ...] = (),
        ran: bool = False,
        command: tuple[str, ...] = ("python", "train.py"),
        **more: object,
    ) -> Process:
        """``samples``: the threads at each moment; one given is seen twice. ``ran``: it used the CPU between."""
        moments = samples if len(samples) > 1 else samples * 2
        taken = tuple(
            Sample(
                time=1000.0 + index * self.span / max(1, len(moments) - 1),
                state=state,
                threads=threads,
                quiet=0.4,
                quiet_ran=None if index == 0 else tuple(t.tid for t in threads) if ran else (),
            )
            for index, threads in enumerate(moments)
        )
        return Process(
            pid=pid, parent=1, command=command, state=state, samples=taken, children=children, files=files,
            sockets=sockets,
            locks=locks, **more,  # type: ignore[arg-type]
        )  # fmt: skip

    def add(self, *threads: Thread, rank: int | None = None, **more: object) -> None:
        number = len(self.ranks) if rank is None else rank
        self.ranks.append(
            Rank(rank=number, host="n1", process=self.process(100 + number, threads, **more), local_rank=number)
        )  # type: ignore[arg-type]

    def add_moving(self, *moments: Thread, busy: bool = False, **more: object) -> None:
        """A rank that is elsewhere at each moment."""
        number = len(self.ranks)
        process = self.process(100 + number, *((moment,) for moment in moments), ran=True, **more)  # type: ignore[arg-type]
        self.ranks.append(Rank(rank=number, host="n1", process=process, local_rank=number))

    def snapshot(self) -> Snapshot:
        return Snapshot(
            version=FORMAT_VERSION,
            made_by="test",
            time=1000.0 + self.span,
            job=Job(key="torchrun-1", launcher="torchrun", world_size=self.world_size or len(self.ranks)),
            ranks=tuple(self.ranks),
            frames=tuple(self.table.frames),
            stacks=tuple(self.table.stacks),
            hosts=(Host(name="n1"),),
            missing=tuple(self.missing),
            native=True,
        )

    def in_all_reduce(self, *, idle: float | None = 60.0, line: int = 20, **more: object) -> Thread:
        return self.thread(own("step", line), lib("all_reduce"), idle=idle, **more)  # type: ignore[arg-type]

    def in_barrier(self, *, line: int = 30) -> Thread:
        return self.thread(own("finish", line), lib("barrier"))
