"""What a console may ask of a rank, a function a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from breakranks.rank import fork_hooks, source_lines, thread_location, thread_states
from breakranks.rank.breakpoint_sites import SITES
from breakranks.rank.breakpoint_table import BreakpointRefused
from breakranks.rank.stop_state import LineRequest
from breakranks.rank.unix_server import Client
from breakranks.rankset import RankSet

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent

VERSION = 1
_MAX_COMPLETIONS = 200
Message = dict[str, Any]


def handle(agent: RankAgent, client: Client, message: Message) -> None:
    """Do what one message asks. A word that we do not know is said to be one."""
    word = message.get("do")
    action = _WORDS.get(word) if isinstance(word, str) else None
    if action is None:
        agent.server.tell({"event": "error", "id": message.get("id"), "text": f"there is no {word!r} here"}, client)
    else:
        action(agent, client, message)


def _hello(agent: RankAgent, client: Client, message: Message) -> None:
    client.console = bool(message.get("console"))
    agent.expected = max(agent.expected - client.console, 0)
    if client.console and agent.watch.off:
        agent.watch.off = False
        agent.watch.announce({"do": "on"})
    agent.server.tell({"event": "hello", "version": VERSION, **agent.state()}, client)


def _run(agent: RankAgent, client: Client, message: Message) -> None:
    takers = frozenset(RankSet.parse(str(message.get("takers", "")))) or frozenset([agent.me.rank])
    line = str(message["line"]).replace("\n", " ")
    request = LineRequest(client, int(message["id"]), line, takers)
    if message.get("look") and agent.inspector.wants(line):
        agent.inspector.take(request)
    elif not agent.stop_state.put(request):
        agent.server.tell(
            {"event": "answer", "id": message["id"], "running": True, "text": "", "state": agent.state()}, client
        )


def _go(agent: RankAgent, client: Client, message: Message) -> None:
    ranks = str(RankSet.parse(str(message.get("ranks", ""))))
    counts = SITES.begun()  # before this rank goes on, and on to its next call
    if not message.get("only"):  # it only passes the word on
        agent.stop_state.release("go")
    if ranks:  # those of other hosts hear of it through us
        agent.watch.announce({"do": "go", "ranks": ranks, "counts": counts})
    agent.server.tell({"event": "done", "id": message.get("id")}, client)


def _interrupt(agent: RankAgent, client: Client, message: Message) -> None:
    """Stop at the next line; or end what is evaluated, if the rank is at a prompt."""
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
        role = "held" if message.get("hold") else "prompt"
        mine = RankSet([agent.me.rank])
        reason = str(message.get("reason") or ("hold" if role == "held" else "interrupt"))
        why = agent.breakpoints.stop_soon(role, mine, reason, thread=agent.inspector.chosen)
        done = "refused" if why else "soon"
    agent.server.tell({"event": "done", "id": message.get("id"), "done": done, "why": why}, client)


def _withdraw(agent: RankAgent, client: Client, message: Message) -> None:
    """The rank is not to be stopped after all, if it has not been yet."""
    agent.breakpoints.withdraw()
    agent.server.tell({"event": "done", "id": message.get("id"), **agent.state()}, client)


def _where(agent: RankAgent, client: Client, message: Message) -> None:
    """Where the rank's thread is while it runs."""
    frame = agent.inspector.frame()
    found: Message = {"event": "where", "id": message.get("id"), "frames": [], "collective": None, **agent.state()}
    if frame is not None:
        found["frames"] = thread_location.frames_of(frame)
        found["thread"] = thread_states.name_of(agent.inspector.thread)
        found["blocked"] = agent.inspector.blocked()
        found["collective"] = thread_location.collective_of(frame) if agent.stop_state.state != "stopped" else None
    agent.server.tell(found, client)


def _probe(agent: RankAgent, client: Client, message: Message) -> None:
    """Tell this console what expressions are at a line, as often as it asks for."""
    file, _, line = str(message.get("place", "")).rpartition(":")

    def tell(record: Message) -> None:
        agent.server.tell({"event": "probe", **record}, client)

    why = ""
    try:
        prints = [str(one) for one in message.get("prints") or ()]
        when = str(message.get("when") or "")
        client.probes.append(agent.breakpoints.probe(file, int(line), when, prints, int(message["times"]), tell))
    except (BreakpointRefused, source_lines.NoSuchLine, ValueError) as error:
        why = str(error)
    agent.server.tell({"event": "done", "id": message.get("id"), "error": why}, client)


def _complete(agent: RankAgent, client: Client, message: Message) -> None:
    """What pdb would complete; of a rank that waits at its prompt, read from this thread."""
    words: list[str] = []
    debugger = agent.pdbs.of(agent.stop_state.thread)
    if agent.stop_state.state == "stopped" and debugger is not None and debugger.curframe is not None:
        text = str(message.get("text", ""))
        try:
            words = list(debugger._complete_expression(text, text, 0, len(text)))[:_MAX_COMPLETIONS]
        except Exception:
            words = []
    agent.server.tell({"event": "completions", "id": message.get("id"), "words": words}, client)


def _patience(agent: RankAgent, client: Client, message: Message) -> None:
    """Somebody may stop this rank or another: timeouts are long as long as this console is here and needs it."""
    notes = agent.watch.be_patient(client, bool(message.get("needed")))
    agent.server.tell({"event": "done", "id": message.get("id"), "notes": notes}, client)


def _dap(agent: RankAgent, client: Client, message: Message) -> None:
    """Let a debugger that speaks the Debug Adapter Protocol in, by the socket at ``path``; without one, tell of it."""
    with fork_hooks.ForksPaused():
        from breakranks.rank import debugpy_session

    found: Message = {"own": debugpy_session.has_debugpy()}
    if message.get("path"):
        found = debugpy_session.start(str(message["path"]), str(message.get("folder", "")), agent.watch.visit)
    agent.server.tell({"event": "done", "id": message.get("id"), **found}, client)


def _state(agent: RankAgent, client: Client, message: Message) -> None:
    agent.server.tell({"event": "state", "id": message.get("id"), **agent.state()}, client)


def _bye(agent: RankAgent, client: Client, message: Message) -> None:
    """A console leaves of its own will; ``armed``: breakpoints go on stopping."""
    client.polite = bool(message.get("armed"))


_WORDS: dict[str, Callable[[RankAgent, Client, Message], None]] = {
    "hello": _hello,
    "run": _run,
    "go": _go,
    "interrupt": _interrupt,
    "withdraw": _withdraw,
    "where": _where,
    "probe": _probe,
    "complete": _complete,
    "dap": _dap,
    "patience": _patience,
    "state": _state,
    "bye": _bye,
}
