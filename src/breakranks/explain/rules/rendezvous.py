"""rendezvous-incomplete, before there are ranks: the launcher waits for other hosts."""

from __future__ import annotations

from breakranks.explain.actions import Advise
from breakranks.explain.causes.collective_causes import Connecting, LauncherCommand, LauncherIn, LauncherWaits
from breakranks.explain.diagnosis import LIKELY, Finding
from breakranks.explain.finding_parts import Subject
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import inspect_process
from breakranks.explain.rules.candidate import FindingCandidate
from breakranks.explain.rules.host_faults import lost_facts
from breakranks.explain.rules.rank_cause import PATIENCE_SECONDS
from breakranks.rankset import RankSet
from breakranks.snapshot.unseen_ranks import never_seen


def proposal(job: JobView) -> tuple[FindingCandidate, float] | None:
    """Return what a launcher without ranks waits for, and for how many seconds it has waited."""
    launcher = job.snapshot.launcher
    if job.snapshot.ranks or launcher is None or not launcher.samples:
        return None
    view = inspect_process(job.snapshot, job.reader, launcher)
    if view.activity.word not in ("rendezvous", "store"):
        return None
    connecting = [s for s in launcher.sockets if s.status == "connecting"]
    finding = Finding(
        kind="rendezvous-incomplete",
        culprits="",
        victims="",
        confidence=LIKELY,
        cause=LauncherWaits(
            launcher=job.snapshot.job.launcher, pid=launcher.pid, peer=connecting[0].peer if connecting else ""
        ),
        subject=Subject(ranks=""),
        where=None,
        evidence=(
            LauncherIn(op=view.activity.op, seconds=view.stands),
            LauncherCommand(command=" ".join(launcher.command)),
            *(Connecting(peer=socket.peer) for socket in connecting[:3]),
            *lost_facts(never_seen(job.snapshot.hosts)),
        ),
        next=(Advise(what="start-hosts"),),
        grounds=("launcher-stack",),
    )
    return FindingCandidate(finding=finding, needs=PATIENCE_SECONDS, culprits=RankSet(), victims=RankSet()), view.stands
