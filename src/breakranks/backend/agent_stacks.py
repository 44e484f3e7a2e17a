"""The Python stacks of processes that may not be traced, from the agents in them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from breakranks.backend.agent_requests import AgentReply, ask_agents
from breakranks.backend.found_agents import agents_of
from breakranks.log import Log
from breakranks.observe import process_state, ptrace_permissions, pyspy_parse, safe_locals, syscalls
from breakranks.observe.process_state import ProcessState
from breakranks.observe.pyspy_parse import PythonStacks
from breakranks.rank_messages import StacksEvent, StacksRequest, ThreadCall, ThreadStack, changed
from breakranks.snapshot.code_owner import LIBRARY

DEADLINE_SECONDS = 5.0
_AGAIN_SECONDS = 1.0  # for an agent that was late before
_log = Log("backend")


class AgentStacks:
    """Reads the stacks of processes, sample by sample."""

    def __init__(self) -> None:
        self._late: set[int] = set()
        self._calls: dict[int, tuple[ThreadCall, ...]] = {}  # those of the newest sample

    def read(self, pids: Iterable[int], *, details: bool) -> dict[int, PythonStacks]:
        """Return the stacks of those processes that have an agent, each with the problem, if there is one. A process
        that a tracer has stopped is left out: that tracer is the problem.

        ``details``: also the variables that are kept, and the system calls that cannot be read from outside.
        """
        states = {pid: process_state.process_state(pid) for pid in pids}
        agents = agents_of(pid for pid, state in states.items() if state != "t")
        found = {pid: PythonStacks((), ptrace_permissions.stopped(pid)) for pid in agents if states[pid] == "T"}
        requests = {pid: request_of(details=details, pid=pid) for pid in agents if pid not in found}
        deadline = _AGAIN_SECONDS if self._late.issuperset(requests) else DEADLINE_SECONDS
        self._calls = {}
        for pid, reply in ask_agents(agents, requests, deadline).items():
            (self._late.add if reply.late else self._late.discard)(pid)
            if isinstance(reply.event, StacksEvent):
                self._calls[pid] = reply.event.calls
            stacks = _stacks(pid, reply, deadline)
            if stacks is not None:
                found[pid] = stacks
        for pid, stacks in found.items():
            _log.debug("stacks by agent", pid=pid, threads=len(stacks.threads), problem=stacks.problem)
        return found

    def add_calls(self, pid: int, state: ProcessState) -> None:
        """Add the system calls of the newest sample to a state in which they could not be read."""
        calls = {call.tid: call for call in self._calls.get(pid, ())}
        if calls and pid not in calls and not any(thread.tid in calls for thread in state.threads):
            outer = pyspy_parse.outer_tids(pid)
            calls = {outer.get(tid, tid): call for tid, call in calls.items()}
        names = syscalls.table_for()
        for thread in state.threads:
            call = calls.get(thread.tid)
            if call is not None and thread.call is None:
                memory = functools.partial(_memory, dict(zip(call.addresses, call.memory, strict=True)))
                thread.call = syscalls.call_of(pid, call.text, names, thread.idle, thread.wchan, memory)


def threads_of(pid: int) -> Sequence[Mapping[str, Any]] | None:
    """Return the threads of one process with their variables, as py-spy reports them; None without an agent."""
    agents = agents_of([pid])
    if not agents:
        return None
    event = ask_agents(agents, {pid: request_of(details=True)}, DEADLINE_SECONDS)[pid].event
    return list(_as_py_spy(event)) if isinstance(event, StacksEvent) else None


def request_of(*, details: bool, pid: int = 0) -> StacksRequest:
    """Return the request for stacks. ``details``: with the variables that ``observe/safe_locals`` may keep, and the
    system calls if those of the process may not be read."""
    if not details:
        return StacksRequest(id=1)
    request = StacksRequest(id=1, variables=True, library=LIBRARY.pattern, kept=safe_locals.kept_names())
    if not pid or not syscalls.are_hidden(pid):
        return request
    return changed(request, calls=True, pointers=syscalls.pointers(syscalls.table_for()))


def _stacks(pid: int, reply: AgentReply, deadline: float) -> PythonStacks | None:
    """Return what an agent has answered; None if it is of another version, or has gone."""
    if reply.late:
        return PythonStacks((), ptrace_permissions.agent_late(pid, deadline))
    if not isinstance(reply.event, StacksEvent):
        return None
    threads = pyspy_parse.renumbered(pid, tuple(map(pyspy_parse.thread_of, _as_py_spy(reply.event))))
    return PythonStacks(
        tuple(thread._replace(running=process_state.thread_state(pid, thread.tid) == "R") for thread in threads)
    )


def _as_py_spy(event: StacksEvent) -> Iterator[dict[str, Any]]:
    """Yield the threads of an answer as py-spy prints them: innermost frame first."""
    for thread in event.threads:
        yield {
            "os_thread_id": thread.tid,
            "thread_name": thread.name,
            "owns_gil": False,
            "active": False,
            "frames": _frames(event, thread),
        }


def _frames(event: StacksEvent, thread: ThreadStack) -> list[dict[str, Any]]:
    row = event.stacks[thread.stack]
    variables = {
        found.depth: [{"name": name, "repr": text} for name, text in zip(found.names, found.texts, strict=True)]
        for found in thread.variables
    }
    frames = [
        {
            "name": event.functions[code],
            "filename": event.files[code],
            "line": line,
            "locals": variables.get(depth),
        }
        for depth, (code, line) in enumerate(zip(row[::2], row[1::2], strict=True))
    ]
    return frames[::-1]


def _memory(known: dict[int, bytes], address: int, size: int) -> bytes:
    """Return what an agent has read there."""
    for first, data in known.items():
        if first <= address and address + size <= first + len(data):
            return data[address - first : address - first + size]
    return b""
