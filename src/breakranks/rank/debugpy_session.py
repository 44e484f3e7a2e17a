"""debugpy in this rank, for as long as one client of the Debug Adapter Protocol is there.

pydevd, the part of debugpy that traces, speaks the protocol itself. It is handed a connection to the bridge
(``dap/bridge``) over a UNIX socket in our private folder, so no port is opened for it and no process started. All of
it happens in a thread of ours: the agent never waits for an import, and what fails is told to the bridge.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.machinery
import importlib.util
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from breakranks.rank import fork_hooks

DEBUGPY, PYDEVD = "debugpy", "pydevd"
_CONNECT_SECONDS = 5.0
_OLDEST = (1, 8)
# Read by pydevd while it is imported: no warning about frozen modules on the job's stderr, no frame evaluation, and no
# threading.enumerate that hides threads, for ever.
_SETTINGS = {
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    "PYDEVD_USE_FRAME_EVAL": "NO",
    "PYDEVD_APPLY_PATCHING_TO_HIDE_PYDEVD_THREADS": "no",
}
_OFF = b"__import__('sys').modules['pydevd']._breakranks_off()"

_session: DebugpySession | None = None


class DebugpyRefused(Exception):
    """Why there is no session here; its text is for the person at the client."""


def start(path: str, folder: str = "", changed: Callable[[bool], None] | None = None) -> dict[str, Any]:
    """Begin a session with whoever listens at ``path``; answers at once, what comes later is told there.

    ``folder`` is where to find debugpy if this process has none of its own. ``changed`` is told True when the session
    has begun and False when all of it is over. Called by the agent's thread, which is never traced from then on.
    """
    global _session
    if _session is not None and _session.alive:
        return {"started": False, "why": "another client is attached to it", "busy": True}
    _leave_alone(threading.current_thread())
    try:
        _session = DebugpySession(path, folder, changed or (lambda here: None))
    except RuntimeError as error:  # no more threads
        return {"started": False, "why": str(error)}
    return {"started": True}


def stop() -> None:
    """End the session, if there is one: the rank runs on without breakpoints."""
    if _session is not None:
        _session.stop()


def has_debugpy() -> bool:
    """Whether this process has a debugpy of its own."""
    try:
        return DEBUGPY in sys.modules or importlib.util.find_spec(DEBUGPY) is not None
    except (ImportError, ValueError):
        return False


class DebugpySession:
    """One client, from its connection to its end; both in a thread that is neither traced nor shown."""

    def __init__(self, path: str, folder: str, changed: Callable[[bool], None]) -> None:
        self._path, self._folder, self._changed = path, folder, changed
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="breakranks.dap", daemon=True)
        _leave_alone(self._thread)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        connection = self._connection
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _run(self) -> None:
        try:
            self._connection = _connect(self._path)
        except OSError:  # the bridge has gone
            return
        try:
            self._serve(self._connection)
        except Exception as error:  # whatever it was, it is the client's to know and not the job's
            _tell(self._connection, str(error) if isinstance(error, DebugpyRefused) else repr(error))
        finally:
            self._connection.close()

    def _serve(self, connection: socket.socket) -> None:
        hook, thread_trace = sys.breakpointhook, threading.gettrace()
        known = frozenset(threading._active)  # type: ignore[attr-defined]
        pydevd = _pydevd(self._folder)
        if pydevd.get_global_debugger() is not None:
            raise DebugpyRefused("this rank is being debugged with debugpy, by somebody else")
        _stay_harmless(pydevd)
        self._changed(True)
        try:
            if not _is_pythons(hook):
                sys.breakpointhook = hook  # breakpoint() stays what the job has made it
            try:
                _begin(pydevd, connection)
            finally:
                debugger = pydevd._breakranks_debugger = pydevd.get_global_debugger()
            debugger.reader.join()  # until the bridge hangs up, or has died
        finally:
            _end(pydevd, pydevd._breakranks_debugger)
            pydevd._breakranks_debugger = None
            sys.breakpointhook = hook
            threading.settrace(thread_trace)
            _forget_the_dead(known)
            self._changed(False)


def _begin(pydevd: Any, connection: socket.socket) -> None:
    """Give pydevd its connection, and let it trace all threads but ours."""
    for thread in threading.enumerate():
        if thread.name.startswith("breakranks"):
            _leave_alone(thread)
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    its = os.path.dirname(os.path.abspath(str(sys.modules[DEBUGPY].__file__)))
    own = pydevd.start_client
    pydevd.start_client = lambda host, port: connection
    try:
        pydevd.settrace(
            host="127.0.0.1",  # where nothing is connected to: there is a connection
            port=0,
            suspend=False,
            wait_for_ready_to_run=False,
            patch_multiprocessing=False,
            notify_stdin=False,
            dont_trace_start_patterns=(its, ours),
        )
    finally:
        pydevd.start_client = own


def _end(pydevd: Any, debugger: Any) -> None:
    """Take everything off again that pydevd can take off. What it had stopped goes on."""
    with suppress(Exception):
        debugger.dispose_and_kill_all_pydevd_threads()  # first of all: that lets go
    with suppress(Exception):
        for thread in _threads_of(debugger):  # a client that left at once came before these, and so did its end
            thread.do_kill_pydev_thread()
    with suppress(Exception):
        debugger.enable_output_redirection(False, False)
        for name in ("stdout", "stderr"):
            pydevd.pydevd_io.stop_redirect_stream_to_pydb_io_messages(name)  # its own `disconnect` leaves them wrapped
    with suppress(Exception):
        pydevd.stoptrace()
        atexit.unregister(pydevd.stoptrace)
    if sys.version_info < (3, 12):
        with suppress(Exception):
            _off_in_main(pydevd)


def _threads_of(debugger: Any) -> list[Any]:
    """pydevd's own, which it hides from ``threading.enumerate``."""
    running: list[Any] = list(threading._active.values())  # type: ignore[attr-defined]
    return [one for one in running if hasattr(one, "do_kill_pydev_thread") and one.py_db is debugger]


