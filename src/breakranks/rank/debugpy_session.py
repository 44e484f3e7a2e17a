"""debugpy in this rank, while one client of the Debug Adapter Protocol is attached.

pydevd, the part of debugpy that traces, implements the protocol. It gets a connection to the bridge (``dap/bridge``)
over a UNIX socket in the private folder, so it opens no port and starts no process. A thread of its own does this: the
agent never waits for an import, and errors are reported to the bridge.
"""

from __future__ import annotations

import atexit
import ctypes
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
_OLDEST_VERSION = (1, 8)
# pydevd reads these while it is imported: no warning about frozen modules on the job's stderr, no frame evaluation, and
# no permanent replacement of threading.enumerate that hides threads.
_SETTINGS = {
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    "PYDEVD_USE_FRAME_EVAL": "NO",
    "PYDEVD_APPLY_PATCHING_TO_HIDE_PYDEVD_THREADS": "no",
}
_OFF = b"__import__('sys').modules['pydevd']._breakranks_off()"

_session: DebugpySession | None = None


class DebugpyRefused(Exception):
    """A session is not possible here; the client shows the text to its user."""


def start(path: str, folder: str = "", changed: Callable[[bool], None] | None = None) -> dict[str, Any]:
    """Begin a session with the bridge that listens at ``path``. Returns at once; later errors are reported there.

    ``folder`` contains debugpy, for a process that has none. ``changed`` is called with True when the session has begun
    and with False when it has ended. The agent's thread calls this; it is never traced from then on.
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
    """End the session, if there is one: the rank continues without breakpoints."""
    if _session is not None:
        _session.stop()


def has_debugpy() -> bool:
    """Whether this process has a debugpy of its own."""
    try:
        return DEBUGPY in sys.modules or importlib.util.find_spec(DEBUGPY) is not None
    except (ImportError, ValueError):
        return False


class DebugpySession:
    """One client, from its connection to its end, in a thread that pydevd neither traces nor shows."""

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
        except Exception as error:  # reported to the client, not to the job
            _report(self._connection, str(error) if isinstance(error, DebugpyRefused) else repr(error))
        finally:
            self._connection.close()

    def _serve(self, connection: socket.socket) -> None:
        hook, thread_trace = sys.breakpointhook, threading.gettrace()
        known = frozenset(threading._active)  # type: ignore[attr-defined]
        pydevd = _pydevd(self._folder)
        if pydevd.get_global_debugger() is not None:
            raise DebugpyRefused("another debugger uses debugpy in this rank")
        _prepare_forks(pydevd)
        self._changed(True)
        try:
            if not _is_pythons(hook):
                sys.breakpointhook = hook  # breakpoint() keeps the job's own hook
            try:
                _begin(pydevd, connection)
            finally:
                debugger = pydevd._breakranks_debugger = pydevd.get_global_debugger()
            debugger.reader.join()  # until the bridge closes the connection or ends
        finally:
            _end(pydevd, pydevd._breakranks_debugger)
            pydevd._breakranks_debugger = None
            sys.breakpointhook = hook
            threading.settrace(thread_trace)
            _drop_ended_threads(known)
            self._changed(False)


def _begin(pydevd: Any, connection: socket.socket) -> None:
    """Give pydevd its connection, and let it trace all threads except those of breakranks."""
    for thread in threading.enumerate():
        if thread.name.startswith("breakranks"):
            _leave_alone(thread)
    breakranks_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    debugpy_folder = os.path.dirname(os.path.abspath(str(sys.modules[DEBUGPY].__file__)))
    own = pydevd.start_client
    pydevd.start_client = lambda host, port: connection
    try:
        pydevd.settrace(
            host="127.0.0.1",  # not used: start_client returns the existing connection
            port=0,
            suspend=False,
            wait_for_ready_to_run=False,
            patch_multiprocessing=False,
            notify_stdin=False,
            dont_trace_start_patterns=(debugpy_folder, breakranks_folder),
        )
    finally:
        pydevd.start_client = own


def _end(pydevd: Any, debugger: Any) -> None:
    """Remove everything that pydevd can remove. Stopped threads resume."""
    with suppress(Exception):
        debugger.dispose_and_kill_all_pydevd_threads()  # first: this resumes the threads
    with suppress(Exception):
        for thread in _threads_of(debugger):  # if a client leaves at once, these start after the call above
            thread.do_kill_pydev_thread()
    with suppress(Exception):
        debugger.enable_output_redirection(False, False)
        for name in ("stdout", "stderr"):
            pydevd.pydevd_io.stop_redirect_stream_to_pydb_io_messages(
                name
            )  # pydevd's own `disconnect` leaves them wrapped
    with suppress(Exception):
        pydevd.stoptrace()
        atexit.unregister(pydevd.stoptrace)
    if sys.version_info < (3, 12):
        with suppress(Exception):
            _off_in_main(pydevd)


def _threads_of(debugger: Any) -> list[Any]:
    """Return pydevd's own threads, which it hides from ``threading.enumerate``."""
    running: list[Any] = list(threading._active.values())  # type: ignore[attr-defined]
    return [thread for thread in running if hasattr(thread, "do_kill_pydev_thread") and thread.py_db is debugger]


