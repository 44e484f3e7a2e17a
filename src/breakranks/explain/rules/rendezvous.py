"""rendezvous-incomplete, before there are ranks: the launcher itself waits for other hosts."""

from __future__ import annotations

from breakranks.explain.actions import Advise
from breakranks.explain.causes.collective_causes import Connecting, LauncherCommand, LauncherIn, LauncherWaits
from breakranks.explain.diagnosis import LIKELY, Finding
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import look
from breakranks.explain.rules.candidate import Candidate
from breakranks.explain.rules.host_faults import lost_facts
from breakranks.explain.rules.rank_cause import PATIENCE_SECONDS
from breakranks.explain.values import Subject
from breakranks.rankset import RankSet
from breakranks.snapshot.unseen_ranks import never_seen


def proposal(case: JobView) -> tuple[Candidate, float] | None:
    """What a launcher without ranks waits for, and for how long it has."""
    launcher = case.snapshot.launcher
    if case.snapshot.ranks or launcher is None or not launcher.samples:
        return None
    one = look(case.snapshot, case.reader, launcher)
    if one.activity.word not in ("rendezvous", "store"):
        return None
    connecting = [s for s in launcher.sockets if s.status == "connecting"]
    finding = Finding(
        kind="rendezvous-incomplete",
        culprits="",
        victims="",
        confidence=LIKELY,
        cause=LauncherWaits(
            launcher=case.snapshot.job.launcher, pid=launcher.pid, peer=connecting[0].peer if connecting else ""
        ),
        subject=Subject(ranks=""),
        where=None,
        evidence=(
            LauncherIn(op=one.activity.op, seconds=one.stands),
            LauncherCommand(command=" ".join(launcher.command)),
            *(Connecting(peer=socket.peer) for socket in connecting[:3]),
            *lost_facts(never_seen(case.snapshot.hosts)),
        ),
        next=(Advise(what="start-hosts"),),
        grounds=("launcher-stack",),
    )
    return Candidate(finding=finding, needs=PATIENCE_SECONDS, culprits=RankSet(), victims=RankSet()), one.stands
