"""What a console may ask of a rank, a function a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from breakranks.inside.rank import api, forks, interrupt, threads, where
from breakranks.inside.rank.agent import VERSION, Agent
from breakranks.inside.rank.seat import Request
from breakranks.inside.rank.sites import SITES
from breakranks.inside.rank.wire import Client
from breakranks.rankset import RankSet

_MOST_COMPLETIONS = 200
Message = dict[str, Any]


def obey(agent: Agent, client: Client, message: Message) -> None:
    """Do what one message asks. A word that we do not know is said to be one."""
    word = message.get("do")
    action = _WORDS.get(word) if isinstance(word, str) else None
    if action is None:
        agent.wire.tell({"event": "error", "id": message.get("id"), "text": f"there is no {word!r} here"}, client)
    else:
        action(agent, client, message)


def _hello(agent: Agent, client: Client, message: Message) -> None:
    client.console = bool(message.get("console"))
    agent.expected = max(agent.expected - client.console, 0)
    if client.console and agent.watch.off:
        agent.watch.off = False
        agent.watch.announce({"do": "on"})
    agent.wire.tell({"event": "hello", "version": VERSION, **agent.state()}, client)


def _run(agent: Agent, client: Client, message: Message) -> None:
    takers = frozenset(RankSet.parse(str(message.get("takers", "")))) or frozenset([agent.me.rank])
    line = str(message["line"]).replace("\n", " ")
    request = Request(client, int(message["id"]), line, takers)
    if message.get("look") and agent.looker.wants(line):
        agent.looker.take(request)
    elif not agent.seat.put(request):
        agent.wire.tell(
            {"event": "answer", "id": message["id"], "running": True, "text": "", "state": agent.state()}, client
        )


def _go(agent: Agent, client: Client, message: Message) -> None:
    ranks = str(RankSet.parse(str(message.get("ranks", ""))))
    counts = SITES.begun()  # before this rank goes on, and on to its next call
    if not message.get("only"):  # it only passes the word on
        agent.seat.release("go")
    if ranks:  # those of other hosts hear of it through us
        agent.watch.announce({"do": "go", "ranks": ranks, "counts": counts})
    agent.wire.tell({"event": "done", "id": message.get("id")}, client)


def _interrupt(agent: Agent, client: Client, message: Message) -> None:
    """Stop at the next line; or end what is evaluated, if the rank is at a prompt."""
    why = ""
    if agent.seat.evaluating:
        interrupt.stop_evaluating(agent.seat)
        done = "evaluating"
    elif agent.looker.evaluating:
        agent.looker.interrupt()
        done = "evaluating"
    elif agent.seat.stop is not None:
        done = "stopped"
    else:
        role = "held" if message.get("hold") else "prompt"
        mine = RankSet([agent.me.rank])
        reason = str(message.get("reason") or ("hold" if role == "held" else "interrupt"))
        why = interrupt.soon(agent, role, mine, reason, thread=agent.looker.chosen)
        done = "refused" if why else "soon"
    agent.wire.tell({"event": "done", "id": message.get("id"), "done": done, "why": why}, client)


def _withdraw(agent: Agent, client: Client, message: Message) -> None:
    """The rank is not to be stopped after all, if it has not been yet."""
    interrupt.withdraw(agent)
    agent.wire.tell({"event": "done", "id": message.get("id"), **agent.state()}, client)


def _where(agent: Agent, client: Client, message: Message) -> None:
    """Where the rank's thread is while it runs."""
    frame = agent.looker.frame()
    found: Message = {"event": "where", "id": message.get("id"), "frames": [], "collective": None, **agent.state()}
    if frame is not None:
        found["frames"] = where.frames_of(frame)
        found["thread"] = threads.name_of(agent.looker.thread)
        found["blocked"] = agent.looker.blocked()
        found["collective"] = where.collective_of(frame) if agent.seat.state != "stopped" else None
    agent.wire.tell(found, client)


def _probe(agent: Agent, client: Client, message: Message) -> None:
    """Tell this console what expressions are at a line, as often as it asks for."""
    from breakranks.inside.rank import armed, places

    file, _, line = str(message.get("place", "")).rpartition(":")

    def tell(record: Message) -> None:
        agent.wire.tell({"event": "probe", **record}, client)

    why = ""
    try:
        prints = [str(one) for one in message.get("prints") or ()]
        when = str(message.get("when") or "")
        client.probes.append(armed.probe(agent, file, int(line), when, prints, int(message["times"]), tell))
    except (armed.Refused, places.NoPlace, ValueError) as error:
        why = str(error)
    agent.wire.tell({"event": "done", "id": message.get("id"), "error": why}, client)


def _complete(agent: Agent, client: Client, message: Message) -> None:
    """What pdb would complete; of a rank that waits at its prompt, read from this thread."""
    words: list[str] = []
    debugger = api.debugger_of(agent.seat.thread)
    if agent.seat.state == "stopped" and debugger is not None and debugger.curframe is not None:
        text = str(message.get("text", ""))
        try:
            words = list(debugger._complete_expression(text, text, 0, len(text)))[:_MOST_COMPLETIONS]
        except Exception:
            words = []
    agent.wire.tell({"event": "completions", "id": message.get("id"), "words": words}, client)


def _patience(agent: Agent, client: Client, message: Message) -> None:
    """Somebody may stop this rank or another: timeouts are long as long as this console is here and needs it."""
    notes = agent.watch.be_patient(client, bool(message.get("needed")))
    agent.wire.tell({"event": "done", "id": message.get("id"), "notes": notes}, client)


def _dap(agent: Agent, client: Client, message: Message) -> None:
    """Let a debugger that speaks the Debug Adapter Protocol in, by the socket at ``path``; without one, tell of it."""
    with forks.Paused():
        from breakranks.inside.rank import dap

    found: Message = {"own": dap.has_debugpy()}
    if message.get("path"):
        found = dap.start(str(message["path"]), str(message.get("folder", "")), agent.watch.visit)
    agent.wire.tell({"event": "done", "id": message.get("id"), **found}, client)


def _state(agent: Agent, client: Client, message: Message) -> None:
    agent.wire.tell({"event": "state", "id": message.get("id"), **agent.state()}, client)


def _bye(agent: Agent, client: Client, message: Message) -> None:
    """A console leaves of its own will; ``armed``: breakpoints go on stopping."""
    client.polite = bool(message.get("armed"))


_WORDS: dict[str, Callable[[Agent, Client, Message], None]] = {
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
