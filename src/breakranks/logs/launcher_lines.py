"""What launchers, schedulers, shells and the kernel print about processes that ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from breakranks.errors import BreakranksError
from breakranks.logs.known_row import searchable
from breakranks.logs.launcher_blocks import (
    CollectiveStack,
    HydraNotice,
    NativeException,
    PythonFatalError,
    ReportBlock,
    TorchrunSummary,
    open_mpi_report,
)
from breakranks.logs.log_events import INITIATING, TEARDOWN, Event, LogLine, RestartEvent
from breakranks.logs.process_end import process_end
from breakranks.logs.signal_names import signal_number
from breakranks.rankset import RankSet

TRIGGERS = (
    b"failed (exitcode",
    b" FAILED",
    b"closing signal",
    b"Closing process ",
    b"Child process with PID",
    b"zsh: ",
    b"Root Cause",
    b"forcefully exiting via",
    b"will restart worker group",
    b"restart_count=",
    b"ProcessExitedException",
    b"CalledProcessError",
    b"Killing subprocess",
    b"exits with return code",
    b"spawned with command",
    b"xited with exit code",
    b"noticed that process",
    b"that one or more processes",
    b"MPI_ABORT",
    b"MPI_Abort(",
    b"BAD TERMINATION",
    b"] Signal: ",
    b"srun: ",
    b"slurmstepd",
    b"exit with exception",
    b"kill all other workers",
    b"] This node ",
    b"Killed",
    b"Segmentation fault",
    b"Aborted",
    b"us error",
    b"core dumped",
    b"Terminated",
    b"Fatal Python error",
    b"terminate called ",
    b"Stack trace of the failed collective",
)

_SIGTERM, _SIGKILL = 15, 9
_WORDS = (
    r"Killed|Segmentation fault|Aborted|Bus error|Terminated|Floating point exception|Illegal instruction|Hangup|"
    r"Trace/breakpoint trap|Broken pipe|Bad system call"
)


class LauncherReader:
    """Reads such lines, and reports of several lines, apart for each voice. What it knows of pids is shared.

    ``open``: a report is being read; its next lines may hold none of the ``TRIGGERS``.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, str], ReportBlock] = {}
        self._ranks: dict[int, int] = {}  # pid to rank, as msrun's workers tell
        self._local_ranks: dict[int, int] = {}  # pid to local rank, as deepspeed tells
        self._ending = False  # a launcher said that it ends the processes
        self._attempt = 0

    @property
    def open(self) -> bool:
        return bool(self._blocks)

    def feed(self, line: LogLine) -> Iterable[Event]:
        """The events that the line completes."""
        line = line._replace(text=searchable(line.text))
        key = (line.source, line.voice)
        block = self._blocks.get(key)
        events: list[Event] = []
        if block is not None:
            taken, found = block.feed(line)
            events += found
            if block.closed:
                del self._blocks[key]
            if taken:
                return events
        started, found = self._start_block(line)
        events += found
        if started is not None:
            if block is not None and not block.closed:
                events += block.finish()
            self._blocks[key] = started
        elif not found:
            events += self._read_line(line)
        return events

    def finish(self) -> Iterable[Event]:
        """Close what is open: the log ended."""
        blocks, self._blocks = self._blocks, {}
        return [event for block in blocks.values() for event in block.finish()]

    def _start_block(self, line: LogLine) -> tuple[ReportBlock | None, Iterable[Event]]:
        text = line.text
        if _SUMMARY.match(text):
            return TorchrunSummary(line), ()
        if "BAD TERMINATION OF ONE OF YOUR APPLICATION" in text:
            return HydraNotice(line), ()
        fatal = PythonFatalError.START.search(text)
        if fatal:
            return PythonFatalError(line, fatal.group(1)), ()
        native = NativeException.START.search(text)
        if native:
            return NativeException(line, native.group(1)), ()
        if CollectiveStack.START in text:
            return CollectiveStack(line), ()
        report = open_mpi_report(line)
        if report is not None:
            return (None if report.closed else report), report.first_events
        return None, ()

    def _read_line(self, line: LogLine) -> Iterable[Event]:
        for pattern, read in _LINES:
            found = pattern.search(line.text)
            if found:
                return read(self, found, line)
        return ()

    def _torchrun_failed(self, found: re.Match[str], line: LogLine) -> list[Event]:
        local, pid = int(found["local"]), int(found["pid"])
        return process_end("torchrun", line, code=int(found["code"]), local_rank=local, pid=pid, first=True)

    def _torchrun_closing(self, found: re.Match[str], line: LogLine) -> list[Event]:
        self._ending = True
        signal = signal_number(found["signal"])
        return process_end("torchrun", line, pid=int(found["pid"]), signal=signal, role=TEARDOWN)

    def _restart(self, found: re.Match[str], line: LogLine) -> list[Event]:
        left, total = int(found["left"]), int(found["total"])
        self._attempt = total - left + 1
        self._ending = False
        return [RestartEvent(line=line, attempt=self._attempt, left=left - 1)]

    def _membership(self, found: re.Match[str], line: LogLine) -> list[Event]:
        self._attempt += 1  # hosts joined: torchrun starts all ranks again, which costs no attempt
        return [RestartEvent(line=line, attempt=self._attempt)]

    def _restart_count(self, found: re.Match[str], line: LogLine) -> list[Event]:
        count = int(found["count"])
        if count <= self._attempt:
            return []
        self._attempt = count
        return [RestartEvent(line=line, attempt=count)]

    def _spawn(self, found: re.Match[str], line: LogLine) -> list[Event]:
        code, signal = _code_or_signal(found)
        return process_end("python", line, code=code, signal=signal, local_rank=int(found["index"]), first=True)

    def _accelerate(self, found: re.Match[str], line: LogLine) -> list[Event]:
        """accelerate's launcher for one process. Its rank is left open: a script may call Python in the same way."""
        code, signal = _code_or_signal(found)
        return process_end("accelerate", line, code=code, signal=signal)

    def _lightning(self, found: re.Match[str], line: LogLine) -> list[Event]:
        self._ending = True
        rank, pid, code = (int(found[name]) for name in ("rank", "pid", "code"))
        return process_end("lightning", line, rank=rank, pid=pid, code=code, first=True)

    def _deepspeed_spawned(self, found: re.Match[str], line: LogLine) -> list[Event]:
        local = _LOCAL_RANK.search(found["command"])
        if local:
            self._local_ranks[int(found["pid"])] = int(local.group(1))
        return []

    def _deepspeed_killing(self, found: re.Match[str], line: LogLine) -> list[Event]:
        """Printed for all of its processes, the one that failed too: so no signal is given."""
        self._ending = True
        pid = int(found["pid"])
        return process_end("deepspeed", line, pid=pid, local_rank=self._local_ranks.get(pid, -1), role=TEARDOWN)

    def _deepspeed_exit(self, found: re.Match[str], line: LogLine) -> list[Event]:
        local = _LOCAL_RANK.search(found["command"])
        rank = int(local.group(1)) if local else -1
        return process_end("deepspeed", line, code=int(found["code"]), local_rank=rank, first=True)

    def _pdsh(self, found: re.Match[str], line: LogLine) -> list[Event]:
        return process_end("pdsh", line, host=found["host"], code=int(found["code"]))

    def _mpi_abort(self, found: re.Match[str], line: LogLine) -> list[Event]:
        return process_end("mpirun", line, rank=int(found["rank"]), code=int(found["code"]))

    def _mpi_signal(self, found: re.Match[str], line: LogLine) -> list[Event]:
        pid, signal = int(found["pid"]), int(found["signal"])
        return process_end("mpirun", line, rank=line.rank, host=found["host"], pid=pid, signal=signal)

    def _ends_others(self, found: re.Match[str], line: LogLine) -> list[Event]:
        self._ending = True
        return []

    def _slurm_tasks(self, found: re.Match[str], line: LogLine) -> list[Event]:
        """``srun: error: n1: tasks 0-3: Killed``. The task is the rank, unless srun started a launcher per host."""
        words, host = found["words"], found["host"]
        exit_code = _SLURM_CODE.search(words)
        code = int(exit_code.group(1)) if exit_code else -1
        out_of_memory = "Out Of Memory" in words
        signal = _SIGKILL if out_of_memory else signal_number(words) if code < 0 else 0
        if code < 0 and not signal:
            return []
        role = INITIATING if out_of_memory else self._role_of(signal)
        core = "core dumped" in words
        events: list[Event] = []
        for rank in _task_ranks(found["tasks"]):
            events += process_end(
                "slurm", line, rank=rank, host=host, code=code, signal=signal, core_dumped=core, role=role
            )
        return events

    def _role_of(self, signal: int) -> str:
        """Launchers end the processes that are left by SIGTERM, and those that do not heed it by SIGKILL."""
        ended = signal == _SIGTERM or (signal == _SIGKILL and self._ending)
        return TEARDOWN if ended else INITIATING

    def _msrun_rank(self, found: re.Match[str], line: LogLine) -> list[Event]:
        self._ranks[int(found["pid"])] = int(found["rank"])
        return []

    def _msrun_worker(self, found: re.Match[str], line: LogLine) -> list[Event]:
        pid, code = int(found["pid"]), int(found["code"] or -1)
        # msrun looks at its workers every few seconds, and ends the others when it finds one that failed.
        role = TEARDOWN if self._ending else INITIATING
        return process_end("msrun", line, rank=self._ranks.get(pid, -1), pid=pid, code=code, role=role)

    def _shell(self, found: re.Match[str], line: LogLine) -> list[Event]:
        signal = signal_number(found["words"])
        pid = int(found["pid"]) if "pid" in found.re.groupindex else -1
        core = found["core"] is not None
        role = self._role_of(signal)
        return process_end("shell", line, pid=pid, rank=line.rank, signal=signal, core_dumped=core, role=role)

    def _kernel_oom(self, found: re.Match[str], line: LogLine) -> list[Event]:
        return process_end("kernel", line, pid=int(found["pid"]), signal=_SIGKILL)


