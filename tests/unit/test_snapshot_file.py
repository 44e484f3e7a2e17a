"""A snapshot file survives the trip, and a broken or hostile one is refused with a remedy."""

from __future__ import annotations

import os
import random
import stat
import struct
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakranks.errors import SnapshotError
from breakranks.snapshot import snapshot_file as snapshot_file
from breakranks.snapshot.introspection import Introspection, Item, Loader, Loop, PolledFile, ThreadWait
from breakranks.snapshot.model import (
    FORMAT_VERSION,
    Call,
    FileLock,
    Frame,
    Host,
    Job,
    Missing,
    OpenFile,
    Problem,
    Process,
    Rank,
    Sample,
    Snapshot,
    Socket,
    StackTable,
    Thread,
)
from breakranks.snapshot.snapshot_file import HEADER_BYTES, MAGIC, load, pack, save, unpack
from support.values import replace


def example(ranks: int = 4) -> Snapshot:
    table = StackTable()
    wait = table.add((Frame("main", "/home/me/train.py", 10), Frame("all_reduce", "/x/torch/c10d.py", 9)))
    native = table.add((Frame("poll", "libc.so.6", 0, True),))
    return Snapshot(
        version=FORMAT_VERSION,
        made_by="breakranks test",
        time=1000.0,
        job=Job(
            key="tr-29500",
            launcher="torchrun",
            world_size=ranks + 1,
            started=900.0,
            command=("torchrun", "train.py"),
            ids={"run id": "none"},
            launcher_pid=7,
        ),
        ranks=tuple(
            Rank(
                rank=rank,
                host="n1",
                process=Process(
                    pid=100 + rank,
                    parent=7,
                    command=("python", "träin.py"),
                    samples=tuple(
                        Sample(
                            time=time,
                            state="S",
                            threads=(
                                Thread(
                                    tid=1,
                                    name="MainThread",
                                    stack=wait,
                                    native=native,
                                    state="S",
                                    call=Call("poll", 3, 1.5),
                                    idle=2.0,
                                ),
                            ),
                            quiet_ran=(1,),
                        )
                        for time in (999.0, 1000.0)
                    ),
                    files=(OpenFile(3, "/data/x", "file"),),
                    sockets=(
                        Socket(fd=4, protocol="tcp", local="127.0.0.1:1", peer="127.0.0.1:2", status="ESTABLISHED"),
                    ),
                    locks=(FileLock(path="/tmp/lock", kind="flock", waiter=100, age=9.0),),
                    problems=(Problem("no native stack", "do this"),),
                    inside=Introspection(
                        time=999.5,
                        waits=(
                            ThreadWait(
                                tid=1,
                                kind="Lock",
                                name="self.lock",
                                owner=2,
                                proof="with",
                                function="fill",
                                file="/home/me/train.py",
                                line=7,
                                state="",
                                users=(3,),
                                ended=("x",),
                            ),
                        ),
                        loops=(Loop(tid=1, function="main", file="/home/me/train.py", names=("step",), values=(117,)),),
                        polled=(PolledFile(1, "/tmp/lock", "file"),),
                        loader=Loader(1, 3, 0, 200),
                        item=Item(0, 3, (12, 13), 13),
                    ),
                    children=(Process(pid=200 + rank, parent=100 + rank, command=("worker",)),),
                ),
                local_rank=rank,
            )
            for rank in range(ranks)
        ),
        frames=tuple(table.frames),
        stacks=tuple(table.stacks),
        hosts=(Host(name="n1", cpus=2, load=0.5, memory=1 << 30),),
        missing=(Missing(ranks=f"{ranks}", reason="exited"),),
        interval=1.0,
        native=True,
        launcher=Process(pid=7, parent=1, command=("torchrun",)),
    )


def forged(snapshot: Snapshot | object) -> bytes:
    """A file with a correct header and any content."""
    return sealed(msgspec.msgpack.encode(snapshot))


def sealed(plain: bytes, size: int | None = None, version: int = FORMAT_VERSION) -> bytes:
    packed = zlib.compress(plain)
    size = len(plain) if size is None else size
    return MAGIC + struct.pack("<HIQQ", version, zlib.crc32(packed), len(packed), size) + packed


