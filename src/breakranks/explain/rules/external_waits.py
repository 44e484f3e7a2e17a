"""subprocess-wait, compile-wait, socket-wait, blocked-io: something outside the job is awaited."""

from __future__ import annotations

import shlex

from breakranks.explain.actions import Action, Advise, RunShell, stacks_of
from breakranks.explain.causes import Fact
from breakranks.explain.causes.file_causes import BlockedIn, BlockedIo, BytesMoved
from breakranks.explain.causes.outside_causes import (
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
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView, look
from breakranks.explain.rules.rank_cause import MOVING_SECONDS, PATIENCE_SECONDS, SLOW_SECONDS, RankCause
from breakranks.explain.values import where_of
from breakranks.snapshot.model import Process, Sample, Socket, family

NOISE_BYTES = 4096
_RECENT_SECONDS = 2.0


def reason(case: JobView, one: ProcessView) -> RankCause | None:
    rule = {
        "subprocess": _subprocess,
        "compile": _compile,
        "socket": _socket,
        "io": _io,
        "checkpoint": _io,
    }.get(one.activity.word)
    if one.activity.word not in ("subprocess", "compile", "socket") and one.state == "D":
        rule = _io
    return rule(case, one) if rule is not None else None


def recently(process: Process) -> tuple[Sample, Sample] | None:
    """The newest sample, and the newest that is two seconds older (or the first): what happened before a job got
    stuck says nothing about whether it moves now."""
    if len(process.samples) < 2:
        return None
    last = process.samples[-1]
    older = [sample for sample in process.samples[:-1] if last.time - sample.time >= _RECENT_SECONDS]
    return (older[-1] if older else process.samples[0]), last


def bytes_moved(process: Process) -> int:
    """Bytes that a process read and wrote lately."""
    pair = recently(process)
    if pair is None:
        return 0
    first, last = pair
    return last.read_bytes - first.read_bytes + last.write_bytes - first.write_bytes


def works(process: Process) -> bool:
    """Whether a process or anything below it did something lately: used a CPU, moved bytes, or was born."""
    for one in family(process):
        pair = recently(one)
        if pair is None:
            if one.pid != process.pid and one.state not in "TtZX":
                return True
        elif pair[1].cpu - pair[0].cpu > 0.05 or bytes_moved(one) > NOISE_BYTES:
            return True
    return False


def _children(one: ProcessView) -> list[Process]:
    return [
        p for p in family(one.process) if p.pid != one.process.pid and "resource_tracker" not in " ".join(p.command)
    ]


def _subprocess(case: JobView, one: ProcessView) -> RankCause:
    if "C++ extension" in one.activity.context:
        return _compile(case, one)
    children = _children(one)
    if not children:
        return RankCause(
            kind="subprocess-wait",
            cause=SubprocessGone(where=where_of(one.where)),
            evidence=(NoChild(),),
            next=(RunShell(script=f"ls -l /proc/{one.process.pid}/fd"),),
            confidence=LIKELY,
            needs=PATIENCE_SECONDS,
            where=one.where,
            grounds=("wait-on-stack",),
        )
    child = children[-1]
    moving = any(works(process) for process in children)
    # Many a step calls a program that takes some seconds: one that has just begun says little.
    young = child.started > 0 and case.snapshot.time - child.started < MOVING_SECONDS
    command = command_of(child)
    return RankCause(
        kind="subprocess-wait",
        cause=SubprocessWait(pid=child.pid, command=command, state=child.state, where=where_of(one.where)),
        evidence=(
            SubprocessCommand(pid=child.pid, command=command),
            ProcessLoad(state=child.state, cpu_percent=child.cpu_percent, kernel=child.wchan),
            *_its_stack(case, child),
        ),
        next=(RunShell(script=f"kill {child.pid}", comment="if it is not wanted any more"),),
        confidence=LIKELY if moving or young else CERTAIN,
        needs=MOVING_SECONDS if moving else SLOW_SECONDS if young else PATIENCE_SECONDS,
        where=one.where,
        grounds=("child-seen", *(("child-works",) if moving else ("child-young",) if young else ())),
    )


def command_of(process: Process) -> str:
    return " ".join(process.command or (process.name,))


def _its_stack(case: JobView, child: Process) -> tuple[Fact, ...]:
    """Where the subprocess itself is, if it is Python."""
    if not child.python or not child.samples:
        return ()
    its = look(case.snapshot, case.reader, child)
    return (SubprocessDoing(doing=its.doing),) if its.where is not None else ()


def _compile(case: JobView, one: ProcessView) -> RankCause:
    children = _children(one)
    child = max(children, key=lambda p: p.cpu_percent, default=None)
    return RankCause(
        kind="compile-wait",
        cause=Compiling(
            what=one.activity.op or one.activity.context,
            pid=child.pid if child is not None else 0,
            command=command_of(child) if child is not None else "",
            where=where_of(one.where),
        ),
        evidence=(CompilerLoad(pid=child.pid, cpu_percent=child.cpu_percent) if child is not None else CompilerLoad(),),
        next=(Advise(what="wait-or-build"),),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=one.where,
        grounds=("in-compiler",),
    )


def _socket(case: JobView, one: ProcessView) -> RankCause | None:
    call = one.activity.call
    fd = call.fd if call is not None else -1
    found = next((s for s in one.process.sockets if s.fd == fd), None)
    if found is not None and found.status == "listening":
        return RankCause(
            kind="socket-wait",
            cause=AwaitsConnection(local=found.local, where=where_of(one.where)),
            evidence=(ListensOn(local=found.local, call=call.name if call is not None else ""),),
            next=(Advise(what="find-client"),),
            confidence=GUESS,
            needs=SLOW_SECONDS,
            where=one.where,
            grounds=("may-be-server",),
            alone=False,
        )
    moving = one.wakes or bytes_moved(one.process) > NOISE_BYTES
    return RankCause(
        kind="socket-wait",
        cause=_peer(found, one),
        evidence=(
            *_queues(found),
            BlockedIn(call=call.name) if call is not None else InNetworkCode(),
            *((WokenAgain(),) if moving else ()),
        ),
        next=(stacks_of(one.process.pid, "--native"),),
        confidence=CERTAIN if found is not None and found.peer and not moving else LIKELY,
        needs=MOVING_SECONDS if moving else PATIENCE_SECONDS,
        where=one.where,
        grounds=("socket-known" if found is not None else "wait-on-stack",),
    )


def _peer(found: Socket | None, one: ProcessView) -> AwaitsAnswer:
    where = where_of(one.where)
    if found is None or not found.peer:
        return AwaitsAnswer(peer=one.activity.about, peer_pid=0, peer_command="", where=where)
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


def _io(case: JobView, one: ProcessView) -> RankCause | None:
    activity = one.activity
    call = activity.call
    samples = one.process.samples
    moved = bytes_moved(one.process)
    if one.state != "D" and not activity.about and activity.word != "io":
        return None
    span = samples[-1].time - samples[0].time
    steady = moved > NOISE_BYTES or one.wakes
    return RankCause(
        kind="blocked-io",
        cause=BlockedIo(verb=activity.verb, about=activity.about, state=one.state, where=where_of(one.where)),
        evidence=(
            BlockedIn(call=call.name if call is not None else "", kernel=one.process.wchan),
            BytesMoved(count=moved if moved > NOISE_BYTES else 0, seconds=span),
        ),
        next=(_look_at_file(one),),
        confidence=LIKELY if steady else CERTAIN,
        needs=MOVING_SECONDS if steady else PATIENCE_SECONDS,
        where=one.where,
        grounds=("call-names-file",),
    )


def _look_at_file(one: ProcessView) -> Action:
    path = one.activity.about
    if path.startswith("/") and one.activity.kind == "file":
        return RunShell(script=f"ls -l {shlex.quote(path)}; findmnt -T {shlex.quote(path)}")
    return RunShell(script=f"ls -l /proc/{one.process.pid}/fd")
