"""The part of stage one that receives the agent's code where it is missing, and removes it afterwards.

The code is received and checked in memory. Then it is written into a folder that only its user can read. A cleanup
process, the parent of the agent, removes that folder when the agent has ended, even by ``kill -9``. Like :mod:`stage1`,
whose globals it shares, this source runs from ``python -c``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator

from breakranks.hosts.bootstrap.stage1 import ControllerTalk, Stage1Options, agent, place_of

_MAX_BUNDLE_BYTES = 1 << 28
_ALIVE = "alive"  # a file that is locked while its folder is in use
_UNUSED_SECONDS = 3600.0  # a folder without that file is a leftover when it is this old
_PACKAGE = "breakranks.zip"
# What is left out, in turn, where there is no space for everything or nothing may be executed.
_LEFT_OUT = ((), ("pystack.zip",), ("pystack.zip", "py-spy"))


class InstallRefused(Exception):
    """The installation failed. The controller is told why."""


class InputReader:
    """Reads the messages to this host. ``rest`` is what was read beyond them, from the start of a line."""

    def __init__(self, inp: int, nonce: str, host: str, patience: float) -> None:
        self.rest = b""
        self._inp = inp
        self._mark = f"@br1 {nonce} ".encode()
        self._names = (b"*", host.encode())
        self._patience = patience
        self._pieces: dict[bytes, list[bytes]] = {}
        self._size = 0

    def message(self) -> bytes | None:
        """Return the next message; None at the end of the input or after the timeout."""
        while True:
            line = self._line()
            if line is None:
                return None
            whole = self._complete(line)
            if whole is not None:
                return whole

    def _complete(self, line: bytes) -> bytes | None:
        """Return the message that a line completes, if it does."""
        import binascii
        import zlib

        at = line.find(self._mark)
        words = line[at + len(self._mark) :].split() if at >= 0 else []
        if len(words) != 4 or words[0] not in self._names:
            return None
        _, number, more, coded = words
        try:
            piece = binascii.a2b_base64(coded)
            self._size += len(piece)
            if self._size > _MAX_BUNDLE_BYTES:
                raise InstallRefused("the controller sent more than 256 MiB")
            pieces = self._pieces.setdefault(number, [])
            pieces.append(piece)
            if more != b".":
                return None
            whole = b"".join(self._pieces.pop(number))
            while whole[:1] == b"z":
                whole = zlib.decompressobj().decompress(whole[1:], _MAX_BUNDLE_BYTES)
        except (binascii.Error, zlib.error) as error:
            raise InstallRefused(f"what the controller sent arrived damaged ({error})") from None
        return whole

    def _line(self) -> bytes | None:
        import select

        # Searching a long line again for each piece of it that arrives would take quadratic time.
        parts = [self.rest]
        while b"\n" not in parts[-1]:
            if not select.select([self._inp], [], [], self._patience)[0]:
                return None
            data = os.read(self._inp, 1 << 20)
            if not data:
                return None
            parts.append(data)
        line, _, self.rest = b"".join(parts).partition(b"\n")
        return line


class Cleanup:
    """Removes the agent's folders when the agent has ended, however it ended.

    This process becomes the cleanup process, and its child continues as the agent. The other way round, the orphaned
    cleanup process would become a child of pid 1, which in a container may be a rank that does not wait for children.
    """

    def __init__(self) -> None:
        watched, self._held = os.pipe()
        agent = os.fork()
        if not agent:
            os.close(watched)
            return
        status = 1
        try:
            os.close(self._held)
            status = self._clear_after(agent, watched)
        finally:
            os._exit(status)

    def add(self, folder: str) -> None:
        """Have a folder removed when the agent has ended."""
        os.write(self._held, os.fsencode(folder) + b"\n")

    def _clear_after(self, agent: int, watched: int) -> int:
        """Wait for the agent, remove its folders, and return its exit status as a shell does."""
        import signal

        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        try:
            os.setsid()  # signals to the process group of the agent must not end this process
        except PermissionError:  # this process leads the group
            pass
        with open(watched, "rb") as lines:
            folders = lines.read().splitlines()
        _, status = os.waitpid(agent, 0)
        for folder in folders:
            remove(os.fsdecode(folder))
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


def is_own(folder: str) -> bool:
    """Whether it is a folder of this user that no other user can write to. A link is not."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def remove(folder: str) -> None:
    if is_own(folder):
        shutil.rmtree(folder, ignore_errors=True)


