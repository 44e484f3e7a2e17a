"""unreachable, clock-skew, and what all ranks of one host have in common."""

from __future__ import annotations

from statistics import median

from breakranks.explain.actions import Action, Advise, RunShell
from breakranks.explain.causes import Cause
from breakranks.explain.causes.file_causes import BlockedBelow, BlockedIo
from breakranks.explain.causes.host_causes import (
    ClockOffset,
    ClockRead,
    ClocksDiffer,
    HostsLost,
    SameCause,
    TimesCorrected,
    Unreached,
)
from breakranks.explain.causes.outside_causes import AwaitsAnswers
from breakranks.explain.causes.process_causes import Stopped
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY, Finding
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.rules import network_cut
from breakranks.explain.rules.candidate import Candidate, direct, held_up, victims_evidence, waiting_place
from breakranks.explain.rules.rank_cause import PATIENCE_SECONDS, RankCause
from breakranks.explain.values import Subject
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Host
from breakranks.snapshot.unseen_ranks import never_seen, reasons

Causes = dict[tuple[str, str, object], tuple[RankSet, RankCause]]
# Of these it may be the host itself that is gone; the others answer, and only we get no further.
_SILENT = ("unreachable", "timed-out", "lost")
# Seconds. Logs of two hosts that are less apart can still be read side by side.
_SKEW_SECONDS = 1.0
_SHOWN = 4


def unreachable(case: JobView, waiting: list[RankGroup]) -> list[Candidate]:
    """Ranks on hosts that could not be looked at, or no more, while others wait for them."""
    found = []
    lost = never_seen(case.snapshot.hosts)
    if case.unreached and lost:
        found.append(_not_seen(case, case.unreached, lost, waiting))
    for host in (host for host in case.snapshot.hosts if host.state == "lost"):
        ranks = RankSet(one.rank for one in case.snapshot.ranks if one.host == host.name)
        if ranks:
            found.append(_not_seen(case, ranks, [host], waiting))
    return [one for one in found if one is not None]


def _not_seen(case: JobView, ranks: RankSet, hosts: list[Host], waiting: list[RankGroup]) -> Candidate | None:
    victims = case.victims_of(ranks) - lost_ranks(case) if waiting else RankSet()
    if not victims:
        return None
    nodes = [node for node in waiting if node.ranks & victims]
    exact = all(node.exact for node in direct(nodes, ranks))
    silent = all(host.state in _SILENT for host in hosts)
    # Where it is not known for whom they wait: anybody else that was seen and has not come might be the one.
    others = any(node.ranks - ranks for node in case.roots())
    finding = Finding(
        kind="unreachable",
        culprits=str(ranks),
        victims=str(victims),
        confidence=LIKELY if silent and (exact or not others) else GUESS,
        cause=_unreached(hosts),
        subject=Subject(ranks=str(ranks)),
        held_up=held_up(case, ranks, victims, at=waiting_place(nodes, ranks)),
        victims_at=waiting_place(nodes, ranks),
        where=None,
        evidence=(*lost_facts(hosts), *network_cut.unanswered(case, hosts), *victims_evidence(case, nodes)),
        next=_remedies(hosts),
        grounds=("ranks-unseen",),
    )
    return Candidate(finding=finding, needs=PATIENCE_SECONDS, culprits=ranks, victims=victims)


def _unreached(hosts: list[Host]) -> Unreached:
    return Unreached(hosts=lost_facts(hosts), lost=hosts[0].state == "lost")


def lost_facts(hosts: list[Host]) -> tuple[HostsLost, ...]:
    """Hosts by what was the matter with them."""
    return tuple(HostsLost(hosts=tuple(names), reason=reason) for reason, names in reasons(hosts).items())


def _remedies(hosts: list[Host]) -> tuple[Action, ...]:
    found = tuple(dict.fromkeys(host.remedy for host in hosts if host.remedy))[:_SHOWN]
    if not found:
        return (RunShell(script=f"ping -c 3 {hosts[0].name}"),)
    return tuple(Advise(what="remedy", path=remedy) for remedy in found)


def lost_ranks(case: JobView) -> RankSet:
    """Ranks of hosts that were seen, and then no more: what is known of them is old."""
    names = {host.name for host in case.snapshot.hosts if host.state == "lost"}
    return RankSet(one.rank for one in case.snapshot.ranks if one.host in names) if names else RankSet()


