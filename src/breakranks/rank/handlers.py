"""What a console may request of a rank: one function per request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from breakranks.rank import fork_hooks, source_lines, thread_location, thread_states
from breakranks.rank.breakpoint_calls import SITES
from breakranks.rank.breakpoint_table import BreakpointRefused
from breakranks.rank.stop_state import LineRequest
from breakranks.rank.unix_server import Client
from breakranks.rank_messages import (
    AnswerEvent,
    ByeRequest,
    CodePlace,
    CompleteRequest,
    CompletionsEvent,
    CurrentCollective,
    DapRequest,
    DoneEvent,
    ErrorEvent,
    GoRequest,
    HelloEvent,
    HelloRequest,
    InterruptRequest,
    PatienceRequest,
    PayloadRequest,
    ProbeEvent,
    ProbeRequest,
    RankRequest,
    RunRequest,
    StacksRequest,
    StateEvent,
    StateRequest,
    WhereEvent,
    WhereRequest,
    WithdrawRequest,
    read_request,
)
from breakranks.rankset import RankSet

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent

_MAX_COMPLETIONS = 200


def handle(agent: RankAgent, client: Client, message: Mapping[str, Any]) -> None:
    """Do what one message requests. The reply to an unknown request is an error."""
    request = read_request(message)
    if request is None:
        number, word = message.get("id"), message.get("do")
        known = number if isinstance(number, int) else None
        agent.server.tell(ErrorEvent(id=known, text=f"there is no {word!r} here"), client)
    else:
        _HANDLERS[type(request)](agent, client, request)


def _hello(agent: RankAgent, client: Client, request: HelloRequest) -> None:
    client.console = request.console
    agent.expected = max(agent.expected - client.console, 0)
    if client.console and agent.coordination.off:
        agent.coordination.off = False
        agent.coordination.announce({"do": "on"})
    agent.server.tell(agent.report(HelloEvent), client)


def _run(agent: RankAgent, client: Client, request: RunRequest) -> None:
    takers = frozenset(RankSet.parse(request.takers)) or frozenset([agent.me.rank])
    line = request.line.replace("\n", " ")
    queued = LineRequest(client, request.id or 0, line, takers)
    meant = request.turn is None or agent.stop_state.turn <= request.turn  # not of a stop that has ended since
    if meant and request.look and agent.inspector.wants(line):
        agent.inspector.take(queued)
    elif not agent.stop_state.put(queued, turn=request.turn):
        went = request.turn is not None
        agent.server.tell(AnswerEvent(id=request.id, went=went, running=not went, state=agent.state()), client)


def _go(agent: RankAgent, client: Client, request: GoRequest) -> None:
    ranks = str(RankSet.parse(request.ranks))
    counts = SITES.begun()  # before this rank resumes and reaches its next call
    if not request.only:
        agent.stop_state.release("go", turn=request.turn)
    if ranks:  # those of other hosts are told by this agent
        agent.coordination.announce({"do": "go", "ranks": ranks, "counts": counts})
    agent.server.tell(DoneEvent(id=request.id), client)


def _interrupt(agent: RankAgent, client: Client, request: InterruptRequest) -> None:
    """Stop at the next line, or end what is evaluated if the rank is at a prompt."""
    why = ""
    if agent.stop_state.evaluating:
        agent.stop_state.interrupt_evaluation()
        done = "evaluating"
    elif agent.inspector.evaluating:
        agent.inspector.interrupt()
        done = "evaluating"
    elif agent.stop_state.stop is not None:
        done = "stopped"
    else:
        role = "held" if request.hold else "prompt"
        reason = request.reason or ("hold" if request.hold else "interrupt")
        why = agent.breakpoints.stop_soon(role, RankSet([agent.me.rank]), reason, thread=agent.inspector.chosen)
        done = "refused" if why else "soon"
    agent.server.tell(DoneEvent(id=request.id, done=done, why=why), client)


def _withdraw(agent: RankAgent, client: Client, request: WithdrawRequest) -> None:
    """Do not stop the rank, if it has not stopped yet."""
    agent.breakpoints.withdraw()
    agent.server.tell(DoneEvent(id=request.id), client)


def _where(agent: RankAgent, client: Client, request: WhereRequest) -> None:
    """The stack of the inspected thread, which may run."""
    frame = agent.inspector.frame()
    if frame is None:
        agent.server.tell(agent.report(WhereEvent, id=request.id), client)
        return
    collective = thread_location.collective_of(frame) if agent.stop_state.state != "stopped" else None
    event = agent.report(
        WhereEvent,
        id=request.id,
        frames=tuple(CodePlace(**place) for place in thread_location.frames_of(frame)),
        thread=thread_states.name_of(agent.inspector.thread),
        blocked=agent.inspector.blocked(),
        collective=CurrentCollective(**collective) if collective is not None else None,
    )
    agent.server.tell(event, client)


def _probe(agent: RankAgent, client: Client, request: ProbeRequest) -> None:
    """Set a logpoint, whose hits this console gets."""
    file, _, line = request.place.rpartition(":")

    def tell(event: ProbeEvent) -> None:
        agent.server.tell(event, client)

    error = ""
    try:
        number = agent.breakpoints.probe(file, int(line), request.when, list(request.prints), request.times, tell)
        client.probes.append(number)
    except (BreakpointRefused, source_lines.NoSuchLine, ValueError) as refused:
        error = str(refused)
    agent.server.tell(DoneEvent(id=request.id, error=error), client)


def _complete(agent: RankAgent, client: Client, request: CompleteRequest) -> None:
    """The completions of pdb in a rank that waits at its prompt, computed in the agent's thread."""
    words: list[str] = []
    debugger = agent.pdbs.of(agent.stop_state.thread)
    if agent.stop_state.state == "stopped" and debugger is not None and debugger.curframe is not None:
        text = request.text
        try:
            words = list(debugger._complete_expression(text, text, 0, len(text)))[:_MAX_COMPLETIONS]
        except Exception:
            words = []
    agent.server.tell(CompletionsEvent(id=request.id, words=tuple(words)), client)


