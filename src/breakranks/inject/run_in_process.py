"""Ask a live Python process something: run a small piece of our code in it, and have its answer.

    >>> ask(4711, "echo", {"word": "hello"})  # doctest: +SKIP
    b'{"given": {"word": "hello"}, "pid": 4711, "threads": 9}'

The process needs no preparation, is left as it was, and is safe even if we are killed meanwhile: docs/inside.md.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterable, Mapping

from breakranks.inject import mailbox, remote_exec, target_process, thread_hijack
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
from breakranks.observe import process_state, pyspy_parse
from breakranks.observe.pyspy_parse import PythonThread
from breakranks.observe.watchdog import Watchdog
from breakranks.own_suspension import stalled

__all__ = ["InjectError", "InjectRefused", "InjectTimeout", "InjectedCodeFailed", "ProcessGone", "ask", "ask_many"]

_log = Log("inject")
_NOTHING: Mapping[str, object] = {}
_NOT_UP = -3  # the stub's word for it
_AGAIN_SECONDS = 0.03  # seconds between tries to find a thread that waits, as long as a pending call has not run
_STARVED_SECONDS = (
    0.15  # seconds after which the main thread is made to let go of the GIL; then in longer and longer steps
)
_HOPELESS_SECONDS = 1.0  # seconds after which we look whether somebody sleeps with the GIL
_SLACK_SECONDS = (
    60.0  # seconds after the deadline in which our code may still begin there, if we still wait: we may have slept
)
_TIDY_SECONDS = 0.5  # seconds that may go by after the answer until all is as it was


def ask(
    pid: int,
    payload: str,
    arguments: Mapping[str, object] = _NOTHING,
    *,
    deadline: float = 5.0,
    gil_held: str = "",
    dog: Watchdog | None = None,
) -> bytes:
    """The answer of ``rank/payloads/{payload}.py`` in process ``pid``.

    ``gil_held``: the name of a thread that is known to hold the GIL in C; then it is not even tried.
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
    """The answers of many processes, all within one deadline. ``each``: what single ones are told besides."""
    asked = _Asked(
        pids=list(dict.fromkeys(pids)),
        text=mailbox.payload(payload),
        arguments=arguments,
        deadline=deadline,
        gil_held=gil_held or {},
        dog=dog,
    )
    asked.each = each or {}
    # In an OS thread of its own: when that ends, in whatever way, the kernel lets go of all that it held.
    thread = threading.Thread(target=asked.run, name="breakranks-ask")
    thread.start()
    try:
        thread.join()
    except BaseException:
        asked.stop.set()
        thread.join()
        raise
    if asked.error is not None:
        raise asked.error
    _tell(payload, asked)
    return asked.answers


def _tell(payload: str, asked: _Asked) -> None:
    refused = 0
    for pid, answer in asked.answers.items():
        if isinstance(answer, InjectError):
            refused += 1
            _log.info("not injected", payload=payload, pid=pid, why=answer.message)
        else:
            _log.debug("injected", payload=payload, pid=pid, bytes=len(answer))
    pids = ",".join(map(str, asked.pids))
    answered = len(asked.answers) - refused
    took = milliseconds(asked.begun)
    _log.info("injection done", payload=payload, pids=pids, answered=answered, refused=refused, ms=took)