def _drop_ended_threads(known: frozenset[int]) -> None:
    """Delete the objects that pydevd has created for threads that were ending: Python would keep them forever."""
    running = frozenset(sys._current_frames())  # not the frames: its own would keep all others
    active: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        for ident, thread in list(active.items()):
            if isinstance(thread, threading._DummyThread) and ident not in known and ident not in running:
                del active[ident]


# ---- finding debugpy


def _pydevd(folder: str) -> Any:
    """Import debugpy, of this process or from ``folder``, and return its module pydevd."""
    with fork_hooks.ForksPaused(), _settings():
        if not has_debugpy():
            _load_from(folder)
        try:
            package = importlib.import_module(DEBUGPY)
            version = str(getattr(package, "__version__", "0"))
            if _numbers(version) < _OLDEST_VERSION:
                raise DebugpyRefused(f"this rank has debugpy {version}; 1.8 or later is required")
            importlib.import_module(f"{DEBUGPY}.server")  # makes debugpy's own pydevd the one that is imported
            pydevd = importlib.import_module(PYDEVD)
        except DebugpyRefused:
            raise
        except Exception as error:
            raise DebugpyRefused(f"debugpy cannot be imported in this rank: {error!r}") from error
    holder = getattr(getattr(pydevd, "pydevd_tracing", None), "TracingFunctionHolder", None)
    if holder is not None:
        holder._warn = False  # it would print to the job's stderr at each sys.settrace
    return pydevd


def _load_from(folder: str) -> None:
    """Make debugpy importable from ``folder``, and nothing else in that folder."""
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
    """Set pydevd's settings in os.environ only: putenv is not safe while other threads call getenv."""
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


# ---- helpers


def _connect(path: str) -> socket.socket:
    folder, name = os.path.split(path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECT_SECONDS)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Through the open folder: the path of a socket must be shorter than 108 characters.
        connection.connect(f"/proc/self/fd/{handle}/{name}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(handle)
    connection.settimeout(None)
    return connection


def _report(connection: socket.socket, why: str) -> None:
    """Send an error to the bridge, as an event of the protocol."""
    body = json.dumps({"seq": 0, "type": "event", "event": "breakranksFailed", "body": {"why": why[:2000]}}).encode()
    try:
        connection.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    except OSError:
        pass


def _leave_alone(thread: threading.Thread) -> None:
    """Mark a thread: pydevd neither traces nor stops nor shows it."""
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
    thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]


def _prepare_forks(pydevd: Any) -> None:
    """Add to pydevd ``_breakranks_off``, and a fork hook: a child is not debugged, as no client could resume it.

    Both must work as long as pydevd is in the process, so they are kept there and use no name of this module.
    """
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
        except Exception:  # another version of pydevd: it is disposed of, so it stops no thread either
            pass

    pydevd._breakranks_debugger = None
    pydevd._breakranks_off = off
    os.register_at_fork(after_in_child=forked)


def _off_in_main(pydevd: Any) -> None:
    """Before 3.12 only a thread itself can remove its trace function: a pending call does it in the main thread.

    It calls no function of breakranks, which may be unloaded by then. Its text must stay in memory.
    """
    text = pydevd._breakranks_text = ctypes.create_string_buffer(_OFF)
    call = ctypes.cast(ctypes.pythonapi.PyRun_SimpleString, ctypes.c_void_p)
    ctypes.pythonapi.Py_AddPendingCall(call, text)