def _forget_the_dead(known: frozenset[int]) -> None:
    """pydevd makes an object for each thread that has none, also for one that is just ending: it stays for ever."""
    running = sys._current_frames()
    active: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        for ident, one in list(active.items()):
            if isinstance(one, threading._DummyThread) and ident not in known and ident not in running:
                del active[ident]


# ---- finding debugpy


def _pydevd(folder: str) -> Any:
    """The module pydevd of debugpy: this process's own, or the one in ``folder``."""
    with fork_hooks.ForksPaused(), _settings():
        if not has_debugpy():
            _load_from(folder)
        try:
            package = importlib.import_module(DEBUGPY)
            version = str(getattr(package, "__version__", "0"))
            if _numbers(version) < _OLDEST:
                raise DebugpyRefused(f"this rank has debugpy {version}, and 1.8 or later is needed")
            importlib.import_module(f"{DEBUGPY}.server")  # which makes its own pydevd the one that is imported
            pydevd = importlib.import_module(PYDEVD)
        except DebugpyRefused:
            raise
        except Exception as error:
            raise DebugpyRefused(f"debugpy cannot be imported in this rank: {error!r}") from error
    holder = getattr(getattr(pydevd, "pydevd_tracing", None), "TracingFunctionHolder", None)
    if holder is not None:
        holder._warn = False  # on the job's stderr, whenever somebody calls sys.settrace
    return pydevd


def _load_from(folder: str) -> None:
    """Make debugpy importable from ``folder``, and nothing else that is there."""
    spec = importlib.machinery.PathFinder.find_spec(DEBUGPY, [folder]) if folder else None
    if spec is None or spec.loader is None:
        raise DebugpyRefused(
            "this rank has no debugpy. Install it where breakranks runs: pip install 'breakranks[dap]'"
        )
    package = importlib.util.module_from_spec(spec)
    sys.modules[DEBUGPY] = package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        sys.modules.pop(DEBUGPY, None)
        raise


@contextmanager
def _settings() -> Iterator[None]:
    """pydevd's settings, as Python sees the environment: putenv is not safe while other threads call getenv."""
    data: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
    missing = {name.encode(): value.encode() for name, value in _SETTINGS.items() if name not in os.environ}
    data.update(missing)
    try:
        yield
    finally:
        for name in missing:
            data.pop(name, None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _is_pythons(hook: Any) -> bool:
    """Whether ``breakpoint()`` would open pdb in the rank's own terminal."""
    return hook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT")


# ---- within


def _connect(path: str) -> socket.socket:
    where, name = os.path.split(path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECT_SECONDS)
    handle = os.open(where, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # By way of the open folder: a socket's own path must be shorter than 108 characters.
        connection.connect(f"/proc/self/fd/{handle}/{name}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(handle)
    connection.settimeout(None)
    return connection


def _tell(connection: socket.socket, why: str) -> None:
    """What went wrong, as a message of the protocol that the bridge knows."""
    body = json.dumps({"seq": 0, "type": "event", "event": "breakranksFailed", "body": {"why": why[:2000]}}).encode()
    try:
        connection.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    except OSError:
        pass


def _leave_alone(thread: threading.Thread) -> None:
    """pydevd neither traces nor stops nor shows this thread."""
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
    thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]


def _stay_harmless(pydevd: Any) -> None:
    """What must work as long as pydevd is in the process, so it is kept there and uses no name of this module: that a
    forked child is not debugged, where nobody would answer for a stopped thread, and ``_breakranks_off``."""
    if hasattr(pydevd, "_breakranks_off"):
        return
    modules = sys.modules

    def off(sys: Any = sys, get: Any = pydevd.get_global_debugger) -> None:
        if get() is None:
            sys.settrace(None)

    def forked(sys: Any = sys, threading: Any = threading, get: Any = pydevd.get_global_debugger) -> None:
        debugger = get()
        if debugger is None or debugger is not pydevd._breakranks_debugger:
            return
        try:
            debugger.pydb_disposed = True
            modules["_pydevd_bundle.pydevd_constants"].set_global_debugger(None)
            if sys.version_info >= (3, 12):
                monitoring: Any = modules["_pydevd_sys_monitoring.pydevd_sys_monitoring"]
                monitoring.stop_monitoring(all_threads=True)
            else:
                sys.settrace(None)
            threading.settrace(None)
            debugger._client_socket.close()
        except Exception:  # another version of it: what is disposed of stops nothing either
            pass

    pydevd._breakranks_debugger = None
    pydevd._breakranks_off = off
    os.register_at_fork(after_in_child=forked)


def _off_in_main(pydevd: Any) -> None:
    """Before 3.12 only a thread itself can take its trace function off: the main thread is asked to, by a pending call.

    No function of ours is called by it, which might be gone by then; its text must stay where it is.
    """
    import ctypes

    text = pydevd._breakranks_text = ctypes.create_string_buffer(_OFF)
    call = ctypes.cast(ctypes.pythonapi.PyRun_SimpleString, ctypes.c_void_p)
    ctypes.pythonapi.Py_AddPendingCall(call, text)