def _patience(agent: RankAgent, client: Client, request: PatienceRequest) -> None:
    """Keep timeouts long while this console is connected and needs it: it may stop this rank or another."""
    notes = agent.coordination.be_patient(client, request.needed)
    agent.server.tell(DoneEvent(id=request.id, notes=tuple(notes)), client)


def _dap(agent: RankAgent, client: Client, request: DapRequest) -> None:
    """Connect debugpy to the socket at ``path``; without a path, report whether this process has debugpy."""
    with fork_hooks.ForksPaused():
        from breakranks.rank import debugpy_session

    if request.path:
        answer = debugpy_session.start(request.path, request.folder, agent.coordination.visit)
    else:
        answer = {"own": debugpy_session.has_debugpy()}
    agent.server.tell(DoneEvent(id=request.id, **answer), client)


def _stacks(agent: RankAgent, client: Client, request: StacksRequest) -> None:
    """The stacks of all threads, read in the agent's thread."""
    with fork_hooks.ForksPaused():
        from breakranks.rank import thread_stacks  # few agents are asked for it

    agent.server.tell(thread_stacks.event_of(request), client)


def _payload(agent: RankAgent, client: Client, request: PayloadRequest) -> None:
    with fork_hooks.ForksPaused():
        from breakranks.rank import payload_runs  # as in _stacks

    payload_runs.start(agent.server, client, request)


def _state(agent: RankAgent, client: Client, request: StateRequest) -> None:
    agent.server.tell(agent.report(StateEvent, id=request.id), client)


def _bye(agent: RankAgent, client: Client, request: ByeRequest) -> None:
    """A console is about to leave."""
    client.polite = request.armed


_HANDLERS: dict[type[RankRequest], Callable[[RankAgent, Client, Any], None]] = {
    HelloRequest: _hello,
    RunRequest: _run,
    GoRequest: _go,
    InterruptRequest: _interrupt,
    WithdrawRequest: _withdraw,
    WhereRequest: _where,
    ProbeRequest: _probe,
    CompleteRequest: _complete,
    DapRequest: _dap,
    PatienceRequest: _patience,
    StateRequest: _state,
    StacksRequest: _stacks,
    PayloadRequest: _payload,
    ByeRequest: _bye,
}
