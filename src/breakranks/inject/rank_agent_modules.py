"""The modules of the agent, as they are sent into a process that does not have breakranks."""

from __future__ import annotations

import binascii
import importlib.util
import marshal
import os
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader

from breakranks import __version__

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ALONE = ("__init__.py", "rankset.py", "rank_messages.py", "errors.py", "jobs/__init__.py", "jobs/launchers.py")


def bundle(only: Iterable[str] = ()) -> dict[str, object]:
    """Return the arguments from which an entry point of ``rank`` imports the agent.

    ``modules`` maps a name to its path, whether it is a package, its source, and its code compiled by this Python.
    ``at_fork`` is the source of rank/fork_hooks, which runs before any of them is imported.
    ``only`` names the modules of ``rank`` to include; the default is all of them.
    """
    names = [f"{name}.py" for name in ("__init__", *only)] if only else sorted(os.listdir(f"{_ROOT}/rank"))
    files = [*_ALONE, *(f"rank/{name}" for name in names)]
    modules = {}
    for file in files:
        if not file.endswith(".py"):
            continue
        path = f"{_ROOT}/{file}"
        stem = file.removesuffix(".py").removesuffix("__init__").strip("/")
        name = ".".join(["breakranks", *stem.split("/")]).strip(".")
        loader = SourceFileLoader(name, path)
        source = loader.get_source(name)
        modules[name] = (path, file.endswith("__init__.py"), source, marshal.dumps(loader.get_code(name)))
    return {
        "version": __version__,
        "at_fork": SourceFileLoader("fork_hooks", f"{_ROOT}/rank/fork_hooks.py").get_source("fork_hooks"),
        "magic": importlib.util.MAGIC_NUMBER.hex(),
        "modules": binascii.b2a_base64(marshal.dumps(modules), newline=False).decode(),
    }
