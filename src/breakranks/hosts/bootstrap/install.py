"""The part of stage one that receives an agent where there is none, and leaves nothing of it behind.

All of it is received and checked in memory. Then it is written into a folder that only its user can read, and a
cleanup process, the parent of the agent, removes that folder when the agent has ended, even by ``kill -9``. Like
:mod:`stage1`, whose names it sees, it runs from ``python -c``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator

from breakranks.hosts.bootstrap.stage1 import ControllerTalk, Stage1Options, agent, has_msgspec, place_of

_MAX_BUNDLE_BYTES = 1 << 28  # bytes that may be received
_ALIVE = "alive"  # locked in a folder as long as it is in use
_NEVER_BEGUN_SECONDS = 3600.0  # a folder without that file is left over when it is this old
_PACKAGE = "breakranks.zip"
# What to do without, in turn, if there is no room for everything or nothing may be executed there.
_LESS = ((), ("pystack.zip",), ("pystack.zip", "msgspec.zip", "py-spy"))


class InstallRefused(Exception):
    """It cannot go on, and the controller is to know why."""


class InputReader:
    """Hears what is said to this host. ``rest`` is what was read beyond that, from the start of a line."""

    def __init__(self, inp: int, nonce: str, host: str, patience: float) -> None:
        self.rest = b""
        self._inp = inp
        self._mark = f"@br1 {nonce} ".encode()
        self._names = (b"*", host.encode())
        self._patience = patience
        self._pieces: dict[bytes, list[bytes]] = {}
        self._size = 0

    def message(self) -> bytes | None:
        """The next message; None when the input has ended, or nobody says anything any more."""
        while True:
            line = self._line()
            if line is None:
                return None
            whole = self._heard(line)
            if whole is not None:
                return whole

    def _heard(self, line: bytes) -> bytes | None:
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
            raise InstallRefused(f"what the controller sent came damaged ({error})") from None
        return whole

    def _line(self) -> bytes | None:
        import select

        # Searching the whole of a long line again for each piece of it that comes would take for ever.
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
    """Removes folders of ours when the agent has ended, however it ended.

    This process becomes the cleanup process, and a child of it goes on as the agent. An orphan would become a
    child of pid 1, which in a container may be a rank, and that waits for no children.
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

    def keep(self, folder: str) -> None:
        os.write(self._held, os.fsencode(folder) + b"\n")

    def _clear_after(self, agent: int, watched: int) -> int:
        """The exit status of the agent, as a shell gives it."""
        import signal

        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        try:
            os.setsid()  # a signal to the group of the agent is not for us
        except PermissionError:  # the group is ours
            pass
        with open(watched, "rb") as told:
            folders = told.read().splitlines()
        _, status = os.waitpid(agent, 0)
        for folder in folders:
            remove(os.fsdecode(folder))
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