def is_safe(folder: str) -> bool:
    """Whether only this user and root can replace a folder in it."""
    if "\n" in folder:  # the cleanup process reads lines
        return False
    try:
        status = os.stat(folder)
    except OSError:
        return False
    closed = not status.st_mode & 0o022 or bool(status.st_mode & stat.S_ISVTX)
    return stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.geteuid()) and closed


def places() -> Iterator[str]:
    """Yield the folders in which the agent's folder may be created."""
    named = (os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("TMPDIR", ""))
    seen = set()
    for folder in (*named, "/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~")):
        folder = os.path.realpath(folder) if folder.startswith("/") else ""
        if folder and folder not in seen and is_safe(folder):
            seen.add(folder)
            yield folder


def beginning(host: str) -> str:
    """Return how the names of the agents' folders begin: with the host, as hosts share homes, but not always locks."""
    return f"breakranks-{os.geteuid()}-{host}-"


def sweep(place: str, host: str) -> None:
    """Remove folders whose agent and cleanup process were both killed."""
    try:
        names = [name for name in os.listdir(place) if name.startswith(beginning(host))]
    except OSError:
        return
    for name in names:
        folder = f"{place}/{name}"
        if not is_own(folder):
            continue
        try:
            lock = os.open(f"{folder}/{_ALIVE}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            # It is being created, or was left before its first file was written.
            if time.time() - os.stat(folder, follow_symlinks=False).st_mtime > _UNUSED_SECONDS:
                remove(folder)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
        except OSError:
            pass  # in use, or its file system has no locks
        finally:
            os.close(lock)


def make_folder(folder: str, cleanup: Cleanup) -> None:
    """Create a folder, which must not exist, and hold its lock until this process ends."""
    os.mkdir(folder, 0o700)
    cleanup.add(folder)
    lock = os.open(f"{folder}/{_ALIVE}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass  # a file system without locks: a sweep cannot get one either, and leaves the folder


def write(folder: str, files: dict[str, bytes]) -> None:
    """Unpack zip files into ``lib``, and write programs into ``bin``."""
    import io
    import zipfile

    os.mkdir(f"{folder}/bin", 0o700)
    for name, data in files.items():
        if name.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(data)) as packed:
                packed.extractall(f"{folder}/lib")
            continue
        with open(f"{folder}/bin/{name}", "wb", 0) as file:
            os.fchmod(file.fileno(), 0o700)
            left = memoryview(data)
            while left:
                left = left[file.write(left) or 0 :]


def has_space(place: str, size: int, needs_exec: bool) -> bool:
    try:
        of = os.statvfs(place)
    except OSError:
        return False
    if of.f_flag & os.ST_RDONLY or (needs_exec and of.f_flag & os.ST_NOEXEC):
        return False
    # A file system that does not count its blocks has 0 of them.
    return not of.f_blocks or of.f_bavail * of.f_frsize > size


def store(files: dict[str, bytes], host: str, cleanup: Cleanup) -> str:
    """Write the files where that is possible, and return the folder; ``""`` if there is no such place."""
    for place in places():
        sweep(place, host)
    for without in _LEFT_OUT:
        kept = {name: data for name, data in files.items() if name not in without}
        size = sum(map(len, kept.values())) * 5 // 4 + (1 << 20)
        for place in places():
            if not has_space(place, size, needs_exec=len(kept) > 1):
                continue
            folder = f"{place}/{beginning(host)}{os.urandom(8).hex()}"
            try:
                make_folder(folder, cleanup)
                write(folder, kept)
                return folder
            except OSError:  # full or over a quota, whatever statvfs reports
                remove(folder)
    return ""


def in_memory(package: bytes) -> str:
    """Return the path of the package in a memory file, to import it where nothing can be written."""
    handle = os.memfd_create("breakranks")
    with open(handle, "wb", closefd=False) as file:
        file.write(package)
    return f"/proc/{os.getpid()}/fd/{handle}"


def use(library: str, tools: str) -> None:
    """Import from there first, in this process and those that it starts."""
    forget_package()
    sys.path.insert(0, library)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{library}{os.pathsep}{before}" if before else library
    if tools:
        os.environ["PATH"] = tools + os.pathsep + os.environ.get("PATH", os.defpath)


def forget_package() -> None:
    """Forget a breakranks that is imported already, by a ``sitecustomize`` of this host."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "breakranks"]:
        del sys.modules[name]


def have() -> list[str]:
    """Return the tools that need not be sent."""
    tools = ["pystack"] if place_of("pystack") else []
    folders = [os.path.dirname(sys.executable), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    if any(os.access(f"{folder}/py-spy", os.X_OK) for folder in folders):
        tools.append("py-spy")
    return tools


def receive(reader: InputReader, talk: ControllerTalk) -> dict[str, bytes]:
    """Return the checked files that the controller sent; none if it is gone."""
    import importlib.machinery
    import importlib.util

    talk.say(
        stage="need",
        python=".".join(map(str, sys.version_info[:3])),
        suffix=importlib.machinery.EXTENSION_SUFFIXES[0],
        machine=os.uname().machine,
        magic=importlib.util.MAGIC_NUMBER.hex(),
        have=have(),
    )
    files: dict[str, bytes] = {}
    while True:
        message = reader.message()
        if message is None:
            return {}
        if message[:1] == b"f":
            size = int.from_bytes(message[1:3], "big")
            files[message[3 : 3 + size].decode(errors="replace")] = message[3 + size :]
        elif message[:1] == b"j":
            sums = go(message[1:])
            if sums is not None:
                return checked(files, sums)


def go(text: bytes) -> dict[str, str] | None:
    """Return the checksums, if this is the message that ends the files."""
    import json

    try:
        message = json.loads(text)
    except ValueError:
        raise InstallRefused("the controller sent a message that is not JSON") from None
    if not isinstance(message, dict) or message.get("stage") != "go":
        return None
    sums = message.get("sha256")
    if not isinstance(sums, dict) or _PACKAGE not in sums:
        raise InstallRefused("the controller did not send the list of its files")
    return sums


def checked(files: dict[str, bytes], sums: dict[str, str]) -> dict[str, bytes]:
    """Return the files that are listed, if their names and checksums are right."""
    import hashlib

    for name, expected in sums.items():
        if name not in files:
            raise InstallRefused(f"{name} was not received")
        if "/" in name or name in ("", ".", ".."):
            raise InstallRefused(f"{name!r} is not the name of a file")
        if hashlib.sha256(files[name]).hexdigest() != expected:
            raise InstallRefused(f"{name} arrived damaged: its checksum does not match")
    return {name: files[name] for name in sums}


def install(inp: int, talk: ControllerTalk, options: Stage1Options) -> int:
    """Receive the code, run the agent, and return the exit status."""
    try:
        cleanup = Cleanup()
        reader = InputReader(inp, options.nonce, talk.host, options.patience)
        files = receive(reader, talk)
        if not files:
            return 0
        shipped = store(files, talk.host, cleanup)
        library = f"{shipped}/lib" if shipped else in_memory(files[_PACKAGE])
        use(library, f"{shipped}/bin" if shipped else "")
        files.clear()
        return agent(inp, talk, options, reader.rest, shipped)
    except InstallRefused as error:
        talk.say(stage="failed", what=str(error))
        return 1
