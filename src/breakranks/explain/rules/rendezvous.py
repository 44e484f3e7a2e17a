"""rendezvous-incomplete, before there are ranks: the launcher itself waits for other hosts."""

from __future__ import annotations

from breakranks.explain import phrases
from breakranks.explain.diagnosis import LIKELY, Finding
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import look
from breakranks.explain.rules.candidate import Candidate
from breakranks.explain.rules.rank_cause import PATIENCE_SECONDS
from breakranks.rankset import RankSet
from breakranks.snapshot.missing_ranks import never_seen, reason_lines


def proposal(case: JobView) -> tuple[Candidate, float] | None:
    """What a launcher without ranks waits for, and for how long it has."""
    launcher = case.snapshot.launcher
    if case.snapshot.ranks or launcher is None or not launcher.samples:
        return None
    one = look(case.snapshot, case.reader, launcher)
    if one.activity.word not in ("rendezvous", "store"):
        return None
    connecting = [s for s in launcher.sockets if s.status == "connecting"]
    name = f"{case.snapshot.job.launcher} (pid {launcher.pid})"
    finding = Finding(
        kind="rendezvous-incomplete",
        culprits="",
        victims="",
        confidence=LIKELY,
        summary=f"{name} waits for the other hosts to join, and has started no rank yet"
        + (f"; it cannot reach {connecting[0].peer}" if connecting else ""),
        where=None,
        evidence=(
            f"its stack is in {one.activity.op}, for {phrases.duration(one.stands)}",
            f"its command: {phrases.command(launcher.command, 200)}",
            *(f"connecting to {s.peer}, no answer yet" for s in connecting[:3]),
            *reason_lines(never_seen(case.snapshot.hosts)),
        ),
        next=("start the job on the other hosts, with the same rendezvous endpoint or MASTER_ADDR and MASTER_PORT",),
        because="the launcher's own stack shows the wait",
    )
    return Candidate(finding=finding, needs=PATIENCE_SECONDS, culprits=RankSet(), victims=RankSet()), one.stands