def _code_or_signal(found: re.Match[str]) -> tuple[int, int]:
    """Code and signal, of which a line tells one."""
    return int(found["code"] or -1), signal_number(found["signal"] or "")


def _task_ranks(text: str) -> Iterable[int]:
    try:
        return RankSet.parse(text)
    except BreakranksError:
        return ()


_Read = Callable[[LauncherReader, re.Match[str], LogLine], list[Event]]
_SUMMARY = re.compile(r"^\s*(?:\S.* FAILED\s*$|Root Cause(?: \(first observed failure\))?:\s*$)")
_LOCAL_RANK = re.compile(r"--local[_-]rank[= ](\d+)")
_SLURM_CODE = re.compile(r"[Ee]xited with exit code (\d+)")
_CORE = r"(?P<core>\s+\(core dumped\))?"
_LINES: tuple[tuple[re.Pattern[str], _Read], ...] = (
    # torchrun and accelerate, torch 1.9 and later
    (
        re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>-?\d+) \(pid: (?P<pid>-?\d+)\) of "),
        LauncherReader._torchrun_failed,
    ),
    (
        re.compile(r"(?:Sending process|Closing process) (?P<pid>\d+) (?:closing|via) signal (?P<signal>\w+)"),
        LauncherReader._torchrun_closing,
    ),
    (
        re.compile(r"Unable to shutdown process (?P<pid>\d+) via \w+, forcefully exiting via (?P<signal>\w+)"),
        LauncherReader._torchrun_closing,
    ),
    (
        re.compile(r"(?P<left>\d+)/(?P<total>\d+) attempts left; will restart worker group"),
        LauncherReader._restart,
    ),
    (re.compile(r"Detected \d+ new nodes .*will restart worker group"), LauncherReader._membership),
    (re.compile(r"(?:^|\])\s*restart_count=(?P<count>\d+)\s*$"), LauncherReader._restart_count),
    (
        re.compile(
            r"ProcessExitedException: process (?P<index>\d+) terminated with "
            r"(?:signal (?P<signal>\w+)|exit code (?P<code>\d+))"
        ),
        LauncherReader._spawn,
    ),
    # accelerate with one process; a command that is not Python is one that the script itself called
    (
        re.compile(
            r"subprocess\.CalledProcessError: Command '\['[^']*python[\d.]*', .*"
            r"(?:non-zero exit status (?P<code>\d+)|died with <Signals\.(?P<signal>\w+))"
        ),
        LauncherReader._accelerate,
    ),
    (
        re.compile(r"\[rank: (?P<rank>\d+)\] Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)"),
        LauncherReader._lightning,
    ),
    # deepspeed
    (
        re.compile(r"\[launch\.py:\d+:\w+\] process (?P<pid>\d+) spawned with command: (?P<command>.*)$"),
        LauncherReader._deepspeed_spawned,
    ),
    (re.compile(r"sigkill_handler\] Killing subprocess (?P<pid>\d+)"), LauncherReader._deepspeed_killing),
    (
        re.compile(r"\[launch\.py:\d+:\w+\] (?P<command>.*) exits with return code = (?P<code>-?\d+)"),
        LauncherReader._deepspeed_exit,
    ),
    (
        re.compile(r"^pdsh@\S+: (?P<host>\S+): (?:ssh|\w+) exited with exit code (?P<code>\d+)"),
        LauncherReader._pdsh,
    ),
    # MPICH, Intel MPI ("application called MPI_Abort(MPI_COMM_WORLD, 3) - process 1"); Open MPI's signal handler
    (
        re.compile(r"application called MPI_Abort\(.*?, (?P<code>-?\d+)\) - process (?P<rank>\d+)"),
        LauncherReader._mpi_abort,
    ),
    (
        re.compile(r"\[(?P<host>[^\s:\]]{1,255}):(?P<pid>\d+)\] Signal: .*\((?P<signal>\d+)\)"),
        LauncherReader._mpi_signal,
    ),
    # Slurm
    (
        re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,-]+): (?P<words>.*)$"),
        LauncherReader._slurm_tasks,
    ),
    (
        re.compile(r"srun: Job step aborted|\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT|Terminating StepId="),
        LauncherReader._ends_others,
    ),
    # msrun; the rank of a pid is in the log of its worker
    (
        re.compile(r"\w+\((?P<pid>\d+),\w+,.*PostProcess\] This node \S+ rank id: (?P<rank>\d+)"),
        LauncherReader._msrun_rank,
    ),
    (
        re.compile(r"Worker process (?P<pid>\d+) exit with exception(?:\. Error code: (?P<code>-?\d+))?"),
        LauncherReader._msrun_worker,
    ),
    (re.compile(r"There's worker exits with exception, kill all other workers"), LauncherReader._ends_others),
    # the kernel
    (re.compile(r"[Oo]ut of memory: Killed process (?P<pid>\d+)"), LauncherReader._kernel_oom),
    # shells: "train.sh: line 3: 12345 Killed   python train.py"; the words alone are of a shell without a script
    (re.compile(rf": line \d+:\s+(?P<pid>\d+) (?P<words>{_WORDS})\b{_CORE}"), LauncherReader._shell),
    (re.compile(rf"^(?:[\w./-]*sh: )?(?:line \d+: )?(?P<words>{_WORDS}){_CORE}\s*$"), LauncherReader._shell),
    (
        re.compile(rf"^zsh: (?P<words>killed|segmentation fault|abort|bus error|terminated)\b{_CORE}"),
        LauncherReader._shell,
    ),
)
