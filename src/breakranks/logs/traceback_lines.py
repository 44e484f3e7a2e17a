"""What a single line of a traceback is: its header, a frame, an exception, or something else.

The formats are those that Python 3.6 to 3.14 print.
"""

from __future__ import annotations

import builtins
import re

from breakranks.snapshot.model import Frame

# A line with one of these may begin a traceback, or tell of which thread the next one is.
TRIGGERS = ("Traceback (most recent call last)", "Exception in thread ", "Exception ignored ", '  File "')

MARK = "Traceback (most recent call last)"
CHAIN_LINES = {
    "The above exception was the direct cause of the following exception:": "from",
    "During handling of the above exception, another exception occurred:": "context",
}
QUOTES = '"""'  # around the traceback of another process, in the message of multiprocessing's RemoteTraceback
IGNORED = "ignored"  # the thread of a traceback that Python printed and went on

HEADER = re.compile(r"(?:Exception Group |Original )?Traceback \(most recent call last\):")
FILE_LINE = re.compile(r'\s*File "(.*?)", line (\d+)(?:, in (.+))?$')
# `torch.cuda.OutOfMemoryError: text`, `KeyError`, `ray.exceptions.RayTaskError(ValueError): text`
EXCEPTION = re.compile(r"([^\W\d]\w*(?:\.(?:\w+|<locals>))*(?:\([\w.]*\))?)(?:: ?(.*))?", re.DOTALL)
REMOTE_TRACEBACK = re.compile(r"(?:\w+\.)*_?RemoteTraceback:\s*$")
# What torch.multiprocessing.spawn writes before the traceback of the process that failed.
SPAWNED_PROCESS = re.compile(r"-- Process \d+ terminated with the following error:")
RAY_FRAME = re.compile(r"\s*ray::\S.*\(.*pid=\d+.*\)")
THREAD_LINE = re.compile(r"Exception in thread (.*?):?$")
IGNORED_LINE = re.compile(r"Exception ignored (?:in|while|on|from)\b")
GROUP_LINE = re.compile(r"( *)([|+])(?:[ -]|$)")
FAILURES_LINE = re.compile(r"={20,}$")  # above and below the message of torchrun's ChildFailedError
GROUP_END = re.compile(r" *\+-{36,}$")
MORE_OF_MESSAGE = re.compile(
    r"Exception raised from |frame #\d+: |C\+\+ CapturedTraceback:|CUDA kernel errors might |For debugging consider "
    r"|Compile with `|Device-side assert|Last error:|nccl\w+Error: |Search for `cuda|Possible solutions? "
)

_NAME_OF_ERROR = re.compile(
    r"(?:Error|Exception|Warning|Interrupt|Exit|Iteration|Group|Failure|Failed|Timeout|Fault|Aborted|Empty|Full"
    r"|error|timeout|Abort|Cancelled|Raised|Mismatch|NotFound)(?:\([\w.]*\))?$"
)
_LOG_LINE = re.compile(
    r"\[?\d{4}[-/]\d\d[-/]\d\d[ T]|\[?\d\d:\d\d:\d\d\b|\[?[IWEFD]\d{4} \d\d:|\[[IWEF]\d* "
    r"|[\[(<]?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|NOTICE|TRACE)\b[\])>]?(?:[:\s|-]|$)"
    r"|\[rank\d+\]:|\[default\d+\]:|Fatal Python error|terminate called|Current thread 0x|Thread 0x"
    r"|Exception in thread |Exception ignored |(?:srun|slurmstepd|wandb|bash|mpirun|prterun|launch)\b.*: "
    r"|\S+:\d+:\d+ \[\d+\] NCCL "
    r"|(?:Epoch|epoch|Step|step|Iter|iter|Iteration|iteration)\b[ :=\[]*\d"
    r"|(?:Training|Validation|Sanity Checking)\b.*\d%"
    r"|\s*\d+%\||\S+\.py:\d+: \w*Warning: |([=*#_~-])\1{4,}$|Killed$|Aborted|Segmentation fault|Bus error|Terminated$"
)
_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL", "NOTICE", "TRACE", "NCCL"})
_BUILTINS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
)


def frame_of(text: str) -> Frame | None:
    """The frame of a ``File "…", line 3, in f`` line. A SyntaxError's place has no function."""
    match = FILE_LINE.match(text)
    if match is None:
        return None
    file, line, function = match.groups()
    return Frame(function or "", file, int(line) if len(line) < 10 else 0)


def exception_of(text: str) -> tuple[str, str] | None:
    """The type and the first line of the message, if the line can be the last of a traceback."""
    match = EXCEPTION.fullmatch(text)
    if match is None:
        return None
    name: str = match[1]
    last = name.partition("(")[0].rpartition(".")[2]
    if name in _LEVELS or not (last[:1].isupper() or last.startswith("_") or _NAME_OF_ERROR.search(name)):
        return None
    return name, match[2] or ""


def is_surely_exception(text: str) -> bool:
    """Whether a line among others is an exception, by its name: ``Loss: 0.3`` could be one, and is none."""
    found = exception_of(text)
    if found is None:
        return False
    name = found[0]
    return (
        name in _BUILTINS
        or bool(_NAME_OF_ERROR.search(name))
        or ("." in name and name.rpartition(".")[2][:1].isupper())
    )


def is_log_line(text: str) -> bool:
    """Whether a line is the output of a logger, a launcher or a progress bar, and no text of an exception."""
    return _LOG_LINE.match(text) is not None


def is_group_header(text: str) -> bool:
    return "+ Exception Group " + MARK in text
