"""Payloads in live processes: by the agent of a process that has one, else by injection, which traces the process.

The agent needs no permission, and no thread of the job is touched. What runs, and its answer, are the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from breakranks.backend.found_agents import FoundAgent, agents_of
from breakranks.inject import mailbox, run_in_process
from breakranks.inject.inject_errors import GilHeld, InjectError, InjectTimeout
from breakranks.log import Log
from breakranks.observe import process_state
from breakranks.observe.sigcont_guard import Watchdog

if TYPE_CHECKING:
    from breakranks.backend.agent_requests import AgentReply

_log = Log("backend")
_NOTHING: Mapping[str, object] = {}
# Without what only a process that does not have breakranks needs: modules (rank_agent_modules) of more than a message.
_LEFT_OUT = ("modules", "at_fork")
_MAX_REQUEST_CHARACTERS = 500_000
# Until a process whose agent has not answered is checked for a thread that sleeps with the GIL held.
_GIL_CHECK_SECONDS = 1.0


def ask_many(
    pids: Iterable[int],
    payload: str,
    arguments: Mapping[str, object] = _NOTHING,
    *,
    deadline: float = 5.0,
    each: Mapping[int, Mapping[str, object]] | None = None,
    gil_held: Mapping[int, str] | None = None,
    dog: Watchdog | None = None,
) -> dict[int, bytes | InjectError]:
    """As ``inject.run_in_process.ask_many``, but through the agents of those processes that have one."""
    pids = list(pids)
    held = gil_held or {}
    agents = agents_of(pid for pid in pids if not held.get(pid))
    found = _Asked(agents, deadline).answers(mailbox.payload(payload), arguments, each or {}) if agents else {}
    rest = [pid for pid in pids if pid not in found]
    if rest:
        found |= run_in_process.ask_many(
            rest, payload, arguments, deadline=deadline, each=each, gil_held=gil_held, dog=dog
        )
    return {pid: found[pid] for pid in pids}


class _Asked:
    """Processes with an agent that get one payload."""

    def __init__(self, agents: Mapping[int, FoundAgent], deadline: float) -> None:
        self._agents = agents
        self._deadline = deadline
        self._gil_holders: dict[int, str] = {}

    def answers(
        self, source: str, arguments: Mapping[str, object], each: Mapping[int, Mapping[str, object]]
    ) -> dict[int, bytes | InjectError]:
        """Return the answers by agents. A process whose agent could not run the payload is left out."""
        # 15 ms, and few processes have an agent.
        from breakranks.backend.agent_requests import ask_agents
        from breakranks.rank_messages import PayloadRequest

        requests = {}
        for pid in self._agents:
            given = {name: value for name, value in {**arguments, **each.get(pid, {})}.items() if name not in _LEFT_OUT}
            text = json.dumps(given, allow_nan=False)
            if len(source) + len(text) <= _MAX_REQUEST_CHARACTERS:
                requests[pid] = PayloadRequest(id=1, source=source, arguments=text)
        if not requests:
            return {}
        replies = ask_agents(self._agents, requests, self._deadline, hopeless=self._is_hopeless)
        answers = {pid: self._answer(pid, reply) for pid, reply in replies.items()}
        return {pid: answer for pid, answer in answers.items() if answer is not None}

    def _answer(self, pid: int, reply: AgentReply) -> bytes | InjectError | None:
        from breakranks.rank_messages import PayloadEvent

        event = reply.event
        if isinstance(event, PayloadEvent) and event.error is None:
            return event.answer
        if reply.late:
            return self._late(pid)
        _log.info("not run by the agent", pid=pid, why=getattr(event, "error", None) or getattr(event, "text", "gone"))
        return None

    def _is_hopeless(self, pid: int, waited: float) -> bool:
        """Whether a thread sleeps with the GIL held, as far as the process may be traced."""
        if waited < _GIL_CHECK_SECONDS or pid in self._gil_holders:
            return False
        holder = run_in_process.gil_holder(pid)
        sleeps = holder is not None and process_state.thread_state(pid, holder.tid) in ("S", "D")
        self._gil_holders[pid] = (holder.name or str(holder.tid)) if holder is not None and sleeps else ""
        return sleeps

    def _late(self, pid: int) -> InjectError:
        if self._gil_holders.get(pid):
            return GilHeld(pid, self._gil_holders[pid])
        if process_state.process_state(pid) == "T":
            return InjectTimeout(
                f"process {pid} was stopped before it answered",
                f"Continue it (kill -CONT {pid}) and try again.",
            )
        return InjectTimeout(
            f"the agent in process {pid} did not answer within {self._deadline:g} s: the code still runs, or a thread "
            "holds the GIL in C code. If the code has not begun, the request is withdrawn",
            "Try again, or see its stack: breakranks stacks",
        )
