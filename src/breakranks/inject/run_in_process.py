"""Run a payload, a small piece of Python code, in a live Python process, and return its answer.

    >>> ask(4711, "echo", {"word": "hello"})  # doctest: +SKIP
    b'{"given": {"word": "hello"}, "pid": 4711, "threads": 9}'

The process needs no preparation, is left unchanged, and is safe even if breakranks is killed at any moment:
docs/inject.md.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterable, Mapping

from breakranks.inject import mailbox, sys_remote_exec, target_process, thread_hijack
from breakranks.inject.inject_errors import (
    GilHeld,
    InjectedCodeFailed,
    InjectError,
    InjectRefused,
    InjectTimeout,
    ProcessGone,
)
from breakranks.inject.mailbox import Mailbox
from breakranks.inject.stub import THREAD_NAME
from breakranks.log import Log, milliseconds
from breakranks.machine_suspension import stalled
from breakranks.observe import process_state, pyspy_parse
from breakranks.observe.pyspy_parse import PythonThread
from breakranks.observe.sigcont_guard import Watchdog

__all__ = ["InjectError", "InjectRefused", "InjectTimeout", "InjectedCodeFailed", "ProcessGone", "ask", "ask_many"]

_log = Log("inject")
_NOTHING: Mapping[str, object] = {}
_NOT_INITIALIZED = -3  # what the stub returns if Python is not initialized
# Between tries to find a waiting thread, as long as a pending call has not run.
_RETRY_SECONDS = 0.03
# Until the main thread is made to release the GIL the first time. Later waits are longer and longer.
_STARVED_SECONDS = 0.15
# Until the process is checked for a thread that sleeps with the GIL held.
_GIL_CHECK_SECONDS = 1.0
# How long after the deadline the injected code may still start, if the injector still waits: this machine may have
# been suspended.
_SLACK_SECONDS = 60.0
# How long the injected thread may take to end, and the stub to be removed, after the answer.
_CLEANUP_SECONDS = 0.5


def ask(
    pid: int,
    payload: str,
    arguments: Mapping[str, object] = _NOTHING,
    *,
    deadline: float = 5.0,
    gil_held: str = "",
    dog: Watchdog | None = None,
) -> bytes:
    """Return the answer of ``rank/payloads/{payload}.py``, run in process ``pid``; raise InjectError without one.

    ``gil_held`` is the name of a thread known to hold the GIL in C code; then nothing is injected.
    """
    held = {pid: gil_held} if gil_held else {}
    found = ask_many([pid], payload, arguments, deadline=deadline, gil_held=held, dog=dog)[pid]
    if isinstance(found, InjectError):
        raise found
    return found


def ask_many(
    pids: Iterable[int],
    payload: str,
    arguments: Mapping[str, object] = _NOTHING,
    *,
    deadline: float = 5.0,
    each: Mapping[int, Mapping[str, object]] | None = None,
    gil_held: Mapping[int, str] | None = None,
    dog: Watchdog | None = None,
) -> dict[int, bytes | InjectError]:
    """Return the answers of many processes, all within one deadline. ``each`` adds arguments for single processes."""
    request = _Request(
        pids=list(dict.fromkeys(pids)),
        text=mailbox.payload(payload),
        arguments=arguments,
        deadline=deadline,
        gil_held=gil_held or {},
        dog=dog,
    )
    request.each = each or {}
    # In an OS thread of its own: when that ends, in whatever way, the kernel detaches it from all traced threads.
    thread = threading.Thread(target=request.run, name="breakranks-ask")
    thread.start()
    try:
        thread.join()
    except BaseException:
        request.stop.set()
        thread.join()
        raise
    if request.error is not None:
        raise request.error
    _log_answers(payload, request)
    return request.answers


def _log_answers(payload: str, request: _Request) -> None:
    refused = 0
    for pid, answer in request.answers.items():
        if isinstance(answer, InjectError):
            refused += 1
            _log.info("not injected", payload=payload, pid=pid, why=answer.message)
        else:
            _log.debug("injected", payload=payload, pid=pid, bytes=len(answer))
    pids = ",".join(map(str, request.pids))
    answered = len(request.answers) - refused
    took = milliseconds(request.begun)
    _log.info("injection done", payload=payload, pids=pids, answered=answered, refused=refused, ms=took)


class _OpenProcess:
    """One process into which the payload is injected."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.identity = process_state.start_ticks(pid)
        self.lock = -1
        self.threads: set[str] = set()
        self.mailbox: Mailbox | None = None
        self.target: target_process.TargetProcess | None = None
        self.visits: list[thread_hijack.HijackedThread] = []
        self.next_try = self.patience = 0.0
        self.gil_checked = False

    def gone(self) -> bool:
        now, started = process_state.state_and_start(self.pid)
        return now in "XZ" or started != self.identity


