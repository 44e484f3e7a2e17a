"""subprocess-wait, compile-wait, socket-wait, blocked-io: a rank waits for something outside the job."""

from __future__ import annotations

import shlex

from breakranks.explain.actions import Action, Advise, RunShell, stacks_of
from breakranks.explain.causes import Fact
from breakranks.explain.causes.external_causes import (
    AwaitsAnswer,
    AwaitsConnection,
    CompilerLoad,
    Compiling,
    InNetworkCode,
    ListensOn,
    NoChild,
    ProcessLoad,
    SocketQueues,
    SubprocessCommand,
    SubprocessDoing,
    SubprocessGone,
    SubprocessWait,
    WokenAgain,
)
from breakranks.explain.causes.file_causes import BlockedIn, BlockedIo, BytesMoved
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY
from breakranks.explain.finding_parts import where_of
from breakranks.explain.frame_meanings import CPP_EXTENSION
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView, inspect_process
from breakranks.explain.rules.rank_cause import MOVING_SECONDS, PATIENCE_SECONDS, SLOW_SECONDS, RankCause
from breakranks.snapshot.model import Process, Sample, Socket, family

NOISE_BYTES = 4096
_RECENT_SECONDS = 2.0


def reason(job: JobView, view: ProcessView) -> RankCause | None:
    rule = {
        "subprocess": _subprocess,
        "compile": _compile,
        "socket": _socket,
        "io": _io,
        "checkpoint": _io,
    }.get(view.activity.word)
    if view.activity.word not in ("subprocess", "compile", "socket") and _is_uninterruptible(view):
        rule = _io
    return rule(job, view) if rule is not None else None


def recently(process: Process) -> tuple[Sample, Sample] | None:
    """Return the newest sample, and the newest that is two seconds older (or the first). What happened before a job
    hung says nothing about whether it moves now."""
    if len(process.samples) < 2:
        return None
    last = process.samples[-1]
    older = [sample for sample in process.samples[:-1] if last.time - sample.time >= _RECENT_SECONDS]
    return (older[-1] if older else process.samples[0]), last


def bytes_moved(process: Process) -> int:
    """Return how many bytes a process has read and written recently."""
    pair = recently(process)
    if pair is None:
        return 0
    first, last = pair
    return last.read_bytes - first.read_bytes + last.write_bytes - first.write_bytes


def works(process: Process) -> bool:
    """Whether a process or a process below it was active recently: it used a CPU, moved bytes, or was started."""
    for child in family(process):
        pair = recently(child)
        if pair is None:
            if child.pid != process.pid and child.state not in "TtZX":
                return True
        elif pair[1].cpu - pair[0].cpu > 0.05 or bytes_moved(child) > NOISE_BYTES:
            return True
    return False


def _children(view: ProcessView) -> list[Process]:
    return [
        p for p in family(view.process) if p.pid != view.process.pid and "resource_tracker" not in " ".join(p.command)
    ]


def _subprocess(job: JobView, view: ProcessView) -> RankCause:
    if view.activity.context == CPP_EXTENSION:
        return _compile(job, view)
    children = _children(view)
    if not children:
        return RankCause(
            kind="subprocess-wait",
            cause=SubprocessGone(where=where_of(view.where)),
            evidence=(NoChild(),),
            next=(RunShell(script=f"ls -l /proc/{view.process.pid}/fd"),),
            confidence=LIKELY,
            needs=PATIENCE_SECONDS,
            where=view.where,
            grounds=("wait-on-stack",),
        )
    child = children[-1]
    moving = any(works(process) for process in children)
    # A healthy step may call a program that takes some seconds, so a young subprocess proves little.
    young = child.started > 0 and job.snapshot.time - child.started < MOVING_SECONDS
    command = command_of(child)
    return RankCause(
        kind="subprocess-wait",
        cause=SubprocessWait(pid=child.pid, command=command, state=child.state, where=where_of(view.where)),
        evidence=(
            SubprocessCommand(pid=child.pid, command=command),
            ProcessLoad(state=child.state, cpu_percent=child.cpu_percent, kernel=child.wchan),
            *_its_stack(job, child),
        ),
        next=(RunShell(script=f"kill {child.pid}", comment="if it is no longer needed"),),
        confidence=LIKELY if moving or young else CERTAIN,
        needs=MOVING_SECONDS if moving else SLOW_SECONDS if young else PATIENCE_SECONDS,
        where=view.where,
        grounds=("child-seen", *(("child-works",) if moving else ("child-young",) if young else ())),
    )


def command_of(process: Process) -> str:
    return " ".join(process.command or (process.name,))