def with_thread(**changes: object) -> Snapshot:
    made = example()
    thread = replace(made.ranks[0].process.samples[0].threads[0], **changes)
    return with_process(samples=(Sample(time=1.0, state="S", threads=(thread,)),))


def with_process(**changes: object) -> Snapshot:
    made = example()
    first = made.ranks[0]
    process = replace(first.process, **changes)
    return replace(made, ranks=(replace(first, process=process),))


def test_what_was_saved_is_what_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "job.brk"
    size = save(example(), str(path))
    assert load(str(path)) == example()
    assert path.stat().st_size == size
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_saving_again_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "job.brk"
    path.write_text("old")
    path.chmod(0o644)
    save(example(), str(path))
    assert load(str(path)) == example()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["job.brk"]


def test_a_failed_save_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.brk"
    path.write_text("old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SnapshotError, match="No space left") as caught:
        save(example(), str(path))
    assert "space" in caught.value.help
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["job.brk"]


def test_a_symlink_stays_one_and_a_device_is_left_alone(tmp_path: Path) -> None:
    link, real = tmp_path / "link", tmp_path / "real.brk"
    link.symlink_to(real)
    save(example(), str(link))
    assert link.is_symlink() and load(str(real)) == example()
    os.mkfifo(tmp_path / "fifo")
    for bad in (tmp_path, tmp_path / "fifo", tmp_path / "no" / "such", Path("/dev/null")):
        with pytest.raises(SnapshotError) as caught:
            save(example(), str(bad))
        assert caught.value.help
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_names_that_are_not_utf8_are_kept_readable() -> None:
    made = with_process(command=("python", os.fsdecode(b"caf\xe9.py")))
    assert unpack(pack(made)).ranks[0].process.command == ("python", "caf?.py")


GOOD = pack(example())
HUGE_CHILD: dict[str, object] = {"pid": 1, "parent": 0, "command": [], "children": []}

BROKEN = {
    "empty": (b"", "empty"),
    "foreign": (b"\x7fELF" + bytes(100), "not a breakranks snapshot"),
    "text": (b"BREAKFAST is ready\n", "not a breakranks snapshot"),
    "cut in the magic": (GOOD[:5], "truncated"),
    "cut in the header": (GOOD[:20], "truncated"),
    "cut in the middle": (GOOD[: len(GOOD) // 2], "truncated"),
    "cut by one byte": (GOOD[:-1], "truncated"),
    "longer": (GOOD + b"x", "damaged"),
    "one bit flipped": (GOOD[:-9] + bytes([GOOD[-9] ^ 4]) + GOOD[-8:], "checksum"),
    "newer": (sealed(b"", version=FORMAT_VERSION + 1), "newer breakranks"),
    "newer with a shorter header": (MAGIC + struct.pack("<H", 9), "newer breakranks"),
    "not zlib": (
        MAGIC + struct.pack("<HIQQ", FORMAT_VERSION, zlib.crc32(b"abc"), 3, 10) + b"abc",
        "does not unpack",
    ),
    "a bomb that says so": (sealed(b"x", size=1 << 50), "more than any snapshot"),
    "a bomb that lies": (sealed(bytes(50_000_000), size=1000), "another size"),
    "shorter than it says": (sealed(b"abc", size=1000), "another size"),
    "not msgpack": (sealed(b"\xc1\xc1"), "not a snapshot of this format"),
    "another type": (forged([1, 2, 3]), "not a snapshot of this format"),
    "deep arrays": (sealed(b"\x91" * 1_000_000), "not a snapshot of this format"),
    "stack out of range": (forged(with_thread(stack=99)), "stack that does not exist"),
    "native out of range": (forged(with_thread(native=-1)), "stack that does not exist"),
    "idle without end": (forged(with_thread(idle=float("inf"))), "not a number"),
    "deadline without end": (forged(with_thread(call=Call("poll", 1, float("nan")))), "not a number"),
    "start is not a number": (forged(with_process(started=float("nan"))), "not a number"),
    "a visit at no time": (forged(with_process(inside=Introspection(time=float("nan")))), "not a number"),
    "loops that do not fit": (
        forged(
            with_process(
                inside=Introspection(loops=(Loop(tid=1, function="f", file="x.py", names=("a", "b"), values=(1,)),))
            )
        ),
        "more names than values",
    ),
    "lock age": (forged(with_process(locks=(FileLock(path="x", kind="flock", waiter=1, age=float("inf")),))), "age"),
    "frame out of range": (forged(replace(example(), stacks=((), (0, 77)))), "frame"),
    "frame before the start": (forged(replace(example(), stacks=((), (-1,)))), "frame"),
    "no row 0": (forged(replace(example(), stacks=())), "row 0"),
    "row 0 not empty": (forged(replace(example(), stacks=((0,),))), "row 0"),
    "a rank beyond memory": (
        forged(replace(example(), ranks=(Rank(rank=1 << 60, host="n", process=Process(pid=1, parent=0, command=())),))),
        "rank 1152921504606846976",
    ),
    "a world beyond memory": (
        forged(replace(example(), job=Job(key="k", launcher="x", world_size=1 << 60))),
        "a world of",
    ),
    "missing ranks nonsense": (
        forged(replace(example(), missing=(Missing(ranks="9" * 6000, reason="exited"),))),
        "missing ranks",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_says_what_is_wrong_and_what_to_do(name: str, tmp_path: Path) -> None:
    data, message = BROKEN[name]
    path = tmp_path / "broken.brk"
    path.write_bytes(data)
    with pytest.raises(SnapshotError) as caught:
        load(str(path))
    assert message in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.help


def test_processes_below_one_another_are_bounded() -> None:
    def family(depth: int) -> Snapshot:
        process = Process(pid=1, parent=0, command=())
        for _ in range(depth):
            process = Process(pid=1, parent=0, command=(), children=(process,))
        return replace(example(), ranks=(Rank(rank=0, host="n", process=process),))

    assert unpack(forged(family(50))).ranks[0].rank == 0
    for depth in (101, 300):
        with pytest.raises(SnapshotError):
            unpack(forged(family(depth)))


def test_places_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, message in (
        (str(tmp_path), "folder"),
        (str(tmp_path / "fifo"), "not a regular file"),
        (str(tmp_path / "none"), "No such file"),
        ("/dev/zero", "not a regular file"),
        ("a\0b", "null"),
    ):
        with pytest.raises(SnapshotError, match=message):
            load(path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **more: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(SnapshotError, match="Permission denied") as caught:
        load(str(tmp_path / "x"))
    assert "user" in caught.value.help


def test_a_gigantic_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SnapshotError, match="larger than any snapshot"):
        load(str(path))


def accept(data: bytes) -> None:
    try:
        unpack(data)
    except SnapshotError as error:
        assert error.message and error.help


@given(st.binary(max_size=200))
def test_fuzz_any_bytes(data: bytes) -> None:
    accept(data)
    accept(MAGIC + data)
    accept(sealed(data))


@settings(max_examples=300)
@given(st.integers(0, len(GOOD)), st.binary(min_size=1, max_size=8))
def test_fuzz_a_good_file_overwritten(place: int, noise: bytes) -> None:
    accept(GOOD[:place] + noise + GOOD[place + len(noise) :])
    accept(GOOD[:place])


def test_fuzz_the_content_under_a_valid_header() -> None:
    # Mutations of the msgpack itself: those that still decode must be safe to fold and to list.
    from breakranks.snapshot.model import processes
    from breakranks.snapshot.prefix_tree import fold, fold_threads

    plain = msgspec.msgpack.encode(example())
    chance = random.Random(2)
    survived = 0
    for _ in range(3000):
        data = bytearray(plain)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            snapshot = unpack(sealed(bytes(data)))
        except SnapshotError:
            continue
        survived += 1
        list(fold(snapshot, native=True).walk())
        fold_threads(snapshot, native=True)
        list(processes(snapshot))
    assert survived > 100


def test_the_header_is_what_the_format_says() -> None:
    assert GOOD.startswith(b"BREAKRANKS\x02\x00")
    assert HEADER_BYTES == 32
    assert snapshot_file.MAX_SNAPSHOT_BYTES == 1 << 30


def test_texts_that_are_not_utf8_spoil_nothing_else() -> None:
    """The way round for them keeps what is no text: the histories of recorders."""
    from unit.test_host_messages import whole

    snapshot = whole()
    assert any(track.history for rank in snapshot.ranks if rank.recorder for track in rank.recorder.tracks)
    odd = replace(snapshot, made_by="x\udcff")
    assert unpack(pack(odd)) == replace(snapshot, made_by="x?")
