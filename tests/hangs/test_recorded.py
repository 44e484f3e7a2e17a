"""Every recording of the zoo is explained, and compared with the same table as the live jobs."""

from __future__ import annotations

import getpass
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from breakranks.snapshot.snapshot_file import load
from support.values import replace

from .case import Case
from .expected import BY_NAME, CASES
from .harness import breakranks
from .recordings import (
    CHECKOUT,
    FILES,
    FOLDER,
    RecordingError,
    answer_of,
    check_recording,
    job_folder,
    path_of,
    read,
    rewriter,
    rewritten,
)

MOST_BYTES = 40_000
# The replacements of this machine's folders, and folders that every Linux has.
PLACES = ("/checkout", "/opt/python", "/home/user", "/usr", "/lib", "/lib64", "/bin", "/dev", "/proc")
PATH = re.compile(r"(?<![\w./\]])/[\w.+-]+(?:/[\w.+-]+)*")
ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
ADDRESSES = {"0.0.0.0", "127.0.0.1", "192.0.2.1"}
THROUGH_THE_COMMAND = ("missing_sleep", "lock_held_socket", "order_two_groups", "healthy_loader")


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from (*texts_in(key), *texts_in(entry))
    elif isinstance(value, list):
        for entry in value:
            yield from texts_in(entry)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_why_explains_the_recording(case: Case) -> None:
    check_recording(case)


@pytest.mark.parametrize("name", THROUGH_THE_COMMAND)
def test_the_command_says_the_same_of_the_file(name: str) -> None:
    assert breakranks("why", str(path_of(name)), "--json") == answer_of(read(name))


def test_there_is_a_recording_of_every_job_and_of_nothing_else() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {FILES, *(f"{case.name}.brk" for case in CASES)}


def test_nothing_of_a_machine_is_in_a_recording_and_all_are_small() -> None:
    machine = {}
    for name in BY_NAME:
        texts = sorted(set(texts_in(msgspec.msgpack.decode(msgspec.msgpack.encode(read(name))))))
        machine[name] = [text for text in texts if is_of_a_machine(text, name)]
        assert path_of(name).stat().st_size < MOST_BYTES, name
    assert {name: texts for name, texts in machine.items() if texts} == {}


def is_of_a_machine(text: str, name: str) -> bool:
    places = (*PLACES, job_folder(name))
    paths = [path for path in PATH.findall(text) if not path.startswith(places)]
    return bool(paths) or not set(ADDRESS.findall(text)) <= ADDRESSES


def test_what_is_of_this_machine_is_taken_out_of_every_text() -> None:
    # GIVEN a recording with folders and names of this machine put back
    folder = "/tmp/zoo-missing_sleep-x1y2"
    words = (folder, str(CHECKOUT), sys.base_prefix, str(Path.home()), socket.gethostname())
    snapshot = read("missing_sleep")
    process = replace(snapshot.ranks[0].process, command=tuple(f"{word}/a {word}:1" for word in words))
    process = replace(process, user=getpass.getuser())
    dirty = replace(snapshot, ranks=(replace(snapshot.ranks[0], process=process),))

    # WHEN
    clean = rewritten(dirty, rewriter(dirty, folder, job_folder("missing_sleep")))

    # THEN
    assert clean.ranks[0].process.command == (
        "/tmp/zoo-missing_sleep/a /tmp/zoo-missing_sleep:1",
        "/checkout/a /checkout:1",
        "/opt/python/a /opt/python:1",
        "/home/user/a /home/user:1",
        "host/a host:1",
    )
    assert clean.ranks[0].process.user == "user"
    # and a longer word that begins like one of them is another word
    longer = replace(process, command=(f"{Path.home()}_differs.py",))
    kept = replace(dirty, ranks=(replace(snapshot.ranks[0], process=longer),))
    assert rewritten(kept, rewriter(kept, folder, "/x")).ranks[0].process.command == longer.command


@pytest.mark.parametrize("fault", ["missing", "truncated", "newer", "other fields"])
def test_a_recording_that_cannot_be_read_says_how_to_make_it_again(tmp_path: Path, fault: str) -> None:
    # GIVEN
    whole = path_of("missing_sleep").read_bytes()
    broken = {
        "truncated": whole[:-100],
        "newer": whole[:10] + (99).to_bytes(2, "little") + whole[12:],
        "other fields": pack_of({"version": 1, "made_by": 5}),
    }
    if fault in broken:
        path_of("missing_sleep", tmp_path).write_bytes(broken[fault])

    # THEN
    with pytest.raises(RecordingError, match=r"python -m tests\.hangs --record missing_sleep"):
        read("missing_sleep", tmp_path)


def pack_of(plain: dict[str, object]) -> bytes:
    from breakranks.snapshot.snapshot_file import pack

    return pack(plain)  # type: ignore[arg-type]


def test_a_recording_of_another_hang_fails(tmp_path: Path) -> None:
    shutil.copy(path_of("missing_sleep"), path_of("rank_stopped", tmp_path))
    assert load(str(path_of("rank_stopped", tmp_path))).ranks
    with pytest.raises(AssertionError):
        check_recording(BY_NAME["rank_stopped"], tmp_path)
