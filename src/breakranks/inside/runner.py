"""Runs in the process that is asked, in a thread of its own. Never imported by breakranks: read as text.

``handle`` is the file of which this is part, opened. Whoever asks holds a lock on it: no lock, and there is nobody
left to answer. Modules that the process may not have are not imported, and no name stays behind.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run(handle: int, folder: str, limit: float, pid: int, largest: int, arguments: object, payload: str) -> None:
    import posix
    import time

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

    # Another pid: the process forked after we had been placed, and this is the child.
    if posix.getpid() != pid or abandoned() or time.time() > limit:
        return
    posix.rename(folder + "/code.py", folder + "/taken")  # fails for the second of two that were sent
    scope: dict[str, Any] = {"__name__": "breakranks_payload", "__builtins__": __builtins__}
    try:
        exec(compile(payload, "<breakranks>", "exec"), scope)
        answer = scope["answer"](arguments)
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
