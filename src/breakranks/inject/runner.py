"""Runs in the process that is asked, in a thread of its own. Never imported by breakranks: read as text.

``handle`` is the file of which this is part, opened. Whoever asks holds a lock on it: no lock, and there is nobody
left to answer. Modules that the process may not have are not imported, and no name stays behind.
"""

MYPY = False  # typing is not imported where the process has not
if MYPY:
    from typing import Any


def run(handle: int, folder: str, limit: float, pid: int, largest: int, arguments: object, payload: str) -> None:
    import _thread
    import posix
    import sys
    import time

    # A busy job has the GIL back before another CPU has woken us up: it must be asked for it soon (switch_interval.py).
    interval, brisk = sys.getswitchinterval(), 1e-5
    if interval <= brisk:
        interval = 0.0  # whoever made it so gives it back
    try:
        slack = posix.open(f"/proc/{_thread.get_native_id()}/timerslack_ns", posix.O_WRONLY | posix.O_CLOEXEC)
        posix.write(slack, b"1")
        posix.close(slack)
    except OSError:
        pass

    def mind_forks() -> None:
        """Register what is called when the process forks, once, before anything here could be inherited."""
        text = arguments.get("at_fork") if isinstance(arguments, dict) else None
        if text and not hasattr(sys, "_breakranks_at_fork"):
            scope: dict[str, Any] = {"__name__": "breakranks.rank.fork_hooks", "__builtins__": __builtins__}
            exec(compile(text, "<breakranks>", "exec"), scope)
            scope["state"]()
            scope.clear()

    def hasten() -> None:
        if interval:
            remember(interval)
            sys.setswitchinterval(brisk)

    def calm() -> None:
        if interval and sys.getswitchinterval() <= brisk:
            sys.setswitchinterval(interval)
            remember(0.0)

    def remember(given_back: float) -> None:
        """What a child has that is forked meanwhile (rank/forks.py)."""
        at_fork = getattr(sys, "_breakranks_at_fork", None)
        if at_fork is not None:
            at_fork["interval"] = given_back

    def abandoned() -> bool:
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
            if callable(answer):  # it may take long
                calm()
                answer = answer()
            answer = b"+" + (answer.encode() if isinstance(answer, str) else bytes(answer))
            if len(answer) > largest:
                answer = b"-" + b"the answer has %d bytes" % len(answer)
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

    def answer_it() -> None:
        answer = answered()
        hasten()
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

    if posix.getpid() != pid:  # the process forked after we had been placed, and this is the child
        return
    mind_forks()
    hasten()
    try:
        if abandoned() or time.time() > limit:
            return
        posix.rename(folder + "/code.py", folder + "/taken")  # fails for the second of two that were sent
        answer_it()
    finally:
        calm()
