"""Every process of this machine, from one cheap pass over /proc.

A pass costs about 20 microseconds per process: one ``stat`` file, one link, one owner. Command lines, environments and
namespaces are read on first use, and kept. A process that ends during the pass is omitted, or its values are None;
no function raises an error for it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

# From the kernel's sched.h: set by fork, cleared by exec. It distinguishes a forked data loader worker, which has the
# command line and environment of its parent, from a process that a launcher started.
_PF_FORKNOEXEC = 0x40
_PF_KTHREAD = 0x200000


class ProcessEntry(NamedTuple):
    """One process.

    ``exe`` is the base name of the program, None if it cannot be read (a zombie, a kernel thread, a process of another
    user). ``ticks`` is the start time in clock ticks: together with ``pid`` it identifies a process until the reboot.
    """

    pid: int
    ppid: int
    name: str = ""
    state: str = "S"
    started: float = 0.0
    uid: int = 0
    exe: str | None = None
    threads: int = 1
    group: int = 0
    session: int = 0
    cpu: float = 0.0
    rss: int = 0
    ticks: int = 0
    forked: bool = False
    kernel: bool = False


class ProcessTable:
    """The processes of one moment.

    ``read_table()`` reads the table of the running system. A table made from literal data never reads /proc: values
    that it was not given are unknown (an empty command line, no environment).
    """

    def __init__(
        self,
        entries: Iterable[ProcessEntry],
        *,
        commands: Mapping[int, tuple[str, ...]] | None = None,
        environs: Mapping[int, dict[str, str]] | None = None,
        namespaces: Mapping[tuple[int, str], str] | None = None,
        libraries: Mapping[int, str] | None = None,
        refused: Iterable[int] = (),
        own_pid: int = 0,
        live: bool = False,
    ) -> None:
        self.entries: dict[int, ProcessEntry] = {entry.pid: entry for entry in entries}
        self.own_pid = own_pid
        self._live = live
        self._commands: dict[int, tuple[str, ...]] = dict(commands or {})
        self._environs: dict[int, dict[str, str] | None] = dict(environs or {})
        self._namespaces: dict[tuple[int, str], str] = dict(namespaces or {})
        self._libraries: dict[int, str] = dict(libraries or {})
        self._refused: set[int] = set(refused)
        self._children: dict[int, list[int]] | None = None

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[ProcessEntry]:
        return iter(self.entries.values())

    def __contains__(self, pid: int) -> bool:
        return pid in self.entries

    def get(self, pid: int) -> ProcessEntry | None:
        return self.entries.get(pid)

    def children(self, pid: int) -> tuple[ProcessEntry, ...]:
        """The direct children of a process, oldest first."""
        return tuple(self.entries[child] for child in self._by_parent().get(pid, ()))

    def descendants(self, pid: int) -> tuple[ProcessEntry, ...]:
        """The descendants of a process, parents before their children."""
        found: list[ProcessEntry] = []
        by_parent = self._by_parent()
        queue = list(by_parent.get(pid, ()))
        seen = {pid}
        for child in queue:  # the queue grows during the loop
            if child not in seen:
                seen.add(child)
                found.append(self.entries[child])
                queue.extend(by_parent.get(child, ()))
        return tuple(found)

    def ancestors(self, pid: int) -> tuple[ProcessEntry, ...]:
        """The parent, its parent, and so on up to the first process."""
        found: list[ProcessEntry] = []
        # The entries are read one after another, so a reused pid could close a cycle: never follow a pid twice.
        seen = {pid}
        entry = self.entries.get(pid)
        while entry is not None and entry.ppid not in seen:
            seen.add(entry.ppid)
            entry = self.entries.get(entry.ppid)
            if entry is not None:
                found.append(entry)
        return tuple(found)

    def command(self, pid: int) -> tuple[str, ...]:
        """The command line as the process shows it; empty for a zombie, a kernel thread or an ended process."""
        known = self._commands.get(pid)
        if known is None:
            data = _read(f"/proc/{pid}/cmdline") if self._live else None
            known = self._commands[pid] = _split_command(data or b"")
        return known

    def environ(self, pid: int) -> dict[str, str] | None:
        """The environment that the process was started with; None if reading it is not permitted, for a zombie, or
        for an ended process.

        Variables that the program set itself (``os.environ[…] = …``) are not in it.
        """
        if pid in self._environs:
            return self._environs[pid]
        found: dict[str, str] | None = None
        if self._live:
            try:
                data = _read_or_raise(f"/proc/{pid}/environ")
            except PermissionError:
                self._refused.add(pid)
            except OSError:
                pass
            else:
                found = _split_environ(data) if data else None
        self._environs[pid] = found
        return found

    def refused(self, pid: int) -> bool:
        """Whether the kernel denies reading the environment of this process."""
        self.environ(pid)
        return pid in self._refused

    def namespace(self, pid: int, kind: str = "pid") -> str:
        """The ``pid``, ``net`` or ``mnt`` namespace of a process; empty if it cannot be read."""
        known = self._namespaces.get((pid, kind))
        if known is None:
            known = ""
            if self._live:
                try:
                    known = os.readlink(f"/proc/{pid}/ns/{kind}")
                except OSError:
                    pass
            self._namespaces[pid, kind] = known
        return known

    def container(self, pid: int) -> str:
        """The id of the container of a process, from its control group; empty if there is none."""
        data = _read(f"/proc/{pid}/cgroup") if self._live else None
        match = re.search(r"[0-9a-f]{64}", (data or b"").decode(errors="replace"))
        return match[0][:12] if match else ""

    def maps(self, pid: int, library: str) -> bool:
        """Whether a process has mapped a file whose path contains ``library``."""
        known = self._libraries.get(pid)
        if known is None:
            data = _read(f"/proc/{pid}/maps") if self._live else None
            known = self._libraries[pid] = (data or b"").decode(errors="replace")
        return library in known

    def is_python(self, entry: ProcessEntry, *, deep: bool = False) -> bool:
        """Whether a process runs Python.

        ``deep`` also looks for libpython in its memory map, for a program that embeds Python under another name. That
        costs a millisecond.
        """
        exe = entry.exe
        if exe is not None:
            return exe.startswith(("python", "pypy")) or (deep and self.maps(entry.pid, "/libpython"))
        if entry.kernel or entry.state in "ZX":
            return False
        # A process of another user: its exe link cannot be read, but its command line can.
        command = self.command(entry.pid)
        return bool(command) and os.path.basename(command[0]).startswith(("python", "pypy"))

    def _by_parent(self) -> dict[int, list[int]]:
        if self._children is None:
            self._children = {}
            for entry in sorted(self.entries.values(), key=lambda e: (e.ticks, e.started, e.pid)):
                self._children.setdefault(entry.ppid, []).append(entry.pid)
        return self._children


def read_table() -> ProcessTable:
    """Read the processes of this machine, as far as this process may see them."""
    tick = os.sysconf("SC_CLK_TCK")
    page = os.sysconf("SC_PAGE_SIZE")
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    entries = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            entry = _read_entry(name, booted, tick, page)
            if entry is not None:
                entries.append(entry)
    return ProcessTable(entries, own_pid=os.getpid(), live=True)


def read_entry(pid: int) -> ProcessEntry | None:
    """Read one process; return None if it has ended."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return _read_entry(str(pid), booted, os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE"))