def notes(case: JobView, told: tuple[Finding, ...] = ()) -> tuple[Finding, ...]:
    """What is worth knowing of the hosts, whatever the verdict is."""
    found = [_skew(case)]
    lost = never_seen(case.snapshot.hosts)
    if case.unreached and lost and not any(one.kind == "unreachable" for one in told):
        found.append(
            Finding(
                kind="unreachable",
                culprits=str(case.unreached),
                victims="",
                confidence=CERTAIN,
                cause=_unreached(lost),
                subject=Subject(ranks=str(case.unreached)),
                where=None,
                evidence=lost_facts(lost),
                next=_remedies(lost),
                grounds=("nothing-known",),
                informational=True,
            )
        )
    return tuple(one for one in found if one is not None)


def _skew(case: JobView) -> Finding | None:
    """Hosts whose clock is not that of most: their logs cannot be laid side by side, and certificates may fail."""
    known = [host for host in case.snapshot.hosts if host.state in ("seen", "lost")]
    if len(known) < 2:
        return None
    usual = median(host.clock for host in known)
    error = min(host.clock_error for host in known)
    off = {
        host.name: host.clock - usual
        for host in known
        if abs(host.clock - usual) > _SKEW_SECONDS + host.clock_error + error
    }
    if not off:
        return None
    apart = sorted(off.items(), key=lambda item: -abs(item[1]))
    cause = ClocksDiffer(offsets=tuple(ClockOffset(host=name, seconds=by) for name, by in apart))
    if len(known) == 2:  # neither is the odd one: the median is between them
        first, second = sorted(known, key=lambda host: host.clock)
        offset = ClockOffset(host=second.name, seconds=second.clock - first.clock)
        cause = ClocksDiffer(offsets=(offset,), other=first.name)
    return Finding(
        kind="clock-skew",
        culprits="",
        victims="",
        confidence=CERTAIN,
        cause=cause,
        subject=Subject(ranks=""),
        where=None,
        evidence=(
            *(
                ClockRead(host=host.name, seconds=host.clock, error=host.clock_error)
                for host in [host for host in known if host.name in off][:8]
            ),
            TimesCorrected(),
        ),
        next=(RunShell(script="chronyc tracking", host=next(iter(off))),),
        grounds=("clocks-read",),
        informational=True,
    )


def together(case: JobView, causes: Causes) -> Causes:
    """Where every rank of a host has a cause of the same kind, but not quite the same one (a file each, a line each),
    it is the host's: one cause."""
    if not case.several:
        return causes
    by_host: dict[tuple[str, str], list[tuple[str, str, object]]] = {}
    for key, (ranks, _) in causes.items():
        hosts = case.hosts_of(ranks)
        if len(hosts) == 1 and key[0] in _JOINED:
            by_host.setdefault((hosts[0], key[0]), []).append(key)
    made = dict(causes)
    for (host, kind), keys in by_host.items():
        ranks = RankSet()
        for key in keys:
            ranks |= causes[key][0]
        if len(keys) < 2 or len(ranks) < len(case.ranks_on(host)):
            continue
        alike = [causes[key][1] for key in keys]
        cause = _joined(kind, [key[1] for key in keys], alike)
        if cause is not None:
            first = max(alike, key=lambda reason: reason.needs)
            evidence = tuple(
                SameCause(subject=Subject(ranks=str(causes[key][0])), cause=causes[key][1].cause)
                for key in keys[:_SHOWN]
            )
            for key in keys:
                del made[key]
            following = tuple(dict.fromkeys(action for reason in alike for action in reason.next))
            made[kind, host, first.where] = (
                ranks,
                first._replace(cause=cause, evidence=evidence, next=following[:_SHOWN], where=None),
            )
    return made


_JOINED = ("blocked-io", "rank-stopped", "socket-wait")


def _joined(kind: str, abouts: list[str], alike: list[RankCause]) -> Cause | None:
    """The one cause that all of these are, if they are one."""
    if kind == "rank-stopped":
        return alike[0].cause if len({reason.cause for reason in alike}) == 1 else Stopped()
    if kind == "socket-wait":
        return AwaitsAnswers(peers=tuple(sorted(set(abouts))[:_SHOWN])) if all(abouts) else None
    folder = _common(abouts)
    asleep = all(isinstance(reason.cause, BlockedIo) and reason.cause.state == "D" for reason in alike)
    return BlockedBelow(folder=folder, uninterruptible=asleep) if folder else None


def _common(paths: list[str]) -> str:
    """The folder that all of these are below, if there is one but the root."""
    if not all(path.startswith("/") for path in paths):
        return ""
    parts = [path.split("/")[1:-1] for path in paths]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "/" + "/".join(shared) if shared else ""
