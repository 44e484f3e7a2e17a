"""Recordings of the jobs, in `tests/data/zoo`: made from live jobs, and explained in every run.

A recording is the snapshot of which the verdict was made. It contains nothing of the machine that made it: paths,
names and addresses are replaced in all of its texts before it is written.
"""

from __future__ import annotations

import getpass
import json
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from breakranks.errors import SnapshotError
from breakranks.explain.verdict import explain
from breakranks.show.json_output import to_text, why_json
from breakranks.snapshot.model import Snapshot
from breakranks.snapshot.snapshot_file import load, save
from support.stalls import undisturbed

from .case import Case
from .check import Answer, check, told
from .harness import running, why

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parents[1] / "data" / "zoo"
# By job: the files of its folder that the table mentions, with their content.
FILES = "files.json"

Rewrite = Callable[[str], str]


class RecordingError(Exception):
    """A recording cannot be used. The message tells how to make it again."""


def path_of(name: str, folder: Path = FOLDER) -> Path:
    return folder / f"{name}.brk"


def job_folder(name: str) -> str:
    """The name of the job's folder in a recording."""
    return f"/tmp/zoo-{name}"


def files_of(name: str, folder: Path = FOLDER) -> dict[str, str]:
    """The content of the files that the table mentions."""
    return _index(folder).get(name, {})


def read(name: str, folder: Path = FOLDER) -> Snapshot:
    """Return the snapshot of one job; raise RecordingError if it cannot be read."""
    again = f"Record it again: python -m tests.hangs --record {name}"
    path = path_of(name, folder)
    if not path.exists():
        raise RecordingError(f"there is no recording of {name}. {again}")
    try:
        return load(str(path))
    except SnapshotError as error:
        raise RecordingError(f"{error.message}. {again}") from None


def answer_of(snapshot: Snapshot) -> tuple[int, Answer]:
    """Return the exit status and the answer of `why FILE.brk --json`."""
    diagnosis = explain(snapshot)
    return int(diagnosis.verdict is not None), json.loads(to_text(why_json(snapshot, diagnosis)))


def check_recording(case: Case, folder: Path = FOLDER) -> None:
    """Fail if the answer of `why` for the recording differs from the table."""
    status, answer = answer_of(read(case.name, folder))
    files = files_of(case.name, folder)
    assert set(files) == set(case.files), f"python -m tests.hangs --record {case.name}: the table mentions other files"
    check(case, status, answer, job_folder(case.name), files)


def record(case: Case, folder: Path = FOLDER) -> int:
    """Start the job, explain it, and write its recording if the answer matches the table. Return the file's size."""
    folder.mkdir(parents=True, exist_ok=True)
    with running(case) as job:
        seen = job.folder / "seen.brk"
        status, answer = undisturbed(lambda: why(job, "--save", str(seen)))
        files = job.files()
        check(case, status, answer, str(job.folder), files)
        snapshot = load(str(seen))
        rewrite = rewriter(snapshot, str(job.folder), job_folder(case.name))
    clean = rewritten(snapshot, rewrite)
    # The recording must give the same answer.
    said, expected = answer_of(clean)[1], texts(answer, rewrite)
    assert alike(said, expected), f"{case.name}: not the same\n{told(said)}\n{told(expected)}"
    check(case, status, answer_of(clean)[1], job_folder(case.name), files)
    size = save(clean, str(path_of(case.name, folder)))
    path_of(case.name, folder).chmod(0o644)
    index = {name: told for name, told in _index(folder).items() if name != case.name}
    if files:
        index[case.name] = files
    (folder / FILES).write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")
    return size


def rewriter(snapshot: Snapshot, job: str, job_name: str) -> Rewrite:
    """Return a function that replaces folders, the host's name and addresses, and the user's name in a text."""
    user = getpass.getuser()
    words = {
        job: job_name,
        str(CHECKOUT): "/checkout",
        sys.base_prefix: "/opt/python",
        str(Path.home()): "/home/user",
        socket.gethostname(): "host",
    }
    for host in snapshot.hosts:
        words[host.name] = "host"
        words.update(dict.fromkeys(host.addresses, "192.0.2.1"))
    words.pop("", None)
    found = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    whole = re.compile(rf"(?<![\w.-])(?:{found})(?![\w-])")

    def rewrite(text: str) -> str:
        return "user" if text == user else whole.sub(lambda match: words[match[0]], text)

    return rewrite


def rewritten(snapshot: Snapshot, rewrite: Rewrite) -> Snapshot:
    """Return the snapshot with all of its texts rewritten."""
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot))
    return msgspec.msgpack.decode(msgspec.msgpack.encode(texts(plain, rewrite)), type=Snapshot)


def alike(one: Any, two: Any) -> bool:
    """Whether two answers are the same, except where a text is cut at a maximum length."""
    if isinstance(one, str) and isinstance(two, str):
        return one == two or "…" in one + two
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(alike(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(alike, one, two))
    return bool(one == two)


def texts(value: Any, rewrite: Rewrite) -> Any:
    """Return plain values with all of their texts rewritten."""
    if isinstance(value, str):
        return rewrite(value)
    if isinstance(value, dict):
        return {texts(key, rewrite): texts(entry, rewrite) for key, entry in value.items()}
    if isinstance(value, list):
        return [texts(entry, rewrite) for entry in value]
    return value


def _index(folder: Path) -> dict[str, dict[str, str]]:
    path = folder / FILES
    return json.loads(path.read_text()) if path.exists() else {}