def _read_entry(pid: str, booted: float, tick: int, page: int) -> ProcessEntry | None:
    folder = "/proc/" + pid
    try:
        data = _read_or_raise(folder + "/stat")
        uid = os.stat(folder).st_uid
    except OSError:
        return None
    # The name is between the first "(" and the last ")", and may contain parentheses and spaces.
    start, end = data.find(b"("), data.rfind(b")")
    fields = data[end + 2 :].split()
    if start < 0 or len(fields) < 22:
        return None
    flags = int(fields[6])
    exe: str | None = None
    if not flags & _PF_KTHREAD:
        try:
            exe = os.readlink(folder + "/exe").removesuffix(" (deleted)")
            exe = exe[exe.rfind("/") + 1 :]
        except OSError:
            pass
    ticks = int(fields[19])
    return ProcessEntry(
        pid=int(pid),
        ppid=int(fields[1]),
        name=data[start + 1 : end].decode(errors="replace"),
        state=fields[0].decode(),
        started=booted + ticks / tick,
        uid=uid,
        exe=exe,
        threads=int(fields[17]),
        group=int(fields[2]),
        session=int(fields[3]),
        cpu=(int(fields[11]) + int(fields[12])) / tick,
        rss=int(fields[21]) * page,
        ticks=ticks,
        forked=bool(flags & _PF_FORKNOEXEC),
        kernel=bool(flags & _PF_KTHREAD),
    )


def _read_or_raise(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, 65536)
        # A read from /proc may end at a page boundary: only an empty read is the end of the file. `stat` is an
        # exception: it is always one line, read as a whole.
        if not data or path.endswith("/stat"):
            return data
        parts = [data]
        while True:
            data = os.read(fd, 65536)
            if not data:
                return b"".join(parts)
            parts.append(data)
    finally:
        os.close(fd)


def _read(path: str) -> bytes | None:
    try:
        return _read_or_raise(path)
    except OSError:
        return None


def _split_command(data: bytes) -> tuple[str, ...]:
    # A program that sets its own title (`ray::Worker`, `slurmstepd: [1.0]`) pads it with zeros.
    text = data.rstrip(b"\0").decode(errors="surrogateescape")
    return tuple(text.split("\0")) if text else ()


def _split_environ(data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in data.decode(errors="surrogateescape").split("\0"):
        name, equals, value = item.partition("=")
        if equals and name not in found:
            found[name] = value
    return found
