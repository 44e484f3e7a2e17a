"""Why a process cannot be read, and the exact remedy."""

from __future__ import annotations

import os

from breakranks.errors import THIS_BREAKRANKS
from breakranks.observe.process_state import process_state, tracer_of
from breakranks.observe.this_host import user_name
from breakranks.snapshot.model import Problem

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def refused(pid: int, message: str) -> Problem:
    """Explain why py-spy or pystack failed. ``message`` is what it printed."""
    if process_state(pid) == "X":
        return Problem(f"process {pid} ended during the inspection")
    if process_state(pid) == "Z":
        return Problem(f"process {pid} has exited and is not reaped yet (zombie)")
    lower = message.lower()
    if is_denial(message):
        return denied(pid)
    if "python version" in lower or "failed to find" in lower or "libpython" in lower:
        return Problem(
            f"process {pid} has no Python interpreter that can be read",
            "It may still be starting, run another Python implementation, or be a static build without symbols.",
        )
    first = next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")
    return Problem(f"the Python stack of process {pid} cannot be read: {first.removeprefix('Error: ')}")


def for_now(pid: int, message: str) -> bool:
    """Whether tracing was denied only because another tool traced the process at that moment.

    Opening the memory of a process needs the same permission as tracing it, and several processes can do so at once.
    """
    if not is_denial(message):
        return False
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def is_denial(message: str) -> bool:
    """Whether a tool was refused the permission to trace."""
    message = message.lower()
    return "permission" in message or "operation not permitted" in message or "os error 1)" in message


def late(pid: int, deadline: float) -> Problem:
    """Explain why a stack was not read within the deadline."""
    state = process_state(pid)
    why = {"D": "it is in an uninterruptible wait (state D)", "T": "it is stopped", "t": "it is being traced"}
    return Problem(
        f"the stack of process {pid} could not be read within {deadline:g} s"
        + (f": {why[state]}" if state in why else ""),
        "Try again. If another debugger is attached, detach it first.",
        late=state not in why,
    )


def stopped(pid: int) -> Problem:
    """The problem with a process that is stopped, so that its agent cannot answer."""
    return Problem("it is stopped, so its agent cannot answer", f"Continue it: kill -CONT {pid}")


def agent_late(pid: int, deadline: float) -> Problem:
    """The problem with an agent that did not answer, where the process may not be traced."""
    return Problem(
        f"its agent did not answer within {deadline:g} s, and {denied(pid).what}",
        "A thread may hold the GIL in C code: only a tracer can show where. " + denied(pid).remedy,
        late=True,
    )


def denied(pid: int) -> Problem:
    """Explain what denies ptrace, and what would permit it."""
    tracer = tracer_of(pid)
    if tracer:
        return Problem(
            f"process {pid} is already traced by process {tracer}",
            f"Detach that debugger, strace or profiler first (process {tracer}).",
        )
    owner = _owner(pid)
    if os.geteuid() != 0 and owner is not None and owner != os.geteuid():
        return Problem(
            f"process {pid} belongs to another user ({user_name(owner)})",
            f"Run as that user or as root: sudo {THIS_BREAKRANKS} …  (uid {owner})",
        )
    scope = _scope()
    if os.geteuid() != 0 and scope >= 1:
        return Problem(
            f"only root may trace a running process (kernel.yama.ptrace_scope = {scope})",
            f"sudo sysctl kernel.yama.ptrace_scope=0   or run as root: sudo {THIS_BREAKRANKS} …",
        )
    if scope == 3:
        return Problem(
            "the kernel forbids all tracing (kernel.yama.ptrace_scope = 3)",
            "It can be changed only at boot: set kernel.yama.ptrace_scope=0 in /etc/sysctl.d and reboot.",
        )
    if not _has_ptrace_capability():
        return Problem(
            "permission to trace is denied: CAP_SYS_PTRACE is missing, as in most containers",
            "docker run --cap-add=SYS_PTRACE …; Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]",
        )
    return Problem(
        "permission to trace is denied",
        "A seccomp profile or a security module may forbid it: docker run --security-opt seccomp=unconfined "
        "--cap-add=SYS_PTRACE, or run breakranks on the host.",
    )


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _scope() -> int:
    try:
        with open(_YAMA) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _has_ptrace_capability() -> bool:
    sys_ptrace = 19
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("CapEff:"):
                    return bool(int(line.split()[1], 16) >> sys_ptrace & 1)
    except (OSError, ValueError):
        pass
    return True
