"""unreachable, clock-skew, and what all ranks of one host have in common."""

from __future__ import annotations

from statistics import median

from breakranks.explain import phrases
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY, Finding
from breakranks.explain.job_view import JobView, RankGroup
from breakranks.explain.rules import network_cut
from breakranks.explain.rules.candidate import Candidate, direct, victims_evidence, wait_for, waiting_place
from breakranks.explain.rules.command_host import on
from breakranks.explain.rules.rank_cause import PATIENCE_SECONDS, RankCause
from breakranks.rankset import RankSet, ranks_text
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.missing_ranks import never_seen, reason_lines
from breakranks.snapshot.model import Host

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
        summary=f"{_what(ranks, hosts)}; {wait_for(case, ranks, victims)} in {waiting_place(nodes, ranks)}",
        where=None,
        evidence=(*reason_lines(hosts), *network_cut.unanswered(case, hosts), *victims_evidence(case, nodes)),
        next=_remedies(hosts),
        because="the others wait for ranks that could not be looked at; what those do is not known",
        victims_where=waiting_place(nodes, ranks),
    )
    return Candidate(finding=finding, needs=PATIENCE_SECONDS, culprits=ranks, victims=victims)


def _what(ranks: RankSet, hosts: list[Host]) -> str:
    names = fold(host.name for host in hosts)
    reasons = list(dict.fromkeys(host.reason or host.state.replace("-", " ") for host in hosts))
    why = reasons[0] if len(reasons) == 1 else "; ".join(reason_lines(hosts)[:_SHOWN])
    if hosts[0].state == "lost":
        return f"{names} was lost while it was looked at ({why}), and with it {ranks_text(ranks)}"
    each = "" if len(hosts) == 1 else f"the {len(hosts)} hosts "
    return f"{ranks_text(ranks)} could not be looked at: {each}{names}, {why}"


def _remedies(hosts: list[Host]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(host.remedy for host in hosts if host.remedy))
    return found[:_SHOWN] or (f"ping -c 3 {hosts[0].name}",)


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
                summary=_what(case.unreached, lost),
                where=None,
                evidence=tuple(reason_lines(lost)),
                next=_remedies(lost),
                because="nothing is known of these ranks",
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
    told = [
        f"{name} is {phrases.duration(abs(by))} {'ahead' if by > 0 else 'behind'}"
        for name, by in sorted(off.items(), key=lambda item: -abs(item[1]))
    ]
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    # Of two hosts neither is the odd one: the median is between them.
    text = f"the clocks of the hosts differ: {phrases.listed(told[:_SHOWN])}{more}"
    if len(known) == 2:
        first, second = sorted(known, key=lambda host: host.clock)
        text = f"the clock of {second.name} is {phrases.duration(second.clock - first.clock)} ahead of {first.name}'s"
    return Finding(
        kind="clock-skew",
        culprits="",
        victims="",
        confidence=CERTAIN,
        summary=text,
        where=None,
        evidence=(
            *(
                f"{host.name}: {host.clock:+.2f} s from here, to within {host.clock_error:.2f} s"
                for host in [host for host in known if host.name in off][:8]
            ),
            "the times that are shown here are corrected for it; those in the hosts' own logs are not",
        ),
        next=(on(next(iter(off)), "chronyc tracking"),),
        because="each clock was read while it was asked",
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
        reasons = [causes[key][1] for key in keys]
        text = _joined(kind, [key[1] for key in keys], reasons)
        if text:
            first = max(reasons, key=lambda reason: reason.needs)
            evidence = tuple(f"{ranks_text(causes[key][0])} {causes[key][1].text}" for key in keys[:_SHOWN])
            for key in keys:
                del made[key]
            following = tuple(dict.fromkeys(command for reason in reasons for command in reason.next))
            made[kind, host, first.where] = (
                ranks,
                first._replace(text=text, evidence=evidence, next=following[:_SHOWN], where=None),
            )
    return made


_JOINED = ("blocked-io", "rank-stopped", "socket-wait")


def _joined(kind: str, abouts: list[str], reasons: list[RankCause]) -> str:
    if kind == "rank-stopped":
        return reasons[0].text if len({reason.text for reason in reasons}) == 1 else "is stopped"
    if kind == "socket-wait":
        return f"waits for answers from {phrases.listed(sorted(set(abouts))[:_SHOWN])}" if all(abouts) else ""
    folder = _common(abouts)
    state = " (uninterruptible wait, state D)" if all("state D" in reason.text for reason in reasons) else ""
    return f"is blocked on files below {folder}{state}" if folder else ""


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
