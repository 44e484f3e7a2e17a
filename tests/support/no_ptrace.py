"""Run a command in which tracing is refused, for root as well: no_ptrace.py [--hide PID]... COMMAND.

As the seccomp profile of a container refuses it: the system calls ptrace, process_vm_readv and process_vm_writev return
EPERM. ``--hide PID``: also as Yama refuses it: the memory and the system calls of the process cannot be read in /proc,
all else can. That needs root, which the command keeps without the right to read any file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
import tempfile

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_CAPBSET_DROP = 38, 22, 2, 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4
# The kernel's number of the architecture, and those of ptrace, process_vm_readv and process_vm_writev.
_CALLS = {
    "x86_64": (0xC000003E, (101, 310, 311)),
    "aarch64": (0xC00000B7, (117, 270, 271)),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def filter_code(machine: str) -> bytes:
    """The filter, as a program of the kernel's packet filter."""
    architecture, numbers = _CALLS[machine]
    lines = [
        _instruction(_LOAD_WORD, 0, 0, _ARCHITECTURE_OFFSET),
        _instruction(_JUMP_IF_EQUAL, 0, len(numbers) + 1, architecture),
        _instruction(_LOAD_WORD, 0, 0, _NUMBER_OFFSET),
        *(_instruction(_JUMP_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)),
        _instruction(_RETURN, 0, 0, _ALLOW),
        _instruction(_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
    return b"".join(lines)


def refuse() -> None:
    """Refuse tracing to this process from now on."""
    library = ctypes.CDLL(None, use_errno=True)
    code = filter_code(platform.machine())
    program = _Program(len(code) // 8, code)
    _check(library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(library.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))


def hide(pids: list[int]) -> None:
    """Cover the files in a mount namespace of this process."""
    library = ctypes.CDLL(None, use_errno=True)
    _check(library.unshare(_CLONE_NEWNS))
    _check(library.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
    with tempfile.NamedTemporaryFile() as cover:
        os.fchmod(cover.fileno(), 0)
        for pid in pids:
            calls = [f"/proc/{pid}/task/{tid}/syscall" for tid in os.listdir(f"/proc/{pid}/task")]
            for path in (f"/proc/{pid}/mem", f"/proc/{pid}/syscall", *calls):
                _check(library.mount(cover.name.encode(), path.encode(), None, _MS_BIND, None))
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        _check(library.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(words: list[str]) -> None:
    hidden = []
    while words[0] == "--hide":
        hidden.append(int(words[1]))
        words = words[2:]
    if hidden:
        hide(hidden)
    refuse()
    os.execvp(words[0], words)


if __name__ == "__main__":
    main(sys.argv[1:])
