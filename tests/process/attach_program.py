"""Programs that know nothing of breakranks: attach_program.py MODE FOLDER.

Each has FOLDER/ready when it is where it is to be looked at, goes on when FOLDER/end is there, ends with 0, and prints
what it computed: the same, whether somebody looked or not.
"""

import os
import sys
import time

MODE, FOLDER = sys.argv[1:3]


def ready(what="ready"):
    with open(f"{FOLDER}/{what}.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{FOLDER}/{what}.part", f"{FOLDER}/{what}")


def ended():
    return os.access(f"{FOLDER}/end", os.F_OK)  # in C: wherever it is stopped, it is in a line of this file


def mix(value, turn):
    value = (value * 6364136223846793005 + turn) % 2**64
    value ^= value >> 29
    return value


def work(seed, turns=400):
    value = seed
    for turn in range(turns):
        value = mix(value, turn)  # mix
    return value


def after(value):
    value = mix(value, 1)  # awake
    return mix(value, 2)


# ---- blocked


def sleep():
    """A sleep ends early by an exception only: SIGUSR1 is one."""
    import signal

    class Woken(Exception):
        pass

    def wake(number, frame):
        raise Woken

    secret = ["sleep", 1]
    signal.signal(signal.SIGUSR1, wake)
    ready("sleeps")
    ready()
    try:
        time.sleep(3600.0)  # sleep
    except Woken:
        return after(len(secret))


def lock():
    import threading

    secret = {"lock": 2}
    held = threading.Lock()
    held.acquire()

    def free():
        while not ended():
            time.sleep(0.01)
        held.release()

    threading.Thread(target=free, name="freer").start()
    ready()
    held.acquire()  # lock
    return after(len(secret))  # awake-lock


def opened():
    os.mkfifo(f"{FOLDER}/end")
    return os.open(f"{FOLDER}/end", os.O_RDWR)


def pipe():
    secret = "pipe"
    end = opened()
    ready()
    os.read(end, 1)  # pipe
    return after(len(secret))


def c_free():
    import ctypes

    secret = 4
    libc, end, byte = ctypes.CDLL(None), opened(), ctypes.create_string_buffer(1)
    ready()
    libc.read(end, byte, 1)  # c_free
    return after(secret)


def c_held():
    import ctypes

    libc, end, byte = ctypes.PyDLL(None), opened(), ctypes.create_string_buffer(1)
    ready()
    libc.read(end, byte, 1)  # c_held
    return after(5)


# ---- busy


def busy():
    note = 0
    first = work(1)
    ready()
    while not ended():
        if work(1) != first:
            raise SystemExit("differs")
    return first + note


def numbers(count):
    value = 1
    for turn in range(count):
        value = mix(value, turn)
        yield value  # yields


def generator():
    first = list(numbers(100))[-1]
    ready()
    while not ended():
        for value in numbers(100):
            last = value
        if last != first:
            raise SystemExit("differs")
    return first


def threads():
    import threading

    first = work(2)
    wrong = []
    waits = threading.Event()

    def spin(seed):
        right = work(seed)
        while not ended():
            if work(seed) != right:
                wrong.append(seed)

    def wait(name):
        waits.wait()  # waits
        return name

    others = [
        threading.Thread(target=spin, args=(3,), name="spinner"),
        threading.Thread(target=wait, args=("x",), name="waiter"),
        threading.Thread(target=wait, args=("y",), name="two words"),
    ]
    for one in others:
        one.start()
    ready()
    while not ended():
        if work(2) != first:
            wrong.append(2)
        time.sleep(0.002)
    waits.set()
    for one in others:
        one.join()
    return wrong or first


def forks():
    """A rank whose helpers come and go, and one that stays."""
    parent = os.getpid()
    stays = os.fork()
    if stays == 0:
        ready("child")
        value = work(6)
        while not ended() and os.getppid() == parent:
            value = work(6)  # helper
        os._exit(0 if value == work(6) else 1)
    ready()
    count = 0
    while count == 0 or not ended():
        child = os.fork()
        if child == 0:
            os._exit(7)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
            raise SystemExit("a child ended otherwise")
        count += 1
    if os.waitstatus_to_exitcode(os.waitpid(stays, 0)[1]) != 0:
        raise SystemExit("the child that stays ended otherwise")
    return min(count, 1)


def subinterpreter():
    import threading

    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    try:
        other = interpreters.create("legacy")
    except TypeError:
        other = interpreters.create(isolated=False)
    code = f"""
import os, time
total, turns = 0, 0
while not os.path.exists({FOLDER + "/end"!r}):
    total += sum(range(100))
    turns += 1
    time.sleep(0.001)
assert total == turns * 4950
"""
    inner = threading.Thread(target=interpreters.run_string, args=(other, code), name="inner")
    inner.start()
    first = work(7)
    ready()
    while not ended():
        if work(7) != first:
            raise SystemExit("differs")
    inner.join()
    interpreters.destroy(other)
    return first


