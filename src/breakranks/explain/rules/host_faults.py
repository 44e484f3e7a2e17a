"""unreachable, clock-skew, and causes that all ranks of one host have in common."""

from __future__ import annotations

from statistics import median

from breakranks.explain.actions import Action, FollowRemedy, RunShell
from breakranks.explain.causes import Cause
from breakranks.explain.causes.external_causes import AwaitsAnswers
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
from breakranks.explain.causes.process_causes import Stopped
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY, Finding
from breakranks.explain.finding_parts import Subject
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.rules import network_cut
from breakranks.explain.rules.candidate import FindingCandidate, direct, held_up, victims_evidence, waiting_place
from breakranks.explain.rules.rank_cause import PATIENCE_SECONDS, RankCause
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Host
from breakranks.snapshot.unseen_ranks import never_seen, reasons

Causes = dict[tuple[str, str, object], tuple[RankSet, RankCause]]
# With these states the host itself may be down. With the others it answers, and only the inspection failed.
_SILENT = ("unreachable", "timed-out", "lost")
# Logs of two hosts whose clocks differ less can still be compared by time.
_SKEW_SECONDS = 1.0
_SHOWN = 4


def unreachable(job: JobView, waiting: list[RankGroup]) -> list[FindingCandidate]:
    """Return candidates for ranks on hosts that could not be inspected, or were lost, while others wait for them."""
    found = []
    lost = never_seen(job.snapshot.hosts)
    if job.unreached and lost:
        found.append(_not_seen(job, job.unreached, lost, waiting))
    for host in (host for host in job.snapshot.hosts if host.state == "lost"):
        ranks = RankSet(rank.rank for rank in job.snapshot.ranks if rank.host == host.name)
        if ranks:
            found.append(_not_seen(job, ranks, [host], waiting))
    return [candidate for candidate in found if candidate is not None]


def _not_seen(job: JobView, ranks: RankSet, hosts: list[Host], waiting: list[RankGroup]) -> FindingCandidate | None:
    victims = job.victims_of(ranks) - lost_ranks(job) if waiting else RankSet()
    if not victims:
        return None
    nodes = [node for node in waiting if node.ranks & victims]
    exact = all(node.exact for node in direct(nodes, ranks))
    silent = all(host.state in _SILENT for host in hosts)
    # If it is not known for which ranks they wait, any other inspected rank that has not arrived may be the cause.
    others = any(node.ranks - ranks for node in job.roots())
    finding = Finding(
        kind="unreachable",
        culprits=str(ranks),
        victims=str(victims),
        confidence=LIKELY if silent and (exact or not others) else GUESS,
        cause=_unreached(hosts),
        subject=Subject(ranks=str(ranks)),
        held_up=held_up(job, ranks, victims, at=waiting_place(nodes, ranks)),
        victims_at=waiting_place(nodes, ranks),
        where=None,
        evidence=(*lost_facts(hosts), *network_cut.unanswered(job, hosts), *victims_evidence(job, nodes)),
        next=_remedies(hosts),
        grounds=("ranks-unseen",),
    )
    return FindingCandidate(finding=finding, needs=PATIENCE_SECONDS, culprits=ranks, victims=victims)


def _unreached(hosts: list[Host]) -> Unreached:
    return Unreached(hosts=lost_facts(hosts), lost=hosts[0].state == "lost")


def lost_facts(hosts: list[Host]) -> tuple[HostsLost, ...]:
    """Return the hosts by the reason why they could not be inspected."""
    return tuple(HostsLost(hosts=tuple(names), reason=reason) for reason, names in reasons(hosts).items())


def _remedies(hosts: list[Host]) -> tuple[Action, ...]:
    found = tuple(dict.fromkeys(host.remedy for host in hosts if host.remedy))[:_SHOWN]
    if not found:
        return (RunShell(script=f"ping -c 3 {hosts[0].name}"),)
    return tuple(FollowRemedy(remedy=remedy) for remedy in found)


def lost_ranks(job: JobView) -> RankSet:
    """Return the ranks of hosts that were lost during the inspection: their samples are old."""
    names = {host.name for host in job.snapshot.hosts if host.state == "lost"}
    return RankSet(rank.rank for rank in job.snapshot.ranks if rank.host in names) if names else RankSet()


def notes(job: JobView, known_findings: tuple[Finding, ...] = ()) -> tuple[Finding, ...]:
    """Return findings about the hosts that do not depend on the verdict."""
    found = [_skew(job)]
    lost = never_seen(job.snapshot.hosts)
    if job.unreached and lost and not any(finding.kind == "unreachable" for finding in known_findings):
        found.append(
            Finding(
                kind="unreachable",
                culprits=str(job.unreached),
                victims="",
                confidence=CERTAIN,
                cause=_unreached(lost),
                subject=Subject(ranks=str(job.unreached)),
                where=None,
                evidence=lost_facts(lost),
                next=_remedies(lost),
                grounds=("nothing-known",),
                informational=True,
            )
        )
    return tuple(finding for finding in found if finding is not None)


def _skew(job: JobView) -> Finding | None:
    """Return the hosts whose clock differs from that of most hosts: their logs cannot be compared by time, and
    certificates may fail."""
    known = [host for host in job.snapshot.hosts if host.state in ("seen", "lost")]
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
    if len(known) == 2:  # neither clock is the wrong one: the median is between them
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


def together(job: JobView, causes: Causes) -> Causes:
    """Return the causes with those joined that all ranks of a host share in kind but not in detail (a file or a line of
    their own): the cause is the host."""
    if not job.several:
        return causes
    by_host: dict[tuple[str, str], list[tuple[str, str, object]]] = {}
    for key, (ranks, _) in causes.items():
        hosts = job.hosts_of(ranks)
        if len(hosts) == 1 and key[0] in _JOINED:
            by_host.setdefault((hosts[0], key[0]), []).append(key)
    made = dict(causes)
    for (host, kind), keys in by_host.items():
        ranks = RankSet()
        for key in keys:
            ranks |= causes[key][0]
        if len(keys) < 2 or len(ranks) < len(job.ranks_on(host)):
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
                first._replace(
                    cause=cause,
                    evidence=evidence,
                    next=following[:_SHOWN],
                    where=None,
                    samples=max(reason.samples for reason in alike),
                ),
            )
    return made


_JOINED = ("blocked-io", "rank-stopped", "socket-wait")


def _joined(kind: str, abouts: list[str], alike: list[RankCause]) -> Cause | None:
    """Return the one cause that all of these are, if there is one."""
    if kind == "rank-stopped":
        return alike[0].cause if len({reason.cause for reason in alike}) == 1 else Stopped()
    if kind == "socket-wait":
        return AwaitsAnswers(peers=tuple(sorted(set(abouts))[:_SHOWN])) if all(abouts) else None
    folder = _common(abouts)
    asleep = all(isinstance(reason.cause, BlockedIo) and reason.cause.state == "D" for reason in alike)
    return BlockedBelow(folder=folder, uninterruptible=asleep) if folder else None


def _common(paths: list[str]) -> str:
    """Return the folder that contains all of these paths, unless it is the root."""
    if not all(path.startswith("/") for path in paths):
        return ""
    parts = [path.split("/")[1:-1] for path in paths]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "/" + "/".join(shared) if shared else ""
