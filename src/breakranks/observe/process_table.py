"""Every process of this machine, from one cheap pass over /proc.

A pass costs about 20 microseconds a process: one ``stat`` file, one link, one owner. Command lines,
environments and namespaces are read when somebody asks, and kept. A process that ends in mid-look is
left out or answers None; nothing here raises because of it.

Only built-in and tiny modules are imported: this runs before a command has shown anything.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

# From the kernel's sched.h: set by fork, cleared by exec. It tells a forked data-loader worker, which
# has its parent's command line and environment, from a process that a launcher started.
_PF_FORKNOEXEC = 0x40
_PF_KTHREAD = 0x200000


class ProcessEntry(NamedTuple):
    """One process. ``exe`` is the program's base name, None when it cannot be read (a zombie, a kernel
    thread, another user's). ``ticks`` is the start time as the kernel counts it: with ``pid`` it names a
    process for as long as the machine runs."""

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

    ``read_table()`` makes one of the running system. One made from literal data never looks at /proc:
    what it was not given is unknown (an empty command line, no environment).
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
        """Everything below a process, parents before their children."""
        found: list[ProcessEntry] = []
        by_parent = self._by_parent()
        queue = list(by_parent.get(pid, ()))
        seen = {pid}
        for child in queue:  # grows while it is walked
            if child not in seen:
                seen.add(child)
                found.append(self.entries[child])
                queue.extend(by_parent.get(child, ()))
        return tuple(found)

    def ancestors(self, pid: int) -> tuple[ProcessEntry, ...]:
        """The parent, its parent, and so on up to the first process."""
        found: list[ProcessEntry] = []
        # Pids are read one after another, so a reused pid could close a circle: never follow one twice.
        seen = {pid}
        entry = self.entries.get(pid)
        while entry is not None and entry.ppid not in seen:
            seen.add(entry.ppid)
            entry = self.entries.get(entry.ppid)
            if entry is not None:
                found.append(entry)
        return tuple(found)

    def command(self, pid: int) -> tuple[str, ...]:
        """The command line as the process shows it; empty for a zombie, a kernel thread, a gone one."""
        known = self._commands.get(pid)
        if known is None:
            data = _read(f"/proc/{pid}/cmdline") if self._live else None
            known = self._commands[pid] = _split_command(data or b"")
        return known

    def environ(self, pid: int) -> dict[str, str] | None:
        """The environment that the process was started with; None when refused, gone, or a zombie's.

        What a program set inside itself since (``os.environ[…] = …``) is never here.
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
        """Whether the kernel would not let us read this process's environment."""
        self.environ(pid)
        return pid in self._refused

    def namespace(self, pid: int, kind: str = "pid") -> str:
        """Which ``pid``, ``net`` or ``mnt`` namespace a process is in; empty when that cannot be read."""
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
        """The id of the container that a process is in, from its control group; empty: none is known."""
        data = _read(f"/proc/{pid}/cgroup") if self._live else None
        match = re.search(r"[0-9a-f]{64}", (data or b"").decode(errors="replace"))
        return match[0][:12] if match else ""

    def maps(self, pid: int, library: str) -> bool:
        """Whether a process has a file mapped whose path contains ``library``."""
        known = self._libraries.get(pid)
        if known is None:
            data = _read(f"/proc/{pid}/maps") if self._live else None
            known = self._libraries[pid] = (data or b"").decode(errors="replace")
        return library in known

    def is_python(self, entry: ProcessEntry, *, deep: bool = False) -> bool:
        """Whether a process runs Python. ``deep`` also asks its memory map for libpython: a program that
        embeds Python under another name. That costs a millisecond, so it is for the few that matter."""
        exe = entry.exe
        if exe is not None:
            return exe.startswith(("python", "pypy")) or (deep and self.maps(entry.pid, "/libpython"))
        if entry.kernel or entry.state in "ZX":
            return False
        # Another user's: its link is closed to us, its command line is not.
        command = self.command(entry.pid)
        return bool(command) and os.path.basename(command[0]).startswith(("python", "pypy"))

    def _by_parent(self) -> dict[int, list[int]]:
        if self._children is None:
            self._children = {}
            for entry in sorted(self.entries.values(), key=lambda e: (e.ticks, e.started, e.pid)):
                self._children.setdefault(entry.ppid, []).append(entry.pid)
        return self._children


