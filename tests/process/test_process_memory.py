"""Reading the memory of processes that end, begin another program, or have no such memory."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from breakranks.inject import memory_map as memory_map
from breakranks.inject import target_process
from breakranks.inject.inject_errors import ProcessGone
from breakranks.observe.process_memory import Memory, peek

DEADLINE = 90.0
WAITS = "import os, sys\nprint('x', flush=True)\nsys.stdin.readline()\nos.execvp('cat', ['cat'])"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """A Python process that becomes another program at the first line that it is told."""
    started = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None and started.stdin is not None
    try:
        assert started.stdout.readline()
        yield started
    finally:
        started.kill()
        started.wait(DEADLINE)
        started.stdin.close()
        started.stdout.close()


def _end(process: subprocess.Popen[str]) -> None:
    """End it, and leave it a zombie: so it is seen by whoever reads it while it ends."""
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_the_memory_of_a_process_that_has_ended_is_gone(process: subprocess.Popen[str]) -> None:
    start = memory_map.read(process.pid).mappings[0].start
    with Memory(process.pid, write=True) as memory:
        assert memory.read(start, 4) == b"\x7fELF"
        _end(process)
        with pytest.raises(ProcessLookupError):
            memory.read(start, 4)
        with pytest.raises(ProcessLookupError):
            memory.read_up_to(start, 4)
        with pytest.raises(ProcessLookupError):
            memory.write(start, b"\x7fELF")
    assert peek(process.pid, start, 4) == b""


def test_the_memory_of_a_process_that_began_another_program_is_gone(process: subprocess.Popen[str]) -> None:
    start = memory_map.read(process.pid).mappings[0].start
    assert process.stdin is not None and process.stdout is not None
    with Memory(process.pid) as memory:
        process.stdin.write("\n")
        process.stdin.write("from cat\n")
        process.stdin.flush()
        process.stdin.close()
        assert process.stdout.readline() in ("from cat\n", "")  # Python may have read the line
        with pytest.raises(ProcessLookupError):
            memory.read(start, 4)


def test_memory_that_a_living_process_does_not_have() -> None:
    with Memory(os.getpid()) as memory:
        for address in (8, _last_bytes(), 2**63, 2**64 - 8, -8):
            with pytest.raises(OSError) as caught:
                memory.read(address, 8)
            assert caught.value.errno == errno.EFAULT
            assert peek(os.getpid(), address, 8) == b""
        assert len(memory.read_up_to(_last_bytes(), 8)) == 4


def _last_bytes() -> int:
    """Four bytes before the end of memory after which nothing is mapped."""
    mappings = memory_map.read(os.getpid()).mappings
    for one, after in itertools.pairwise(mappings):
        if one.flags[0] == "r" and one.end < after.start and not one.path:
            return one.end - 4
    raise AssertionError(mappings)


def test_a_process_that_ends_while_its_python_is_read(process: subprocess.Popen[str]) -> None:
    """GIVEN a process whose map was read THEN its end before the next read is its end, and no other fault."""
    pid = process.pid
    maps = memory_map.read(pid)
    with Memory(pid) as memory:
        python = target_process._python(pid, maps, maps.libraries(), memory)
        assert target_process._version(python, memory) == sys.version_info[:2]
        _end(process)
        with pytest.raises(ProcessLookupError):
            target_process._version(python, memory)
        with pytest.raises(ProcessGone):
            target_process._read_or_gone(pid, maps, memory)
    with pytest.raises(ProcessGone):
        target_process.read(pid)