def renamed():
    import threading

    threading.main_thread().name = "the boss"
    with open("/proc/self/comm", "w") as file:
        file.write("boss of all")
    return busy()


def no_main():
    """The main thread has ended; others work on."""
    import threading

    def last():
        say(busy())

    threading.Thread(target=last, name="worker").start()
    sys.exit()


def no_threading():
    """It has never imported threading, and says in the end what threading takes for its main thread."""
    assert "threading" not in sys.modules
    me = __import__("_thread").get_ident()
    value = busy()
    import threading

    if threading.main_thread().ident != me or threading.current_thread() is not threading.main_thread():
        raise SystemExit(f"somebody else is the main thread: {threading.main_thread()}")
    other = threading.Thread(target=mix, args=(1, 2))
    other.start()
    other.join()
    if threading.active_count() != 1:
        raise SystemExit(f"threads are left: {threading.enumerate()}")
    return value


def traced():
    """It has a trace function of its own, as coverage has."""
    seen = {}

    def trace(frame, event, arg):
        if frame.f_code is mix.__code__:
            seen[frame.f_lineno] = seen.get(frame.f_lineno, 0) + 1
        return trace

    sys.settrace(trace)
    value = busy()
    if sys.gettrace() is not trace:
        raise SystemExit(f"the trace function is {sys.gettrace()}")
    sys.settrace(None)
    return value, sorted(seen), min(seen.values()) >= 400


def sigint():
    """Ctrl-C is its own: it counts them."""
    import signal

    got = []
    signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
    value = busy()
    return value, got


def sleeper():
    """A handler of signals, and a sleep of any length: whoever sends it a signal by mistake is found out."""
    import signal

    got = []
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTRAP, signal.SIGALRM, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: got.append(number))
    ready()
    while not ended():
        time.sleep(0.05)
    return got


def assigned():
    """What somebody assigns, it computes with."""
    note, box = 0, {}
    ready()
    while not ended():
        time.sleep(0.001)  # looks
    return note, box


# ---- what is left behind


def shape():
    """What there is of this process; compared before and after."""
    import gc
    import linecache
    import signal
    import threading

    gc.collect()
    frames, frame = [], sys._getframe()
    while frame is not None:
        frames.append((frame.f_code.co_name, repr(frame.f_trace), frame.f_trace_lines, frame.f_trace_opcodes))
        frame = frame.f_back
    monitoring = getattr(sys, "monitoring", None)
    return {
        "trace": repr(sys.gettrace()),
        "profile": repr(sys.getprofile()),
        "threading": [repr(threading._trace_hook), repr(threading._profile_hook)],
        "frames": frames,
        "monitoring": monitoring and [monitoring.get_tool(tool) for tool in range(6)],
        "events": monitoring and [monitoring.get_events(tool) for tool in range(6) if monitoring.get_tool(tool)],
        "threads": sorted(os.listdir("/proc/self/task")),
        "active": sorted(repr(one) for one in threading._active.values()),
        "daemons": len(getattr(threading, "_shutdown_locks", ())) + len(threading._dangling),
        "fds": sorted(
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if fd.isdigit() and os.path.lexists(f"/proc/self/fd/{fd}")
        ),
        "modules": sorted(sys.modules),
        "standard": sorted(sys.stdlib_module_names),
        "finders": [repr(one) for one in (*sys.meta_path, *sys.path_hooks, *sys.path)],
        "lines": sorted(linecache.cache),
        "signals": [repr(signal.getsignal(number)) for number in (2, 3, 10, 12, 14, 15, 17)],
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "streams": [repr(sys.stdin), repr(sys.stdout), repr(sys.stderr), repr(sys.displayhook), repr(sys.excepthook)],
        "builtins": sorted(vars(__import__("builtins"))),
        "globals": sorted(globals()),
        "where": [os.getcwd(), sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), gc.get_threshold()],
        "environ": sorted(os.environ),
        "hooks": [repr(getattr(sys, name, None)) for name in ("breakpointhook", "unraisablehook", "ps1")],
        "ours": sorted(
            {type(one).__qualname__ for one in gc.get_objects() if str(type(one).__module__).startswith("breakranks")}
        ),
        "functions": sorted(
            {
                one.__qualname__
                for one in gc.get_objects()
                if str(getattr(one, "__module__", "")).startswith("breakranks") and callable(one)
            }
        ),
    }


def tells():
    """Tells its shape each time that somebody asks by a file."""
    import json

    number = 0
    json.dumps(shape())
    work(1)
    ready()
    while not ended():
        work(1)
        if os.access(f"{FOLDER}/tell", os.F_OK):
            os.remove(f"{FOLDER}/tell")
            told = json.dumps(shape())
            number += 1
            with open(f"{FOLDER}/shape.part", "w") as file:
                file.write(told)
            os.rename(f"{FOLDER}/shape.part", f"{FOLDER}/shape.{number}")
    return work(1)


def say(value):
    print(f"result {value}", flush=True)


if __name__ == "__main__":
    found = globals()[MODE]()  # main
    if found is not None:
        say(found)
