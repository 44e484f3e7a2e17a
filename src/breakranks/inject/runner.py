"""Runs in the target process, in a thread of its own. breakranks never imports this file: it reads the text.

``handle`` is the open file that contains this code. The injector holds a lock on it: without the lock, no process
waits for the answer. This code imports only built-in modules, and leaves no name behind.
"""

MYPY = False  # typing must not be imported into the target process
if MYPY:
    from typing import Any


def run(handle: int, folder: str, limit: float, pid: int, largest: int, arguments: object, payload: str) -> None:
    import _thread
    import posix
    import sys
    import time

    brisk, me = 1e-5, object()
    shared: dict[str, Any] = {}  # of all threads that need a short interval

    def register_fork_hooks() -> None:
        """Register the fork hooks, once, before a child could inherit any state of this code."""
        text = arguments.get("at_fork") if isinstance(arguments, dict) else None
        if text and not hasattr(sys, "_breakranks_at_fork"):
            scope: dict[str, Any] = {"__name__": "breakranks.rank.fork_hooks", "__builtins__": __builtins__}
            exec(compile(text, "<breakranks>", "exec"), scope)
            scope["state"]()
            scope.clear()

    def shorten_interval() -> None:
        """As in rank/switch_interval.py: the last thread that needs a short interval restores it."""
        nonlocal shared
        if shared and me in shared["users"]:
            return
        shared = vars(sys).setdefault("_breakranks_interval", {"pid": pid, "own": 0.0, "users": []})
        if shared["pid"] != pid:
            shared.update(pid=pid, users=[])
        shared["users"].append(me)
        interval = sys.getswitchinterval()
        if interval > brisk:
            shared["own"] = interval
            set_child_interval(interval)
            sys.setswitchinterval(brisk)

    def restore_interval() -> None:
        if not shared or me not in shared["users"]:
            return
        shared["users"].remove(me)
        if not shared["users"]:
            if shared["own"] and sys.getswitchinterval() <= brisk:
                sys.setswitchinterval(shared["own"])
                set_child_interval(0.0)
            if not shared["users"]:
                vars(sys).pop("_breakranks_interval", None)
            elif shared["own"]:  # another thread has begun since
                set_child_interval(shared["own"])
                sys.setswitchinterval(brisk)

    def make_timers_precise() -> None:
        try:
            slack = posix.open(f"/proc/{_thread.get_native_id()}/timerslack_ns", posix.O_WRONLY | posix.O_CLOEXEC)
            posix.write(slack, b"1")
            posix.close(slack)
        except OSError:
            pass

    def set_child_interval(child_interval: float) -> None:
        """Set the interval that a child restores if the process forks now (rank/fork_hooks.py)."""
        at_fork = getattr(sys, "_breakranks_at_fork", None)
        if at_fork is not None:
            at_fork["interval"] = child_interval

    def abandoned() -> bool:
        """Whether the injector has ended; if so, remove the mailbox."""
        try:
            posix.lockf(handle, posix.F_TEST, 0)
        except OSError:
            return False
        for name in ("start.py", "code.py", "taken", "answer.new", "answer"):
            try:
                posix.unlink(folder + "/" + name)
            except OSError:
                pass
        try:
            posix.rmdir(folder)
        except OSError:
            pass
        return True

    def answered() -> bytes:
        scope: dict[str, Any] = {"__name__": "breakranks_payload", "__builtins__": __builtins__}
        try:
            exec(compile(payload, "<breakranks>", "exec"), scope)
            answer = scope["answer"](arguments)
            if callable(answer):  # a part that may take long
                restore_interval()
                answer = answer()
            answer = b"+" + (answer.encode() if isinstance(answer, str) else bytes(answer))
            if len(answer) > largest:
                answer = b"-" + b"the answer is too large: %d bytes" % len(answer)
        except BaseException as error:
            lines = []
            at = error.__traceback__
            while at is not None:
                code = at.tb_frame.f_code
                lines.append(f"  {code.co_filename}:{at.tb_lineno} in {code.co_name}\n")
                at = at.tb_next
            try:
                said = f"{type(error).__name__}: {error}\n"
            except BaseException:
                said = type(error).__name__ + "\n"
            answer = b"-" + (said + "".join(lines[1:])).encode("utf-8", "backslashreplace")
            del error, at
        finally:
            scope.clear()
        return answer

    def write_answer() -> None:
        answer = answered()
        shorten_interval()
        new = folder + "/answer.new"
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC | posix.O_NOFOLLOW
        file = posix.open(new, flags, 0o600)
        try:
            rest = memoryview(answer)
            while rest:
                rest = rest[posix.write(file, rest) :]
        finally:
            posix.close(file)
        posix.rename(new, folder + "/answer")
        abandoned()

    if posix.getpid() != pid:  # the process forked after the injection, and this is the child
        return
    register_fork_hooks()
    shorten_interval()  # before any system call: after each of them a busy thread may keep the GIL for seconds
    try:
        make_timers_precise()
        if abandoned() or time.time() > limit:
            return
        posix.rename(folder + "/code.py", folder + "/taken")  # fails in the second of two injected threads
        write_answer()
    finally:
        restore_interval()