def is_own(folder: str) -> bool:
    """Whether it is a folder of ours that nobody else can write to. A link is not."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def remove(folder: str) -> None:
    if is_own(folder):
        shutil.rmtree(folder, ignore_errors=True)


def is_safe(folder: str) -> bool:
    """Whether nobody but us and root can put something else in the place of a folder in it."""
    if "\n" in folder:  # the cleanup process reads lines
        return False
    try:
        status = os.stat(folder)
    except OSError:
        return False
    closed = not status.st_mode & 0o022 or bool(status.st_mode & stat.S_ISVTX)
    return stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.geteuid()) and closed


def places() -> Iterator[str]:
    named = (os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("TMPDIR", ""))
    seen = set()
    for folder in (*named, "/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~")):
        folder = os.path.realpath(folder) if folder.startswith("/") else ""
        if folder and folder not in seen and is_safe(folder):
            seen.add(folder)
            yield folder


def beginning(host: str) -> str:
    """How our folders begin. With the host: a home folder is on many hosts, where locks may not be seen."""
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
            # It is just being made, or was left before its first file was there.
            if time.time() - os.stat(folder, follow_symlinks=False).st_mtime > _NEVER_BEGUN_SECONDS:
                remove(folder)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
        except OSError:
            pass  # in use, or nobody can tell
        finally:
            os.close(lock)


def make_folder(folder: str, cleanup: Cleanup) -> None:
    """Make a folder of ours, which must not be there; its lock is ours until this process ends."""
    os.mkdir(folder, 0o700)
    cleanup.keep(folder)
    lock = os.open(f"{folder}/{_ALIVE}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass  # a file system without locks: who sweeps there can get none either, and leaves it


def write(folder: str, files: dict[str, bytes]) -> None:
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


def has_room(place: str, size: int, needs_exec: bool) -> bool:
    try:
        of = os.statvfs(place)
    except OSError:
        return False
    if of.f_flag & os.ST_RDONLY or (needs_exec and of.f_flag & os.ST_NOEXEC):
        return False
    # A file system that does not count says 0 of everything.
    return not of.f_blocks or of.f_bavail * of.f_frsize > size


def store(files: dict[str, bytes], host: str, cleanup: Cleanup) -> str:
    """Write the files where it can be done, and give the folder; ``""`` if there is no such place."""
    for place in places():
        sweep(place, host)
    for without in _LESS:
        kept = {name: data for name, data in files.items() if name not in without}
        size = sum(map(len, kept.values())) * 5 // 4 + (1 << 20)
        for place in places():
            if not has_room(place, size, needs_exec=len(kept) > 1):
                continue
            folder = f"{place}/{beginning(host)}{os.urandom(8).hex()}"
            try:
                make_folder(folder, cleanup)
                write(folder, kept)
                return folder
            except OSError:  # full or over a quota, whatever it says of itself
                remove(folder)
    return ""


def in_memory(package: bytes) -> str:
    """The package without any file: where nothing can be written, it is imported from a memory file."""
    handle = os.memfd_create("breakranks")
    with open(handle, "wb", closefd=False) as file:
        file.write(package)
    return f"/proc/{os.getpid()}/fd/{handle}"


def use(library: str, tools: str) -> None:
    """Import from there first, and whatever we start does too."""
    paths = [library]
    is_msgspec_loaded = has_msgspec()
    forget("breakranks")
    sys.path.insert(0, library)
    if not is_msgspec_loaded:
        forget("msgspec")
        if not has_msgspec():
            forget("msgspec")
            paths.insert(0, f"{library}/breakranks/hosts/bootstrap/stand_in")
            sys.path.insert(0, paths[0])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *([before] if before else [])])
    if tools:
        os.environ["PATH"] = tools + os.pathsep + os.environ.get("PATH", os.defpath)


def forget(package: str) -> None:
    """A package that did not load, or not as wanted, leaves parts of itself behind."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def have() -> list[str]:
    """What need not be sent."""
    found = ["msgspec"] if has_msgspec() else []
    if place_of("pystack"):
        found.append("pystack")
    folders = [os.path.dirname(sys.executable), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    if any(os.access(f"{folder}/py-spy", os.X_OK) for folder in folders):
        found.append("py-spy")
    return found


def receive(reader: InputReader, talk: ControllerTalk) -> dict[str, bytes]:
    """What the controller sent, checked; empty if it has gone."""
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
    """The sums, if this is the word to go."""
    import json

    try:
        said = json.loads(text)
    except ValueError:
        raise InstallRefused("the controller said something that is not JSON") from None
    if not isinstance(said, dict) or said.get("stage") != "go":
        return None
    sums = said.get("sha256")
    if not isinstance(sums, dict) or _PACKAGE not in sums:
        raise InstallRefused("the controller did not say what it has sent")
    return sums


def checked(files: dict[str, bytes], sums: dict[str, str]) -> dict[str, bytes]:
    import hashlib

    for name, expected in sums.items():
        if name not in files:
            raise InstallRefused(f"{name} was not received")
        if "/" in name or name in ("", ".", ".."):
            raise InstallRefused(f"{name!r} is not the name of a file")
        if hashlib.sha256(files[name]).hexdigest() != expected:
            raise InstallRefused(f"{name} came damaged: its checksum does not match")
    return {name: files[name] for name in sums}


def install(inp: int, talk: ControllerTalk, options: Stage1Options) -> int:
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