def read_table() -> ProcessTable:
    """The processes of this machine, as this process may see them."""
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
    """One process, read now; None when it is gone."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return _read_entry(str(pid), booted, os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE"))


def _read_entry(pid: str, booted: float, tick: int, page: int) -> ProcessEntry | None:
    folder = "/proc/" + pid
    try:
        data = _read_or_raise(folder + "/stat")
        uid = os.stat(folder).st_uid
    except OSError:
        return None
    # The name is between the first "(" and the last ")", and may itself hold both and spaces.
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
        # A file of /proc is cut at a page here and there: a short read is no end, an empty one is.
        # `stat` is the exception: always one line, whole.
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
    # A program that writes its own title (`ray::Worker`, `slurmstepd: [1.0]`) pads it with zeros.
    text = data.rstrip(b"\0").decode(errors="surrogateescape")
    return tuple(text.split("\0")) if text else ()


def _split_environ(data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in data.decode(errors="surrogateescape").split("\0"):
        name, equals, value = item.partition("=")
        if equals and name not in found:
            found[name] = value
    return found


HIDDEN = "***"
_SECRET_WORD = r"(?:tokens?|keys?|secrets?|passwords?|passwd|passphrase|pwd|pass|credentials?|auth|authorization)"
# The last word of a name decides, so that --tokenizer and --max-tokens stay and hf_token and apiKey go.
_SECRET_NAME = re.compile(rf"(?i)[\w.+-]*?{_SECRET_WORD}\Z")
_HARMLESS_NAME = re.compile(r"(?i)(?:.*[-_.])?(?:(?:max|min|num|n|eos|bos|pad|unk|per)[-_].*tokens?|tokens)\Z")
_REDACT_DEPTH = 3
_ASSIGNED = re.compile(r"(?s)(-{0,2}[A-Za-z_+][\w.+-]*)=(.*)\Z")
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s;&|,}]+)"""
_INSIDE = (  # in one word: a shell's -c, JSON, a header
    re.compile(r"()([A-Za-z_][\w.+-]*)(=)" + _VALUE),
    re.compile(r"(\s|^)(--[A-Za-z][\w.+-]*)(\s+|=)(?!--)" + _VALUE),
    re.compile(r"""(?i)()([a-z_][\w.+-]*)(["']\s*:\s*|\s*:\s+)(?:bearer\s+|basic\s+)?""" + _VALUE),
)
_USER_INFO = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)([^/\s@]*:[^/\s@]*|(?<=http://)[^/\s@]+|(?<=https://)[^/\s@]+)@")
# What gives itself away by its shape, whatever its name: Hugging Face, GitHub, OpenAI, AWS, Slack.
_SHAPE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[\w-]{16,}"
    r"|AKIA[A-Z0-9]{12,}|xox[a-z]-[\w-]{10,})"
)


def redact(command: Iterable[str]) -> tuple[str, ...]:
    """A command line without its secrets: what may be shown, stored and sent.

    >>> redact(["train.py", "--hf-token", "abc", "API_KEY=x", "--tokenizer", "gpt2"])
    ('train.py', '--hf-token', '***', 'API_KEY=***', '--tokenizer', 'gpt2')
    """
    shown: list[str] = []
    hide_next = False
    for word in command:
        # "--auth --verbose": a switch without a value. A secret may start with one dash (base64url).
        if hide_next and not word.startswith("--") and not (len(word) == 2 and word[0] == "-"):
            hide_next = False
            shown.append(HIDDEN)
            continue
        hide_next = word.startswith("-") and _is_secret_name(word)
        shown.append(word if hide_next else _redact_word(word))
    return tuple(shown)


def _redact_word(word: str, depth: int = _REDACT_DEPTH) -> str:
    """``depth``: how many values within values are looked into."""
    assigned = _ASSIGNED.match(word) if depth else None
    if assigned:
        return f"{assigned[1]}={HIDDEN if _is_secret_name(assigned[1]) else _redact_word(assigned[2], depth - 1)}"
    if depth and any(letter in word for letter in " \"'("):
        for pattern in _INSIDE:
            word = pattern.sub(lambda match: _redact_inside(match, depth), word)
    return _SHAPE.sub(HIDDEN, _USER_INFO.sub(rf"\1{HIDDEN}@", word))


def _redact_inside(match: re.Match[str], depth: int) -> str:
    head = f"{match[1]}{match[2]}{match[3]}"
    return head + (HIDDEN if _is_secret_name(match[2]) else _redact_word(match[0][len(head) :], depth - 1))


def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.match(name) is not None and _HARMLESS_NAME.match(name.lstrip("-")) is None