class _Request:
    """One call of ask_many."""

    def __init__(
        self,
        *,
        pids: list[int],
        text: str,
        arguments: Mapping[str, object],
        deadline: float,
        gil_held: Mapping[int, str],
        dog: Watchdog | None,
    ) -> None:
        self.pids = pids
        self.text = text
        self.arguments = arguments
        self.deadline = deadline
        self.gil_held = gil_held
        self.dog = dog
        self.each: Mapping[int, Mapping[str, object]] = {}
        self.stop = threading.Event()
        self.answers: dict[int, bytes | InjectError] = {}
        self.error: BaseException | None = None
        self.begun = time.monotonic()
        self.end = self.begun + deadline
        self.limit = time.time() + deadline + _SLACK_SECONDS

    def run(self) -> None:
        opened: list[_OpenProcess] = []
        try:
            for pid in self.pids:
                process = _OpenProcess(pid)
                opened.append(process)
                try:
                    self._begin(process)
                except InjectError as error:
                    self.answers[pid] = error
                except OSError as error:
                    self.answers[pid] = (
                        ProcessGone(pid)
                        if process.gone()
                        else InjectRefused(f"no code can be injected into process {pid}: {error}")
                    )
            self._wait(opened)
        except BaseException as error:
            self.error = error
        finally:
            for process in opened:
                self._finish(process)

    def _begin(self, process: _OpenProcess) -> None:
        pid = process.pid
        if not process.identity:
            raise ProcessGone(pid)
        if self.gil_held.get(pid):
            raise InjectRefused(
                f"thread {self.gil_held[pid]} of process {pid} holds the GIL in C code: no Python code can run in the "
                "process",
                "See its native stack: breakranks stacks --native",
            )
        if self.dog is not None:
            self.dog.guard(pid)
        self._lock(process)
        began = time.monotonic()
        process.target = target_process.read(pid)
        process.threads = set(os.listdir(f"/proc/{pid}/task"))
        arguments = {**self.arguments, **self.each.get(pid, {})}
        process.mailbox = Mailbox(
            pid=pid, owner=target_process.owner(pid), text=self.text, arguments=arguments, limit=self.limit
        )
        visit = thread_hijack.enter(process.target, process.mailbox.source, lambda: _remote_exec(process))
        process.visits += [] if visit is None else [visit]
        process.next_try = time.monotonic() + _RETRY_SECONDS
        process.patience = time.monotonic() + _STARVED_SECONDS
        self.end += stalled(time.monotonic() - began, 0.0)

    def _lock(self, process: _OpenProcess) -> None:
        """Lock the process against other injectors. The kernel releases the lock when this process ends."""
        process.lock = os.open(f"/proc/{process.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(process.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.end += time.monotonic() - began  # the wait for the lock is not counted against the process
                return
            except BlockingIOError:
                if time.monotonic() > self.end or self.stop.is_set():
                    raise InjectRefused(
                        f"another breakranks is injecting code into process {process.pid}", "Try again."
                    ) from None
                self._sleep(0.005)

    def _wait(self, opened: list[_OpenProcess]) -> None:
        pause = 0.0005
        waiting = [process for process in opened if process.pid not in self.answers]
        last = time.monotonic()
        while waiting:
            for process in list(waiting):
                assert process.mailbox is not None
                try:
                    answer = process.mailbox.answer()
                except InjectedCodeFailed as error:
                    self.answers[process.pid] = error
                else:
                    if answer is not None:
                        self.answers[process.pid] = answer
                    elif process.gone():
                        self.answers[process.pid] = ProcessGone(process.pid)
                if process.pid in self.answers:
                    waiting.remove(process)
                    self._finish(process)
                elif time.monotonic() > process.next_try:
                    self._try_again(process)
            if not waiting:
                break
            now = time.monotonic()
            self.end += stalled(now - last, pause)
            last = now
            if self.stop.is_set() or now > self.end:
                for process in waiting:
                    self.answers[process.pid] = self._late(process)
                break
            time.sleep(pause)
            pause = min(pause * 1.3, 0.01)

    def _sleep(self, seconds: float) -> None:
        began = time.monotonic()
        time.sleep(seconds)
        self.end += stalled(time.monotonic() - began, seconds)

    def _try_again(self, process: _OpenProcess) -> None:
        """Inject a second time, the other way, if the injected thread has not started or does not get the GIL."""
        assert process.mailbox is not None and process.target is not None
        now = time.monotonic()
        process.next_try = now + _RETRY_SECONDS
        if now - self.begun > _GIL_CHECK_SECONDS and not process.gil_checked and not process.mailbox.taken():
            process.gil_checked = True
            holder = gil_holder(process.pid)
            if holder and process_state.thread_state(process.pid, holder.tid) in ("S", "D"):
                self.answers[process.pid] = GilHeld(process.pid, holder.name or str(holder.tid))
                return
        begun = _has_thread(process)
        last = process.visits[-1] if process.visits else None
        if not begun and last is not None and thread_hijack.outcome(last):
            self.answers[process.pid] = self._late(process)
            return
        if begun:
            if now < process.patience:
                return
            process.patience = now + 2 * (now - self.begun)
        elif last is not None and not last.pending:
            return  # the thread is about to start
        try:
            visit = thread_hijack.again(process.target, process.mailbox.source, pending=begun)
        except (InjectError, OSError):
            return  # the process is about to end, or was stopped: the wait notices
        if visit is not None:
            process.visits.append(visit)

    def _late(self, process: _OpenProcess) -> InjectError:
        last = process.visits[-1] if process.visits else None
        result = thread_hijack.outcome(last) if last is not None else None
        if result == _NOT_INITIALIZED:
            return InjectRefused(
                f"Python is starting or shutting down in process {process.pid}", "Try again in a moment."
            )
        if result:
            return InjectRefused(f"process {process.pid} could not start a thread: {os.strerror(abs(result))}")
        if process_state.process_state(process.pid) == "T":
            return InjectTimeout(
                f"process {process.pid} was stopped before it answered",
                f"Continue it (kill -CONT {process.pid}) and try again.",
            )
        if process.mailbox is not None and process.mailbox.taken():
            return InjectTimeout(
                f"process {process.pid} did not answer within {self.deadline:g} s: the injected code is still running. "
                "Its thread ends when the code returns"
            )
        why = "; its main thread does not return to Python code" if last is None or last.pending else ""
        holder = gil_holder(process.pid)
        if holder:
            return GilHeld(process.pid, holder.name or str(holder.tid))
        return InjectTimeout(
            f"process {process.pid} did not answer within {self.deadline:g} s{why}. The request is withdrawn: an "
            "injected thread that is still waiting ends by itself, without any effect"
        )

    def _finish(self, process: _OpenProcess) -> None:
        try:
            if process.mailbox is not None:
                process.mailbox.close()
                process.mailbox = None
            if process.visits:
                if isinstance(self.answers.get(process.pid), bytes):
                    _wait_for_thread(process, time.monotonic() + _CLEANUP_SECONDS)
                thread_hijack.leave(process.visits, until=time.monotonic() + _CLEANUP_SECONDS)
        except OSError:
            pass  # the process ended
        finally:
            process.visits = []
            if process.lock >= 0:
                os.close(process.lock)
                process.lock = -1


def _remote_exec(process: _OpenProcess) -> bool:
    """Inject by sys.remote_exec, if the Python of the process has it."""
    assert process.mailbox is not None and process.target is not None
    if not sys_remote_exec.can(process.target.version):
        return False
    return sys_remote_exec.send(
        process.pid, process.mailbox.script(sys_remote_exec.SCRIPT.format(source=process.mailbox.source))
    )


def _wait_for_thread(process: _OpenProcess, until: float) -> None:
    """Wait for the end of the injected thread, which comes a moment after its answer."""
    while _has_thread(process) and time.monotonic() < until:
        time.sleep(0.0005)


def _has_thread(process: _OpenProcess) -> bool:
    """Whether an injected thread runs in the process."""
    new = set(os.listdir(f"/proc/{process.pid}/task")) - process.threads
    return any(_name(process.pid, tid) == THREAD_NAME for tid in new)


def _name(pid: int, tid: str) -> str:
    try:
        with open(f"/proc/{pid}/task/{tid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def gil_holder(pid: int) -> PythonThread | None:
    """The thread that holds the GIL, if it still holds it a moment later and has not moved: a loop releases the GIL."""
    holders = []
    for _ in range(2):
        found = pyspy_parse.sweep([pid], locals=False).get(pid)
        holders.append(next((thread for thread in (found.threads if found else ()) if thread.gil), None))
        time.sleep(0.02)
    first, second = holders
    if first is None or second is None or (first.tid, first.frames) != (second.tid, second.frames):
        return None
    return first
