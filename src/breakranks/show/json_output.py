"""The answers as JSON: schema 1. It stays compatible: fields are added, never renamed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from breakranks.explain.diagnosis import Diagnosis, Finding, RankClass
from breakranks.explain.finding_parts import Where
from breakranks.explain.wait_chains import common_report, reporting_processes
from breakranks.rankset import RankSet
from breakranks.show.lost_host_lines import lost_hosts
from breakranks.show.wording.finding_wording import because, evidence_lines, label, next_lines, summary
from breakranks.show.wording.introspection_wording import report_text
from breakranks.snapshot.debugger_threads import is_agent_thread
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.model import Frame, Problem, Process, Snapshot, Thread, family
from breakranks.snapshot.prefix_tree import classes, frames_of

SCHEMA = 1
Object = dict[str, object]


def why_json(snapshot: Snapshot, diagnosis: Diagnosis) -> Object:
    """Return what ``why --json`` prints, as docs/json.md describes it."""
    findings = list(diagnosis.findings)
    if diagnosis.verdict is not None:
        findings = [diagnosis.verdict, *(finding for finding in findings if finding != diagnosis.verdict)]
    return {
        "schema": SCHEMA,
        "job": job_json(snapshot),
        "verdict": None if diagnosis.verdict is None else finding_json(diagnosis.verdict),
        "findings": [finding_json(finding) for finding in findings],
        "classes": [class_json(rank_class) for rank_class in diagnosis.classes],
        "settled": diagnosis.settled,
        "why_not_settled": summary(diagnosis.pending) if diagnosis.pending is not None else "",
        "problems": _problems(snapshot),
        "time": snapshot.time,
    }


def job_json(snapshot: Snapshot) -> Object:
    """Return the job; ``unseen`` are the ranks that should exist and were not seen."""
    unseen = RankSet()
    for missing in snapshot.missing:
        unseen |= RankSet.parse(missing.ranks)
    job = snapshot.job
    hosts = [host.name for host in snapshot.hosts if host.state in ("seen", "lost")]
    hosts = hosts or [rank.host for rank in snapshot.ranks if rank.host]
    return {
        "launcher": job.launcher,
        "world_size": job.world_size,
        "hosts": fold_hosts(hosts),
        "ranks": str(RankSet(rank.rank for rank in snapshot.ranks)),
        "unseen": str(unseen),
        "key": job.key,
        # The oldest call in a dump is not the start of the job.
        "started": 0.0 if snapshot.of_dumps else job.started,
        "command": list(job.command),
        "missing": [{"ranks": m.ranks, "reason": m.reason, "detail": m.detail} for m in snapshot.missing],
        "lost_hosts": [
            {"hosts": fold_hosts(names), "state": state, "reason": reason, "remedy": remedy}
            for (state, reason, remedy), names in lost_hosts(snapshot.hosts).items()
        ],
        "clocks": {host.name: host.clock for host in snapshot.hosts if host.clock},
    }


def finding_json(finding: Finding) -> Object:
    """Return a finding: its sentences, and the data that they were made of: ``cause``, ``facts``, ``actions``,
    ``grounds``."""
    return {
        "kind": finding.kind,
        "culprits": finding.culprits,
        "victims": finding.victims,
        "confidence": finding.confidence,
        "summary": summary(finding),
        "where": where_json(finding.where),
        "evidence": evidence_lines(finding),
        "next": next_lines(finding),
        "because": because(finding),
        "cause": msgspec.to_builtins(finding.cause),
        "subject": msgspec.to_builtins(finding.subject),
        "facts": msgspec.to_builtins(finding.evidence),
        "actions": msgspec.to_builtins(finding.next),
        "grounds": list(finding.grounds),
    }


def where_json(where: Where | None) -> Object | None:
    if where is None:
        return None
    return {"function": where.function, "file": where.file, "line": where.line}


def class_json(rank_class: RankClass) -> Object:
    return {
        "ranks": rank_class.ranks,
        "activity": rank_class.activity,
        "frames": [frame_json(frame) for frame in rank_class.frames],
        "label": label(rank_class),
        "state": rank_class.state,
        "moving": rank_class.moving,
        "idle": rank_class.idle,
        "where": where_json(rank_class.where),
        "note": report_text(rank_class.reported),
        "doing": msgspec.to_builtins(rank_class.doing),
    }


def frame_json(frame: Frame) -> Object:
    made: Object = {"function": frame.function, "file": frame.file, "line": frame.line}
    if frame.native:
        made["native"] = True
    return made


def stacks_json(
    snapshot: Snapshot,
    *,
    ranks: RankSet | None = None,
    threads: bool = False,
    native: bool = False,
    full: bool = False,
) -> Object:
    """Return what ``stacks --json`` prints: the classes with their frames, outermost first. ``threads`` adds every
    thread of every rank."""
    reporting = reporting_processes(snapshot)
    made: Object = {
        "schema": SCHEMA,
        "job": job_json(snapshot),
        "classes": [
            {
                "ranks": str(found),
                "frames": [frame_json(f) for f in frames_of(snapshot, row, full=full)],
                "note": report_text(common_report(reporting, found)),
            }
            for row, found in classes(snapshot, ranks=ranks, native=native)
        ],
        "problems": _problems(snapshot),
        "time": snapshot.time,
    }
    if threads:
        made["threads"] = [
            {
                **thread_json(snapshot, rank.rank, thread, native=native, full=full),
                **inside_json(rank.process, thread),
            }
            for rank in snapshot.ranks
            if (ranks is None or rank.rank in ranks) and rank.process.samples
            for index, thread in enumerate(rank.process.samples[-1].threads)
            if (thread.python or native) and (full or not index or not is_agent_thread(snapshot, thread))
        ]
    return made


def thread_json(snapshot: Snapshot, rank: int, thread: Thread, *, native: bool, full: bool) -> Object:
    row = (thread.native or thread.stack) if native else thread.stack
    return {
        "rank": rank,
        "tid": thread.tid,
        "name": thread.name,
        "state": thread.state,
        "gil": thread.gil,
        "idle": thread.idle,
        "frames": [frame_json(frame) for frame in frames_of(snapshot, row, full=full)],
    }


def inside_json(process: Process, thread: Thread) -> Object:
    """Return what introspection shows for a thread: what it waits for, and its loop counters."""
    inside = process.inside
    if inside is None:
        return {}
    names = {thread.tid: thread.name for thread in process.samples[-1].threads}
    wait = inside.wait_of(thread.tid)
    made: Object = {
        "loops": [
            {"function": loop.function, "file": loop.file, "values": dict(zip(loop.names, loop.values, strict=True))}
            for loop in inside.loops
            if loop.tid == thread.tid
        ]
    }
    if wait is not None:
        owner = {"tid": wait.owner, "name": names.get(wait.owner, ""), "known_by": wait.proof} if wait.owner else None
        made["waits_for"] = {"kind": wait.kind, "name": wait.name, "state": wait.state, "owner": owner}
    return made


def ps_json(snapshots: Sequence[Snapshot], ranks: RankSet | None = None, problems: Sequence[Problem] = ()) -> Object:
    """Return what ``ps --json`` prints: every job with the processes of its ranks."""
    return {
        "schema": SCHEMA,
        "jobs": [
            {
                **job_json(snapshot),
                "processes": [
                    {"rank": rank.rank, "host": rank.host, **process_json(rank.process)}
                    for rank in snapshot.ranks
                    if ranks is None or rank.rank in ranks
                ],
                "problems": _problems(snapshot),
            }
            for snapshot in snapshots
        ],
        "problems": [_problem(problem) for problem in problems],
    }


def process_json(process: Process) -> Object:
    return {
        "pid": process.pid,
        "state": process.state,
        "cpu_percent": round(process.cpu_percent, 1),
        "rss": process.rss,
        "started": process.started,
        "user": process.user,
        "command": list(process.command),
        "helpers": [
            {"pid": child.pid, "name": child.name, "state": child.state, "command": list(child.command)}
            for child in family(process)
            if child is not process
        ],
        "problems": [_problem(problem) for problem in process.problems],
    }


def fold_hosts(names: list[str]) -> str:
    """Return host names folded: ``n[1-3,7]``, or ``a,b`` for names without a number."""
    return fold(names)


def _problems(snapshot: Snapshot) -> list[Object]:
    found: dict[Problem, None] = dict.fromkeys(snapshot.problems)
    for rank in snapshot.ranks:
        found.update(dict.fromkeys(rank.process.problems))
    return [_problem(problem) for problem in found]


def _problem(problem: Problem) -> Object:
    return {"what": problem.what, "remedy": problem.remedy}


def to_text(value: Object) -> str:
    """Return JSON with an indent and a final newline. Names that cannot be decoded are shown with ``?``."""
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        from breakranks.snapshot.snapshot_file import printable

        data = msgspec.json.encode(printable(value))
    return msgspec.json.format(data, indent=2).decode() + "\n"