class _Open:
    """One process that is being asked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.identity = process_state.start_ticks(pid)
        self.lock = -1
        self.threads: set[str] = set()
        self.channel: Mailbox | None = None
        self.target: target_process.TargetProcess | None = None
        self.visits: list[thread_hijack.HijackedThread] = []
        self.next_try = self.patience = 0.0
        self.judged = False  # whether somebody keeps the GIL there

    def gone(self) -> bool:
        now, started = process_state.state_and_start(self.pid)
        return now in "XZ" or started != self.identity


class _Asked:
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
        opened: list[_Open] = []
        try:
            for pid in self.pids:
                one = _Open(pid)
                opened.append(one)
                try:
                    self._begin(one)
                except InjectError as error:
                    self.answers[pid] = error
                except OSError as error:
                    self.answers[pid] = (
                        ProcessGone(pid) if one.gone() else InjectRefused(f"process {pid} cannot be asked: {error}")
                    )
            self._wait(opened)
        except BaseException as error:
            self.error = error
        finally:
            for one in opened:
                self._finish(one)

    def _begin(self, one: _Open) -> None:
        pid = one.pid
        if not one.identity:
            raise ProcessGone(pid)
        if self.gil_held.get(pid):
            raise InjectRefused(
                f"thread {self.gil_held[pid]} of process {pid} holds the GIL in C: no Python can run there",
                "See its native stack: breakranks stacks --native",
            )
        if self.dog is not None:
            self.dog.guard(pid)
        self._lock(one)
        one.target = target_process.read(pid)
        one.threads = set(os.listdir(f"/proc/{pid}/task"))
        arguments = {**self.arguments, **self.each.get(pid, {})}
        one.channel = Mailbox(
            pid=pid, owner=target_process.owner(pid), text=self.text, arguments=arguments, limit=self.limit
        )
        visit = thread_hijack.enter(one.target, one.channel.source, lambda: _by_python_itself(one))
        one.visits += [] if visit is None else [visit]
        one.next_try = time.monotonic() + _AGAIN_SECONDS
        one.patience = time.monotonic() + _STARVED_SECONDS

    def _lock(self, one: _Open) -> None:
        """One of us at a time in a process; the kernel frees the lock when we end."""
        one.lock = os.open(f"/proc/{one.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(one.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.end += time.monotonic() - began  # that another was first is no lateness of the process
                return
            except BlockingIOError:
                if time.monotonic() > self.end or self.stop.is_set():
                    raise InjectRefused(f"another breakranks is asking process {one.pid}", "Try again.") from None
                self._sleep(0.005)

    def _wait(self, opened: list[_Open]) -> None:
        pause = 0.0005
        waiting = [one for one in opened if one.pid not in self.answers]
        last = time.monotonic()
        while waiting:
            for one in list(waiting):
                assert one.channel is not None
                try:
                    answer = one.channel.answer()
                except InjectedCodeFailed as error:
                    self.answers[one.pid] = error
                else:
                    if answer is not None:
                        self.answers[one.pid] = answer
                    elif one.gone():
                        self.answers[one.pid] = ProcessGone(one.pid)
                if one.pid in self.answers:
                    waiting.remove(one)
                    self._finish(one)
                elif time.monotonic() > one.next_try:
                    self._try_again(one)
            if not waiting:
                break
            now = time.monotonic()
            self.end += stalled(now - last, pause)
            last = now
            if self.stop.is_set() or now > self.end:
                for one in waiting:
                    self.answers[one.pid] = self._late(one)
                break
            time.sleep(pause)
            pause = min(pause * 1.3, 0.01)

    def _sleep(self, seconds: float) -> None:
        began = time.monotonic()
        time.sleep(seconds)
        self.end += stalled(time.monotonic() - began, seconds)

    def _try_again(self, one: _Open) -> None:
        """It takes long. Has our thread not begun, or does it not get the GIL?"""
        assert one.channel is not None and one.target is not None
        now = time.monotonic()
        one.next_try = now + _AGAIN_SECONDS
        if now - self.begun > _HOPELESS_SECONDS and not one.judged and not one.channel.taken():
            one.judged = True
            holder = _gil_holder(one.pid)
            if holder and process_state.thread_state(one.pid, holder.tid) in ("S", "D"):
                self.answers[one.pid] = GilHeld(one.pid, holder.name or str(holder.tid))
                return
        begun = _is_there(one)
        last = one.visits[-1] if one.visits else None
        if not begun and last is not None and thread_hijack.outcome(last):
            self.answers[one.pid] = self._late(one)
            return
        if begun:
            if now < one.patience:
                return
            one.patience = now + 2 * (now - self.begun)
        elif last is not None and not last.pending:
            return  # the thread is only about to begin
        try:
            visit = thread_hijack.again(one.target, one.channel.source, pending=begun)
        except (InjectError, OSError):
            return  # it is about to end, or was stopped: the wait will see
        if visit is not None:
            one.visits.append(visit)

    def _late(self, one: _Open) -> InjectError:
        last = one.visits[-1] if one.visits else None
        came_of_it = thread_hijack.outcome(last) if last is not None else None
        if came_of_it == _NOT_UP:
            return InjectRefused(
                f"Python is not up yet in process {one.pid}, or about to end", "Ask again in a moment."
            )
        if came_of_it:
            return InjectRefused(f"process {one.pid} could not start a thread: {os.strerror(abs(came_of_it))}")
        if process_state.process_state(one.pid) == "T":
            return InjectTimeout(
                f"process {one.pid} was stopped before it answered", f"kill -CONT {one.pid}, and ask again."
            )
        if one.channel is not None and one.channel.taken():
            return InjectTimeout(
                f"process {one.pid} has not answered in {self.deadline:g} s: what was asked is still being done "
                "there, by a thread of ours that ends when it returns"
            )
        why = "; its main thread does not come back to Python" if last is None or last.pending else ""
        holder = _gil_holder(one.pid)
        if holder:
            return GilHeld(one.pid, holder.name or str(holder.tid))
        return InjectTimeout(
            f"process {one.pid} did not answer in {self.deadline:g} s{why}. The question is withdrawn: a thread of "
            "ours that still waits there ends by itself, without doing anything, once it can run"
        )

    def _finish(self, one: _Open) -> None:
        try:
            if one.channel is not None:
                one.channel.close()
                one.channel = None
            if one.visits:
                if isinstance(self.answers.get(one.pid), bytes):
                    _wait_for_thread(one, time.monotonic() + _TIDY_SECONDS)
                thread_hijack.leave(one.visits, until=time.monotonic() + _TIDY_SECONDS)
        except OSError:
            pass  # it ended
        finally:
            one.visits = []
            if one.lock >= 0:
                os.close(one.lock)
                one.lock = -1


def _by_python_itself(one: _Open) -> bool:
    assert one.channel is not None and one.target is not None
    if not remote_exec.can(one.target.version):
        return False
    return remote_exec.send(one.pid, one.channel.script(remote_exec.SCRIPT.format(source=one.channel.source)))


def _wait_for_thread(one: _Open, until: float) -> None:
    """It has answered; a moment later it is gone."""
    while _is_there(one) and time.monotonic() < until:
        time.sleep(0.0005)


def _is_there(one: _Open) -> bool:
    """Whether a thread of ours is in the process."""
    new = set(os.listdir(f"/proc/{one.pid}/task")) - one.threads
    return any(_name(one.pid, tid) == THREAD_NAME for tid in new)


def _name(pid: int, tid: str) -> str:
    try:
        with open(f"/proc/{pid}/task/{tid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _gil_holder(pid: int) -> PythonThread | None:
    """The thread that holds the GIL, if it holds it still a moment later and has not moved: one in a loop lets go."""
    looks = []
    for _ in range(2):
        found = pyspy_parse.sweep([pid], locals=False).get(pid)
        looks.append(next((thread for thread in (found.threads if found else ()) if thread.gil), None))
        time.sleep(0.02)
    first, second = looks
    if first is None or second is None or (first.tid, first.frames) != (second.tid, second.frames):
        return None
    return first
