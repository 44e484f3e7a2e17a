"""A program whose children look at what they have inherited: fork_program.py MODE FOLDER. It ends with 0 if nothing is.

It forks in every way that Python has, again and again, until FOLDER/end is there.
"""

import functools
import os
import signal
import subprocess
import sys
import threading
import time

MODE, FOLDER = sys.argv[1:3]
RANK = os.getpid()
INTERVAL = sys.getswitchinterval()
STDOUT = sys.stdout
count = 0  # of children that have ended


def ready(what="ready"):
    with open(f"{FOLDER}/{what}.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{FOLDER}/{what}.part", f"{FOLDER}/{what}")


def ended():
    return os.access(f"{FOLDER}/end", os.F_OK)


# ---- in the child


class Raised(Exception):
    pass


def inherited():
    """What there is of a debugger, in words."""
    frame, framed = sys._getframe(), []
    while frame is not None:
        framed += [frame.f_code.co_name] if frame.f_trace else []
        frame = frame.f_back
    monitoring = getattr(sys, "monitoring", None)
    names = [name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
    files = [os.readlink(f"/proc/self/fd/{name}") for name in names]
    found = {
        "trace": sys.gettrace(),
        "threads": threading.gettrace() if sys.version_info >= (3, 10) else None,
        "frames": framed,
        "tools": [tool for tool in range(6) if monitoring and monitoring.get_tool(tool)],
        "interval": sys.getswitchinterval() != INTERVAL and sys.getswitchinterval(),
        "output": sys.stdout is not STDOUT and sys.stdout,
        "input": not hasattr(sys.stdin, "buffer") and sys.stdin,
        "files": [name for name in files if name.startswith(("socket:", "anon_inode:"))],
    }
    return {name: value for name, value in found.items() if value}


def look():
    """Runs lines that a breakpoint, a caught exception and a trace function would see; ends the child."""
    signal.alarm(60)  # should it stop, nobody would let it go on
    found = inherited()  # looked at
    other = threading.Thread(target=lambda: found.update(inherited()))
    other.start()
    other.join()
    try:
        raise Raised
    except Raised:
        pass
    if found:
        os.write(2, f"a child has {found}\n".encode())
    os._exit(8 if found else 7)


# ---- in the parent


def check(pid):
    global count
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 7:
        os.write(2, b"a child ended with %d\n" % status)
        os._exit(1)
    count += 1


def by_fork():
    pid = os.fork()  # fork
    if pid == 0:
        look()
    check(pid)


def by_pty():
    pid, terminal = os.forkpty()  # pty
    if pid == 0:
        look()
    check(pid)
    os.close(terminal)


def by_subprocess():
    global count
    done = subprocess.run(["/bin/false"], preexec_fn=look, stdin=subprocess.DEVNULL)  # subprocess
    if done.returncode != 7:
        os._exit(2)
    count += 1


def by_multiprocessing():
    global count
    import multiprocessing

    child = multiprocessing.get_context("fork").Process(target=look)
    child.start()  # multiprocessing
    child.join()
    if child.exitcode != 7:
        os._exit(3)
    count += 1


def forked(more):
    """Waits until so many more children have ended."""
    until = count + more
    while count < until:
        time.sleep(0.001)
    return True


def spins():
    value = 0
    while not ended():
        value += 1  # spins
        time.sleep(0.0005)


def tells():
    """Says how many children there were, whenever it is asked to: for scripts/fork-stress."""
    while not ended():
        if os.access(f"{FOLDER}/tell", os.F_OK):
            os.unlink(f"{FOLDER}/tell")
            with open(f"{FOLDER}/count.part", "w") as file:
                file.write(str(count))
            os.rename(f"{FOLDER}/count.part", f"{FOLDER}/count")
        time.sleep(0.02)


def forks():
    threading.Thread(target=spins, name="spinner", daemon=True).start()
    threading.Thread(target=tells, name="teller", daemon=True).start()
    ready()
    while not ended():
        time.sleep(0.001)
        by_fork()
        by_pty()
        by_subprocess()
        by_multiprocessing()


def each():
    """Every way once, when it is told to."""
    ready()
    while not os.access(f"{FOLDER}/now", os.F_OK):
        time.sleep(0.001)
    by_fork()
    by_pty()
    by_subprocess()
    by_multiprocessing()


def calls():
    """The same, and the program itself has called for a stop."""
    import breakranks

    ready()
    breakranks.breakpoint()
    by_fork()  # called
    by_multiprocessing()


def waits():
    """Blocked within a fork, until a byte comes."""
    os.mkfifo(f"{FOLDER}/byte")
    handle = os.open(f"{FOLDER}/byte", os.O_RDWR)
    time.sleep(0)
    ready()
    while not os.access(f"{FOLDER}/now", os.F_OK):
        time.sleep(0.01)  # waits
    os.register_at_fork(before=functools.partial(os.read, handle, 1))
    by_fork()


def release():
    with open(f"{FOLDER}/byte", "w") as file:
        file.write("x")


def evaluates():
    """A child that is made at a prompt goes on from there."""
    ready()
    while not ended():
        if os.getpid() != RANK:
            look()  # goes on
        time.sleep(0.001)
    try:
        check(-1)
    except ChildProcessError:
        pass  # none was made


def imports():
    """A thread imports a module, which takes until somebody else waits for it, and then needs another one."""
    sys.path.insert(0, FOLDER)
    with open(f"{FOLDER}/hashlib.py", "w") as file:
        file.write(SLOW)
    threading.Thread(target=__import__, args=("hashlib",), daemon=True).start()
    ready()
    while not ended():
        time.sleep(0.001)
    __import__("hashlib").sha256()


SLOW = """
import os, sys, time
while not sys.modules["_frozen_importlib"]._blocking_on:
    time.sleep(0.001)
import this_is_not_there_yet
path = os.path.join(os.path.dirname(os.__file__), "hashlib.py")
exec(compile(open(path).read(), path, "exec"))
"""


if __name__ == "__main__":
    if MODE == "imports":
        with open(f"{FOLDER}/this_is_not_there_yet.py", "w") as file:
            file.write("import time\ntime.sleep(0.01)\n")
    globals()[MODE]()