def _its_stack(job: JobView, child: Process) -> tuple[Fact, ...]:
    """Return what the subprocess is doing, if it runs Python."""
    if not child.python or not child.samples:
        return ()
    its = inspect_process(job.snapshot, job.reader, child)
    return (SubprocessDoing(doing=its.doing),) if its.where is not None else ()


def _compile(job: JobView, view: ProcessView) -> RankCause:
    children = _children(view)
    child = max(children, key=lambda p: p.cpu_percent, default=None)
    return RankCause(
        kind="compile-wait",
        cause=Compiling(
            what=view.activity.op or view.activity.context,
            pid=child.pid if child is not None else 0,
            command=command_of(child) if child is not None else "",
            where=where_of(view.where),
        ),
        evidence=(CompilerLoad(pid=child.pid, cpu_percent=child.cpu_percent) if child is not None else CompilerLoad(),),
        next=(Advise(what="wait-or-build"),),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=view.where,
        grounds=("in-compiler",),
    )


def _socket(job: JobView, view: ProcessView) -> RankCause | None:
    call = view.activity.call
    fd = call.fd if call is not None else -1
    found = next((s for s in view.process.sockets if s.fd == fd), None)
    if found is not None and found.status == "listening":
        return RankCause(
            kind="socket-wait",
            cause=AwaitsConnection(local=found.local, where=where_of(view.where)),
            evidence=(ListensOn(local=found.local, call=call.name if call is not None else ""),),
            next=(Advise(what="find-client"),),
            confidence=GUESS,
            needs=SLOW_SECONDS,
            where=view.where,
            grounds=("may-be-server",),
            alone=False,
        )
    moving = view.wakes or bytes_moved(view.process) > NOISE_BYTES
    return RankCause(
        kind="socket-wait",
        cause=_peer(found, view),
        evidence=(
            *_queues(found),
            BlockedIn(call=call.name) if call is not None else InNetworkCode(),
            *((WokenAgain(),) if moving else ()),
        ),
        next=(stacks_of(view.process.pid, "--native"),),
        confidence=CERTAIN if found is not None and found.peer and not moving else LIKELY,
        needs=MOVING_SECONDS if moving else PATIENCE_SECONDS,
        where=view.where,
        grounds=("socket-known" if found is not None else "wait-on-stack",),
    )


def _peer(found: Socket | None, view: ProcessView) -> AwaitsAnswer:
    where = where_of(view.where)
    if found is None or not found.peer:
        return AwaitsAnswer(peer=view.activity.about, peer_pid=0, peer_command="", where=where)
    return AwaitsAnswer(peer=found.peer, peer_pid=found.peer_pid, peer_command=found.peer_command, where=where)


def _queues(found: Socket | None) -> tuple[Fact, ...]:
    if found is None or not found.peer:
        return ()
    queues = SocketQueues(
        protocol=found.protocol,
        local=found.local,
        peer=found.peer,
        status=found.status,
        unsent=found.send_queue,
        unread=found.receive_queue,
        retries=found.retries,
    )
    return (queues,)


def _io(job: JobView, view: ProcessView) -> RankCause | None:
    activity = view.activity
    call = activity.call
    samples = view.process.samples
    moved = bytes_moved(view.process)
    uninterruptible = _is_uninterruptible(view)
    if not uninterruptible and not activity.about and activity.word != "io":
        return None
    span = samples[-1].time - samples[0].time
    steady = moved > NOISE_BYTES or view.wakes
    return RankCause(
        kind="blocked-io",
        cause=BlockedIo(
            verb=activity.verb,
            about=activity.about,
            peer=activity.peer,
            state=view.state,
            where=where_of(view.where),
        ),
        evidence=(
            BlockedIn(call=call.name if call is not None else "", kernel=view.process.wchan),
            BytesMoved(count=moved if moved > NOISE_BYTES else 0, seconds=span),
        ),
        next=(_look_at_file(view),),
        confidence=LIKELY if steady else CERTAIN,
        needs=MOVING_SECONDS if steady else PATIENCE_SECONDS,
        where=view.where,
        grounds=("call-names-file" if activity.about else "kernel-state" if uninterruptible else "call-known",),
    )


def _is_uninterruptible(view: ProcessView) -> bool:
    """Whether it is in an uninterruptible wait, and not only for an instant: a page fault takes one too."""
    states = [sample.state for sample in view.process.samples[-3:]]
    return view.state == "D" and (bool(view.activity.about) or 2 * states.count("D") > len(states))


def _look_at_file(view: ProcessView) -> Action:
    path = view.activity.about
    if path.startswith("/") and view.activity.kind == "file":
        return RunShell(script=f"ls -l {shlex.quote(path)}; findmnt -T {shlex.quote(path)}")
    return RunShell(script=f"ls -l /proc/{view.process.pid}/fd")
