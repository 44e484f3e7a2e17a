"""Runs in a rank that somebody visits: brings modules of rank there, and calls one of them.

The process need not have breakranks: its modules come along, and are found by a finder that knows nothing else. Whoever
is called gets the finder, and takes all of it out again. What is here must not use its own globals later, which are
cleared when the answer is out.
"""

from __future__ import annotations

import sys
from typing import Any


def answer(arguments: dict[str, Any]) -> Any:
    """What is to be told; or, where it may take long, what tells it."""
    found = _called(arguments)
    dumps = __import__("json").dumps
    return (lambda: dumps(found())) if callable(found) else dumps(found)


def _called(arguments: dict[str, Any]) -> Any:
    have = sys.modules.get("breakranks")
    if have is not None and type(getattr(have, "__loader__", None)).__name__ != "Shipped":
        return _of_its_own(have, arguments)
    finder = _used(arguments)
    try:
        called = _imported(arguments["module"])
    except BaseException:
        _take_back(finder)
        raise
    return called(arguments["given"], finder)


def _used(arguments: dict[str, Any]) -> Any:
    """The finder, with one user more: whoever is called gives that back, and the last takes all of it out.

    Nothing is imported under the import lock: who imports has the lock of a module first, and then this one.
    """
    made = _finder(arguments)
    lock: Any = sys.modules["_imp"]
    lock.acquire_lock()  # an agent that leaves takes all of its modules out under it
    try:
        for finder in sys.meta_path:
            if type(finder).__name__ == "Shipped":
                there: Any = finder
                there.add(_modules(arguments))  # who was here before may have needed less
                break
        else:
            there = made
            sys.meta_path.insert(0, there)
        there.users += 1
    finally:
        lock.release_lock()
    return there


def _imported(module: str) -> Any:
    """The function that answers; a fork of the job's waits until all that it needs is imported."""
    forks = __import__("breakranks.rank.fork_hooks", fromlist=["state"])
    with forks.ForksPaused():
        _import_threading()
        return __import__(module, fromlist=["answer"]).answer


def _import_threading() -> None:
    """Whoever imports it first is the main thread to it, before 3.13 in all, then in part: that must not be us."""
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
    # It is expected to be locked until the main thread ends; the one that it has now ends with ours.
    ours = main._tstate_lock
    main._tstate_lock = __import__("_thread").allocate_lock()
    main._tstate_lock.acquire()
    if ours in threading._shutdown_locks:
        threading._shutdown_locks.discard(ours)
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


def _of_its_own(have: Any, arguments: dict[str, Any]) -> Any:
    """The job has imported breakranks itself: its own is used, if it is one that we understand."""
    theirs = str(getattr(have, "__version__", "?"))
    if theirs != arguments["version"]:
        return {"refused": f"it has imported breakranks {theirs}, and this is {arguments['version']}"}
    return _imported(arguments["module"])(arguments["given"], None)


def _modules(arguments: dict[str, Any]) -> dict[str, tuple[str, bool, str, bytes]]:
    found: dict[str, tuple[str, bool, str, bytes]]
    found = __import__("marshal").loads(__import__("binascii").a2b_base64(arguments["modules"]))
    return found


def _finder(arguments: dict[str, Any]) -> Any:
    loads = __import__("marshal").loads
    modules = _modules(arguments)
    bootstrap: Any = sys.modules["_frozen_importlib"]
    spec_of = bootstrap.ModuleSpec
    fits = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER.hex() == arguments["magic"]

    class Shipped:
        """Gives out the modules that came along, by the path that they had where they came from."""

        users = 0
        names = modules.keys()

        def add(self, more: dict[str, tuple[str, bool, str, bytes]]) -> None:
            modules.update({name: found for name, found in more.items() if name not in modules})

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
