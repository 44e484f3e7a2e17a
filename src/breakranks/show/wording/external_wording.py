"""Words for ``explain.causes.external_causes``."""

from __future__ import annotations

from breakranks.explain.causes import external_causes as o
from breakranks.explain.finding_parts import Subject
from breakranks.show.quantities import plural, times
from breakranks.show.wording.grammar import its, listed, verb
from breakranks.show.wording.value_wording import activity, command, place, predicate
from breakranks.show.wording.wording_registry import cause_text, fact_text

_COMMAND_CHARACTERS = 60
_STATES = {"T": "stopped", "Z": "dead", "D": "in an uninterruptible wait"}


@cause_text.register
def _(cause: o.SubprocessGone, subject: Subject) -> str:
    none = f"but {verb(subject.count, 'have')} no child process left"
    return predicate(subject, "wait", f"for a subprocess in {place(cause.where)}, {none}")


@cause_text.register
def _(cause: o.SubprocessWait, subject: Subject) -> str:
    state = f", which is {_STATES[cause.state]}" if cause.state in _STATES else ""
    text = f"for {its(subject.count)} subprocess {cause.pid} ({command(cause.command)}){state}, in {place(cause.where)}"
    return predicate(subject, "wait", text)


@cause_text.register
def _(cause: o.Compiling, subject: Subject) -> str:
    process = f", process {cause.pid} ({command(cause.command, _COMMAND_CHARACTERS)})" if cause.pid else ""
    return predicate(subject, "are", f"compiling ({cause.what}{process}), in {place(cause.where)}")


@cause_text.register
def _(cause: o.AwaitsConnection, subject: Subject) -> str:
    return predicate(subject, "wait", f"for a connection to {cause.local}, in {place(cause.where)}")


@cause_text.register
def _(cause: o.AwaitsAnswer, subject: Subject) -> str:
    peer = cause.peer or "the network"
    if cause.peer_pid:
        peer += f" (process {cause.peer_pid}, {command(cause.peer_command, _COMMAND_CHARACTERS)})"
    return predicate(subject, "wait", f"for an answer from {peer}, in {place(cause.where)}")


@cause_text.register
def _(cause: o.AwaitsAnswers, subject: Subject) -> str:
    return predicate(subject, "wait", f"for answers from {listed(cause.peers)}")


@fact_text.register
def _(fact: o.NoChild) -> str:
    return "it has no child process: the subprocess has ended, or has passed its pipe on to another process"


@fact_text.register
def _(fact: o.SubprocessCommand) -> str:
    return f"subprocess {fact.pid}: {command(fact.command)}"


@fact_text.register
def _(fact: o.ProcessLoad) -> str:
    kernel = f", waits in {fact.kernel}" if fact.kernel else ""
    return f"state {fact.state}, {fact.cpu_percent:.0f} % CPU{kernel}"


@fact_text.register
def _(fact: o.SubprocessDoing) -> str:
    return f"it is {activity(fact.doing)}, in {place(fact.doing.where)}"


@fact_text.register
def _(fact: o.CompilerLoad) -> str:
    return f"process {fact.pid} uses {fact.cpu_percent:.0f} % CPU" if fact.pid else "it compiles in its own process"


@fact_text.register
def _(fact: o.ListensOn) -> str:
    return f"listening on {fact.local}, blocked in {fact.call or 'the kernel'}"


@fact_text.register
def _(fact: o.SocketQueues) -> str:
    again = f"; retransmitted {times(fact.retries)} without an acknowledgement" if fact.retries > 1 else ""
    queues = f"{plural(fact.unsent, 'byte')} unsent, {fact.unread:,} unread"
    return f"{fact.protocol} {fact.local} to {fact.peer}, {fact.status}, {queues}{again}"


@fact_text.register
def _(fact: o.InNetworkCode) -> str:
    return "its stack is in network code"


@fact_text.register
def _(fact: o.WokenAgain) -> str:
    return "it wakes up repeatedly: data arrives slowly"
