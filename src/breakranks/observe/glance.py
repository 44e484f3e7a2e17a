"""Who is most likely a rank: by the environment alone, with nothing imported but ``os``.

A guess, good for a head start and for nothing else: it knows one kind of launcher and takes every doubt
for a no. Who is a rank of what is known by :mod:`breakranks.jobs`.
"""

from __future__ import annotations

import os

_MARK = b"TORCHELASTIC_RUN_ID"
_JOB = (_MARK, b"MASTER_ADDR", b"MASTER_PORT", b"WORLD_SIZE")


def torch_ranks(key: str | None = None) -> dict[int, int]:
    """Pids by rank, if there are ranks of a single torchrun job, or of the one with this whole key."""
    found: dict[int, dict[bytes, bytes]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and _is_python(name):
            environ = _environ(int(name))
            if environ.get(b"RANK", b"").isdigit() and _MARK in environ:
                found[int(name)] = environ
    found.pop(os.getpid(), None)
    ranks: dict[int, int] = {}
    jobs = set()
    for pid, environ in found.items():
        port = os.fsdecode(environ.get(b"MASTER_PORT", b""))
        if _parent(pid) in found or (key is not None and not key.endswith(f"-{port}")):
            continue  # started by a rank, not a rank; or of another job
        rank = int(environ[b"RANK"])
        if rank in ranks:
            return {}
        ranks[rank] = pid
        jobs.add(tuple(environ.get(name) for name in _JOB))
    return ranks if len(jobs) == 1 else {}


def _is_python(pid: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").rpartition("/")[2].startswith("python")
    except OSError:
        return False


def _environ(pid: int) -> dict[bytes, bytes]:
    data = _read(f"/proc/{pid}/environ")
    if _MARK not in data:
        return {}
    return {name: value for name, _, value in (item.partition(b"=") for item in data.split(b"\0"))}


def _parent(pid: int) -> int:
    data = _read(f"/proc/{pid}/stat")
    return int(data[data.rfind(b")") + 2 :].split()[1]) if data else 0


def _read(path: str) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = b""
        while piece := os.read(handle, 65536):
            data += piece
        return data
    except OSError:
        return b""
    finally:
        os.close(handle)
