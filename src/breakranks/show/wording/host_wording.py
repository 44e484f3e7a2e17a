"""Words for ``explain.causes.host_causes``."""

from __future__ import annotations

from breakranks.explain.causes import host_causes as h
from breakranks.explain.finding_parts import Subject
from breakranks.rankset import RankSet, ranks_text
from breakranks.show.quantities import duration, plural, times
from breakranks.show.wording.grammar import listed
from breakranks.show.wording.value_wording import ranks, who
from breakranks.show.wording.wording_registry import cause_text, fact_text
from breakranks.snapshot.host_names import fold

_SHOWN = 4


@cause_text.register
def _(cause: h.Unreached, subject: Subject) -> str:
    names = [name for some in cause.hosts for name in some.hosts]
    why = cause.hosts[0].reason if len(cause.hosts) == 1 else "; ".join(map(fact_text, cause.hosts[:_SHOWN]))
    if cause.lost:
        return f"{fold(names)} was lost during the inspection ({why}), and with it {ranks(subject.ranks)}"
    if len(cause.hosts) > 1:
        return f"{ranks(subject.ranks)} could not be inspected: {why}"
    many = "" if len(names) == 1 else f"the {len(names)} hosts "
    return f"{ranks(subject.ranks)} could not be inspected: {many}{fold(names)}, {why}"


@cause_text.register
def _(cause: h.LinkCut, subject: Subject) -> str:
    return f"{between(cause.pairs)}: {_connection(cause.connection)}"


@cause_text.register
def _(cause: h.ClocksDiffer, subject: Subject) -> str:
    if cause.other:
        (offset,) = cause.offsets
        return f"the clock of {offset.host} is {duration(offset.seconds)} ahead of {cause.other}'s"
    parts = [
        f"{offset.host} is {duration(abs(offset.seconds))} {'ahead' if offset.seconds > 0 else 'behind'}"
        for offset in cause.offsets[:_SHOWN]
    ]
    more = f" and {len(cause.offsets) - _SHOWN} more" if len(cause.offsets) > _SHOWN else ""
    return f"the clocks of the hosts differ: {listed(parts)}{more}"


def between(pairs: tuple[tuple[str, str], ...]) -> str:
    """
    >>> between((("n1", "n3"), ("n2", "n3"))), between((("n1", "n2"),))
    ('n3 is cut off from n[1-2]', 'the network between n1 and n2 carries no data')
    """
    shared = set(pairs[0]).intersection(*pairs[1:])
    if len(pairs) > 1 and shared:
        host = shared.pop()
        return f"{host} is cut off from {fold(name for pair in pairs for name in pair if name != host)}"
    parts = [f"{first} and {second}" for first, second in pairs[:_SHOWN]]
    more = f" and {plural(len(pairs) - _SHOWN, 'more pair')}" if len(pairs) > _SHOWN else ""
    return f"the network between {', between '.join(parts)}{more} carries no data"


def _connection(connection: h.CutConnection) -> str:
    to = who(connection.far) if connection.far is not None else f"{connection.peer} ({connection.peer_host})"
    if connection.connecting:
        return f"{who(connection.near)} is trying to connect to {to} and has retried {times(connection.retries)}"
    retransmitted = f"retransmitted {times(connection.retries)}"
    return f"data from {who(connection.near)} to {to} is not acknowledged and was {retransmitted}"


@fact_text.register
def _(fact: h.HostsLost) -> str:
    return f"{fold(fact.hosts)}: {fact.reason}"


@fact_text.register
def _(fact: h.Unanswered) -> str:
    rank = ranks_text(RankSet([fact.rank]))
    waiting = f"{plural(fact.bytes, 'unacknowledged byte')} for {fact.peer}"
    return f"{rank} ({fact.host}) has {waiting}, retransmitted {times(fact.retries)}"


@fact_text.register
def _(fact: h.CutQueues) -> str:
    near = f"{plural(fact.unacknowledged, 'byte')} unacknowledged, retransmitted {times(fact.retries)}"
    text = f"{fact.host} {fact.local} to {fact.peer_host} {fact.peer}: {near}"
    if fact.far_unread is None:
        return f"{text}; no rank of {fact.peer_host} has the other end"
    again = f", retransmitted {times(fact.far_retries)}" if fact.far_retries else ""
    far = f"{plural(fact.far_unread, 'byte')} unread, {fact.far_unacknowledged:,} unacknowledged{again}"
    return f"{text}; the other end has {far}"


@fact_text.register
def _(fact: h.MoreConnections) -> str:
    return f"and {plural(fact.count, 'more connection')} like these"


@fact_text.register
def _(fact: h.ClockRead) -> str:
    return f"{fact.host}: {fact.seconds:+.2f} s from this machine, ± {fact.error:.2f} s"


@fact_text.register
def _(fact: h.TimesCorrected) -> str:
    return "breakranks corrects the times that it shows; the times in the logs of the hosts are not corrected"


@fact_text.register
def _(fact: h.SameCause) -> str:
    return cause_text(fact.cause, fact.subject)
