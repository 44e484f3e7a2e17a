"""Runs in a rank: loads modules of breakranks.rank there, and calls one of them.

The process need not have breakranks: the modules travel with this payload, and a finder for these modules alone is
installed. The called module gets the finder, and unloads everything with it. Nothing here may use globals of this
payload later: they are cleared when the answer has been returned.
"""

from __future__ import annotations

import sys
from typing import Any


def answer(arguments: dict[str, Any]) -> Any:
    """Return the reply as JSON, or a function that returns it, if that may take long."""
    reply = _called(arguments)
    dumps = __import__("json").dumps
    return (lambda: dumps(reply())) if callable(reply) else dumps(reply)


def _called(arguments: dict[str, Any]) -> Any:
    imported = sys.modules.get("breakranks")
    if imported is not None and type(getattr(imported, "__loader__", None)).__name__ != "Shipped":
        return _of_its_own(imported, arguments)
    finder = _used(arguments)
    try:
        called = _imported(arguments["module"])
    except BaseException:
        _take_back(finder)
        raise
    return called(arguments["given"], finder)


def _used(arguments: dict[str, Any]) -> Any:
    """Return the finder with its user count raised. The called module lowers it, and the last one unloads everything.

    Import nothing under the import lock: an import takes the lock of a module first, and then this one.
    """
    new = _finder(arguments)
    lock: Any = sys.modules["_imp"]
    lock.acquire_lock()  # an agent that leaves removes its modules under this lock
    try:
        for finder in sys.meta_path:
            if type(finder).__name__ == "Shipped":
                installed: Any = finder
                installed.add(_modules(arguments))  # an earlier payload may have needed fewer modules
                break
        else:
            installed = new
            sys.meta_path.insert(0, installed)
        installed.users += 1
    finally:
        lock.release_lock()
    return installed


def _imported(module: str) -> Any:
    """Import the module and return its ``answer``. A fork of the job waits until all imports are done."""
    forks = __import__("breakranks.rank.fork_hooks", fromlist=["state"])
    with forks.ForksPaused():
        _import_threading()
        return __import__(module, fromlist=["answer"]).answer


def _import_threading() -> None:
    """Import threading so that the job's main thread is its main thread.

    Before 3.13 the module takes the importing thread for it in all respects, from 3.13 on in some.
    """
    if "threading" in sys.modules:
        return
    threading: Any = __import__("threading")
    main = threading._main_thread
    mine = threading.get_ident()
    others = [ident for ident in sys._current_frames() if ident != mine]
    main._native_id = __import__("posix").getpid()
    if main.ident != mine or not others:
        return
    del threading._active[mine]
    main._ident = others[-1]  # the oldest
    threading._active[main._ident] = main
    # It must be locked until the main thread ends; the lock that it has now is released with this thread.
    own_lock = main._tstate_lock
    main._tstate_lock = __import__("_thread").allocate_lock()
    main._tstate_lock.acquire()
    if own_lock in threading._shutdown_locks:
        threading._shutdown_locks.discard(own_lock)
        threading._shutdown_locks.add(main._tstate_lock)


def _take_back(finder: Any) -> None:
    """After an import that failed."""
    lock: Any = sys.modules["_imp"]
    lock.acquire_lock()
    try:
        finder.users -= 1
        if not finder.users:
            sys.meta_path.remove(finder)
            for name in [name for name in sys.modules if name in finder.names]:
                del sys.modules[name]
    finally:
        lock.release_lock()


def _of_its_own(imported: Any, arguments: dict[str, Any]) -> Any:
    """Use the breakranks that the job has imported itself, if it has the same version."""
    version = str(getattr(imported, "__version__", "?"))
    if version != arguments["version"]:
        return {"refused": f"it has imported breakranks {version}, but this is {arguments['version']}"}
    return _imported(arguments["module"])(arguments["given"], None)


def _modules(arguments: dict[str, Any]) -> dict[str, tuple[str, bool, str, bytes]]:
    modules: dict[str, tuple[str, bool, str, bytes]]
    modules = __import__("marshal").loads(__import__("binascii").a2b_base64(arguments["modules"]))
    return modules


def _finder(arguments: dict[str, Any]) -> Any:
    loads = __import__("marshal").loads
    modules = _modules(arguments)
    bootstrap: Any = sys.modules["_frozen_importlib"]
    spec_of = bootstrap.ModuleSpec
    fits = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER.hex() == arguments["magic"]

    class Shipped:
        """Loads the modules that travel with the payload, under their original paths."""

        users = 0
        names = modules.keys()

        def add(self, more: dict[str, tuple[str, bool, str, bytes]]) -> None:
            modules.update({name: module for name, module in more.items() if name not in modules})

        def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
            if name not in modules:
                return None
            spec = spec_of(name, self, origin=modules[name][0], is_package=modules[name][1])
            spec.has_location = True
            return spec

        def create_module(self, spec: object) -> None:
            return None

        def exec_module(self, module: Any) -> None:
            path, _, source, code = modules[module.__name__]
            exec(loads(code) if fits else compile(source, path, "exec", dont_inherit=True), module.__dict__)

        def get_source(self, name: str) -> str:
            return modules[name][2]

        def close(self) -> None:
            modules.clear()

    return Shipped()
