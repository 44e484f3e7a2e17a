"""subprocess-wait, compile-wait, socket-wait, blocked-io: something outside the job is awaited."""

from __future__ import annotations

import shlex

from breakranks.explain import phrases
from breakranks.explain.diagnosis import CERTAIN, GUESS, LIKELY
from breakranks.explain.job_view import JobView
from breakranks.explain.process_view import ProcessView, look
from breakranks.explain.rules.rank_cause import MOVING_SECONDS, PATIENCE_SECONDS, SLOW_SECONDS, RankCause
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
            text=f"waits for a subprocess in {phrases.place(one.where)}, and has none any more",
            evidence=(
                "it has no child process: what it started has ended, or handed its pipe to a process of its own",
            ),
            next=(f"ls -l /proc/{one.process.pid}/fd",),
            confidence=LIKELY, needs=PATIENCE_SECONDS, where=one.where, because="its stack shows the wait",
        )  # fmt: skip
    child = children[-1]
    state = {"T": "stopped", "Z": "dead", "D": "in an uninterruptible wait"}.get(child.state, "")
    moving = any(works(process) for process in children)
    # Many a step calls a program that takes some seconds: one that has just begun says little.
    young = child.started > 0 and case.snapshot.time - child.started < MOVING_SECONDS
    command = phrases.command(child.command or (child.name,))
    return RankCause(
        kind="subprocess-wait",
        text=f"waits for its subprocess {child.pid} ({command}){', which is ' + state if state else ''}, "
        f"in {phrases.place(one.where)}",
        evidence=(
            f"subprocess {child.pid}: {command}",
            f"state {child.state}, {child.cpu_percent:.0f} % CPU"
            + (f", waits in {child.wchan}" if child.wchan else ""),
            *_its_stack(case, child),
        ),
        next=(f"kill {child.pid}  # if it is not wanted any more",),
        confidence=LIKELY if moving or young else CERTAIN,
        needs=MOVING_SECONDS if moving else SLOW_SECONDS if young else PATIENCE_SECONDS,
        where=one.where,
        because="its stack and its child show it"
        + (", and the child works" if moving else ", but the child has only just begun" if young else ""),
    )


def _its_stack(case: JobView, child: Process) -> tuple[str, ...]:
    """Where the subprocess itself is, if it is Python."""
    if not child.python or not child.samples:
        return ()
    its = look(case.snapshot, case.reader, child)
    return (f"it is {its.activity.phrase}, in {phrases.place(its.where)}",) if its.where is not None else ()


def _compile(case: JobView, one: ProcessView) -> RankCause:
    children = _children(one)
    child = max(children, key=lambda p: p.cpu_percent, default=None)
    what = f", process {child.pid} ({phrases.command(child.command or (child.name,), 60)})" if child is not None else ""
    return RankCause(
        kind="compile-wait",
        text=f"is compiling ({one.activity.op or one.activity.context}{what}), in {phrases.place(one.where)}",
        evidence=(
            f"{child.pid} uses {child.cpu_percent:.0f} % CPU"
            if child is not None
            else "it compiles in its own process",
        ),
        next=("wait for it, or build once before the job starts",),
        confidence=LIKELY,
        needs=PATIENCE_SECONDS,
        where=one.where,
        because="its stack is in the compiler",
    )


def _socket(case: JobView, one: ProcessView) -> RankCause | None:
    call = one.activity.call
    fd = call.fd if call is not None else -1
    found = next((s for s in one.process.sockets if s.fd == fd), None)
    if found is not None and found.status == "listening":
        return RankCause(
            kind="socket-wait",
            text=f"waits for somebody to connect to {found.local}, in {phrases.place(one.where)}",
            evidence=(f"listening on {found.local}, blocked in {call.name if call is not None else 'the kernel'}",),
            next=("look for the client that should come",),
            confidence=GUESS, needs=SLOW_SECONDS, where=one.where,
            because="if it is a server, this is how it should be", alone=False,
        )  # fmt: skip
    peer = _peer(found, one)
    moving = one.wakes or bytes_moved(one.process) > NOISE_BYTES
    queues = (
        (f"{found.protocol} {found.local} to {found.peer}, {found.status}, "
         f"{found.send_queue} bytes unsent, {found.receive_queue} unread"
         + (f"; sent again {found.retries} times without an answer" if found.retries > 1 else ""),)
        if found is not None and found.peer
        else ()
    )  # fmt: skip
    return RankCause(
        kind="socket-wait",
        text=f"waits for an answer from {peer}, in {phrases.place(one.where)}",
        evidence=(
            *queues,
            f"blocked in {call.name}" if call is not None else "its stack is in network code",
            *(("it is woken again and again: data comes in, slowly",) if moving else ()),
        ),
        next=(f"breakranks stacks pid:{one.process.pid} --native",),
        confidence=CERTAIN if found is not None and found.peer and not moving else LIKELY,
        needs=MOVING_SECONDS if moving else PATIENCE_SECONDS,
        where=one.where,
        because="the socket it reads is known" if found is not None else "its stack shows the wait",
    )


def _peer(found: Socket | None, one: ProcessView) -> str:
    if found is None or not found.peer:
        return one.activity.about or "the network"
    if found.peer_pid:
        return f"{found.peer} (process {found.peer_pid}, {phrases.command(found.peer_command, 60)})"
    return found.peer


def _io(case: JobView, one: ProcessView) -> RankCause | None:
    activity = one.activity
    call = activity.call
    samples = one.process.samples
    moved = bytes_moved(one.process)
    if one.state != "D" and not activity.about and activity.word != "io":
        return None
    what = activity.about or "a file"
    span = samples[-1].time - samples[0].time
    state = "uninterruptible wait, state D" if one.state == "D" else f"state {one.state}"
    steady = moved > NOISE_BYTES or one.wakes
    return RankCause(
        kind="blocked-io",
        text=f"is {activity.verb} {what} ({state}), in {phrases.place(one.where)}",
        evidence=(
            f"blocked in {call.name if call is not None else 'the kernel'}"
            + (f", kernel function {one.process.wchan}" if one.process.wchan else ""),
            f"{f'{moved:,}' if moved > 4096 else 'no'} bytes moved in {phrases.duration(span)}",
        ),
        next=(
            f"ls -l {shlex.quote(activity.about)}; findmnt -T {shlex.quote(activity.about)}"
            if activity.about.startswith("/") and activity.kind == "file"
            else f"ls -l /proc/{one.process.pid}/fd",
        ),
        confidence=LIKELY if steady else CERTAIN,
        needs=MOVING_SECONDS if steady else PATIENCE_SECONDS,
        where=one.where,
        because="its system call names the file",
    )  # fmt: skip
