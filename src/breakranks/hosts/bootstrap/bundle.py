"""What is sent to a host that has no breakranks, or another version: the package, and the tools that read stacks.

Only what fits the host is sent: extension modules for the same Python and machine, programs for the same machine.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import io
import json
import marshal
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from breakranks.errors import BreakranksError
from breakranks.hosts.bootstrap.stage1 import digest_of
from breakranks.observe.pyspy_run import py_spy

TOOLS = ("py-spy", "pystack")
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
# What a host runs. The compiled code of these is sent as well, where it fits: compiling takes a fifth of a second.
_RUN_THERE = (
    "__init__.py",
    "errors.py",
    "log.py",
    "rankset.py",
    "machine_suspension.py",
    "rank_messages.py",
    "typed_json.py",
    "snapshot",
    "observe",
    "jobs",
    "inject",
    "introspect",
    "rank",
    "backend",
    "hosts",
)
_LOADED = 1  # PT_LOAD


@functools.cache
def digest() -> str:
    """Return the digest of this package. A host that has a package with the same digest is sent nothing."""
    return digest_of(_ROOT)


def supply(need: Mapping[str, Any], *, tools: Collection[str] = TOOLS) -> Iterator[bytes]:
    """Yield the messages for a host that has reported what it needs, each with its kind in front.

    ``tools`` may be fewer for a slow transport. ``pystack`` is the largest part.
    """
    lacks = tuple(name for name in tools if name not in need.get("have", ()))
    yield from _messages(need.get("suffix"), need.get("machine"), need.get("magic"), lacks)


@functools.cache
def _messages(suffix: str, machine: str, magic: str, lacks: tuple[str, ...]) -> tuple[bytes, ...]:
    sums, messages = {}, []
    for name, data in _files(suffix, machine, magic, lacks).items():
        sums[name] = hashlib.sha256(data).hexdigest()
        head = struct.pack(">cH", b"f", len(name)) + name.encode()
        messages.append(b"z" + zlib.compress(head + data, 4))
    messages.append(b"j" + json.dumps({"stage": "go", "sha256": sums}).encode())
    return tuple(messages)


def _files(suffix: str, machine: str, magic: str, lacks: tuple[str, ...]) -> dict[str, bytes]:
    files = {"breakranks.zip": _zipped(_sources(magic == importlib.util.MAGIC_NUMBER.hex()))}
    is_same_machine = machine == os.uname().machine
    if "pystack" in lacks and is_same_machine and suffix == _SUFFIX:
        files["pystack.zip"] = _zipped((*_installed("pystack"), *_libraries("pystack")))
    if "py-spy" in lacks and is_same_machine:
        try:
            files["py-spy"] = slim(_read(py_spy()))
        except (BreakranksError, OSError):
            pass  # there will be no stacks of that host; its agent reports why
    return {name: data for name, data in files.items() if data}


def _zipped(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a zip file without compression: the message is compressed as a whole, which is smaller."""
    packed = io.BytesIO()
    count = 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files:
            archive.writestr(zipfile.ZipInfo(name), data)
            count += 1
    return packed.getvalue() if count else b""


def _sources(with_code: bool) -> Iterator[tuple[str, bytes]]:
    for path in _below(_ROOT, (".py",)):
        name = os.path.relpath(path, _ROOT)
        yield f"breakranks/{name}", _read(path)
        if with_code and name.split(os.sep)[0] in _RUN_THERE:
            folder, stem = os.path.split(name[:-3])
            yield (
                os.path.join("breakranks", folder, "__pycache__", f"{stem}.{sys.implementation.cache_tag}.pyc"),
                _code(path),
            )


def _code(path: str) -> bytes:
    """Return the content of a .pyc file that is used whatever the time of its source, which changes on the way."""
    loader = importlib.machinery.SourceFileLoader("breakranks", path)
    return importlib.util.MAGIC_NUMBER + struct.pack("<L8x", 0b01) + marshal.dumps(loader.get_code("breakranks"))


def _installed(package: str) -> Iterator[tuple[str, bytes]]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        return
    root = os.path.dirname(spec.origin)
    for path in _below(root, (".py", ".so")):
        yield os.path.join(package, os.path.relpath(path, root)), slim(_read(path))


def _libraries(package: str) -> Iterator[tuple[str, bytes]]:
    """Yield the shared libraries that a wheel has in a folder beside its package."""
    spec = importlib.util.find_spec(package)
    folder = os.path.join(os.path.dirname(os.path.dirname((spec and spec.origin) or "")), f"{package}.libs")
    if os.path.isdir(folder):
        for name in sorted(os.listdir(folder)):
            yield f"{package}.libs/{name}", slim(_read(os.path.join(folder, name)))


def _below(root: str, endings: tuple[str, ...]) -> Iterator[str]:
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name != "__pycache__")
        yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith(endings))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def slim(data: bytes) -> bytes:
    """Return an ELF file without the parts that are never loaded. Other files are returned as they are.

    These parts are symbols for debuggers, up to nine tenths of a file. What is loaded keeps its offset; gaps become
    zeros, which take no space when compressed.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        return data
    table, size, count = (struct.unpack_from(form, data, at)[0] for form, at in (("<Q", 32), ("<H", 54), ("<H", 56)))
    kept = [(0, table + size * count)]
    for row in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", data, table + row * size)
        if kind == _LOADED:
            kept.append((offset, offset + length))
    made = bytearray(max(end for _, end in kept))
    for start, end in kept:
        made[start:end] = data[start:end]
    struct.pack_into("<Q", made, 40, 0)  # where the table of sections was
    struct.pack_into("<HHH", made, 58, 0, 0, 0)
    return bytes(made)
