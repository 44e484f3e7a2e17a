"""rendezvous-incomplete, before there are ranks: the launcher itself waits for other hosts."""

from __future__ import annotations

from breakranks.explain import words
from breakranks.explain.case import Case
from breakranks.explain.look import look
from breakranks.explain.model import LIKELY, Finding
from breakranks.explain.rules.proposal import Proposal
from breakranks.explain.rules.reason import PATIENCE
from breakranks.rankset import RankSet
from breakranks.snapshot.absent import never_seen, reason_lines


def proposal(case: Case) -> tuple[Proposal, float] | None:
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
        "rendezvous-incomplete",
        "",
        "",
        LIKELY,
        f"{name} waits for the other hosts to join, and has started no rank yet"
        + (f"; it cannot reach {connecting[0].peer}" if connecting else ""),
        None,
        (
            f"its stack is in {one.activity.op}, for {words.duration(one.stands)}",
            f"its command: {words.command(launcher.command, 200)}",
            *(f"connecting to {s.peer}, no answer yet" for s in connecting[:3]),
            *reason_lines(never_seen(case.snapshot.hosts)),
        ),
        ("start the job on the other hosts, with the same rendezvous endpoint or MASTER_ADDR and MASTER_PORT",),
        because="the launcher's own stack shows the wait",
    )
    return Proposal(finding, PATIENCE, RankSet(), RankSet()), one.stands
