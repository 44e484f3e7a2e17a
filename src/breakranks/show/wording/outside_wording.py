"""Words for ``explain.causes.outside_causes``."""

from __future__ import annotations

from breakranks.explain.causes import outside_causes as o
from breakranks.explain.values import Subject
from breakranks.show.quantities import plural, times
from breakranks.show.wording.grammar import its, listed, verb
from breakranks.show.wording.registry import cause_text, fact_text
from breakranks.show.wording.value_wording import activity, command, place, predicate

_SHORT = 60  # characters of a command within a sentence
_STATES = {"T": "stopped", "Z": "dead", "D": "in an uninterruptible wait"}


@cause_text.register
def _(cause: o.SubprocessGone, subject: Subject) -> str:
    none = f"and {verb(subject.count, 'have')} none any more"
    return predicate(subject, "wait", f"for a subprocess in {place(cause.where)}, {none}")


@cause_text.register
def _(cause: o.SubprocessWait, subject: Subject) -> str:
    state = f", which is {_STATES[cause.state]}" if cause.state in _STATES else ""
    text = f"for {its(subject.count)} subprocess {cause.pid} ({command(cause.command)}){state}, in {place(cause.where)}"
    return predicate(subject, "wait", text)


@cause_text.register
def _(cause: o.Compiling, subject: Subject) -> str:
    process = f", process {cause.pid} ({command(cause.command, _SHORT)})" if cause.pid else ""
    return predicate(subject, "are", f"compiling ({cause.what}{process}), in {place(cause.where)}")


@cause_text.register
def _(cause: o.AwaitsConnection, subject: Subject) -> str:
    return predicate(subject, "wait", f"for a connection to {cause.local}, in {place(cause.where)}")


@cause_text.register
def _(cause: o.AwaitsAnswer, subject: Subject) -> str:
    peer = cause.peer or "the network"
    if cause.peer_pid:
        peer += f" (process {cause.peer_pid}, {command(cause.peer_command, _SHORT)})"
    return predicate(subject, "wait", f"for an answer from {peer}, in {place(cause.where)}")


@cause_text.register
def _(cause: o.AwaitsAnswers, subject: Subject) -> str:
    return predicate(subject, "wait", f"for answers from {listed(cause.peers)}")


@fact_text.register
def _(fact: o.NoChild) -> str:
    return "it has no child process: what it started has ended, or handed its pipe to a process of its own"


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
    return f"{fact.pid} uses {fact.cpu_percent:.0f} % CPU" if fact.pid else "it compiles in its own process"


@fact_text.register
def _(fact: o.ListensOn) -> str:
    return f"listening on {fact.local}, blocked in {fact.call or 'the kernel'}"


@fact_text.register
def _(fact: o.SocketQueues) -> str:
    again = f"; sent again {times(fact.retries)} without an answer" if fact.retries > 1 else ""
    queues = f"{plural(fact.unsent, 'byte')} unsent, {fact.unread:,} unread"
    return f"{fact.protocol} {fact.local} to {fact.peer}, {fact.status}, {queues}{again}"


@fact_text.register
def _(fact: o.InNetworkCode) -> str:
    return "its stack is in network code"


@fact_text.register
def _(fact: o.WokenAgain) -> str:
    return "it is woken again and again: data comes in, slowly"
