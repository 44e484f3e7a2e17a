"""Runs in a process: returns its arguments and facts of the process. For tests."""


def answer(arguments: dict[str, object]) -> str:
    import json  # a payload imports nothing at its top
    import posix

    return json.dumps({"given": arguments, "pid": posix.getpid(), "threads": len(posix.listdir("/proc/self/task"))})
