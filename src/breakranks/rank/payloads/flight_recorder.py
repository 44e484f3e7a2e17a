"""Runs in a rank: returns its flight recorder as bytes, and facts about its groups that only the process has.

The answer is a line of JSON with the sizes of the dumps, then the dumps as torch wrote them. Nothing is imported: what
the process has not imported it does not use. Dumps are without stacks: with stacks torch takes a second or more for a
full ring, and in that time no other thread of the process could run Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def answer(arguments: dict[str, Any]) -> bytes:
    json = __import__("json")
    dumps = _dumps()
    head = {
        "torch": str(getattr(sys.modules.get("torch"), "__version__", "")),
        "sizes": [len(dump) for dump in dumps],
        "groups": _guarded(_groups, []),
        "threads": _guarded(_threads, {}),
        "notes": _guarded(_notes, {}),
        "rank": _guarded(_rank, -1),
    }
    return b"".join([json.dumps(head).encode(), b"\n", *dumps])


def _guarded(function: Callable[[], Any], otherwise: Any) -> Any:
    """Return the result, or ``otherwise`` if private parts of torch are different in this version."""
    try:
        return function()
    except Exception:
        return otherwise


def _dumps() -> list[bytes]:
    c10d = sys.modules.get("torch._C._distributed_c10d")
    found: list[bytes] = []
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        dump = getattr(c10d, name, None)
        if dump is None:
            continue
        try:
            data = dump(True, False, False)  # all collectives, no stacks, not only those under way
        except TypeError:
            data = dump()  # before version 2.1 of the recorder
        if data and data not in found:
            found.append(data)
    return found


def _world() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]._world


def _rank() -> int:
    return int(sys.modules["torch.distributed.distributed_c10d"].get_rank())


def _groups() -> list[dict[str, Any]]:
    world = _world()
    found = []
    for group, ranks in list(world.pg_group_ranks.items()):
        name = world.pg_names.get(group)
        if name is None or not isinstance(ranks, dict):
            continue
        backend = world.pg_map.get(group, ("", None))[0]
        found.append(
            {
                "name": str(name),
                "desc": str(getattr(group, "group_desc", "") or ""),
                "ranks": sorted(ranks),
                "backend": str(backend),
                "timeout": _guarded_timeout(group),
            }
        )
    return found


def _guarded_timeout(group: Any) -> float:
    try:
        return _timeout(group)
    except Exception:
        return 0.0


def _timeout(group: Any) -> float:
    for device in group._device_types:
        return float(group._get_backend(device).options._timeout.total_seconds())
    return 0.0


def _threads() -> dict[str, int]:
    """Map the pthread id of each Python thread, which the recorder uses, to the kernel's thread id."""
    known = dict(sys.modules["threading"]._active)
    return {str(ident): thread.native_id for ident, thread in known.items() if getattr(thread, "native_id", None)}


def _notes() -> dict[str, str]:
    """Return the module for which the main thread gathers parameters, if it is in FSDP."""
    main = sys.modules["threading"].main_thread().ident
    frame: FrameType | None = sys._current_frames().get(main)
    depth = 0
    while frame is not None and depth < 200:
        name = _module(frame) if "/fsdp/" in frame.f_code.co_filename else ""
        if name:
            return {"fsdp": name}
        frame = frame.f_back
        depth += 1
    return {}


def _module(frame: FrameType) -> str:
    """Return the module whose parameters a frame of FSDP handles: from FSDP2's group or FSDP1's handle."""
    seen = frame.f_locals
    for owner in (seen.get("self"), seen.get("state"), seen.get("handle")):
        if owner is None:
            continue
        fqn = getattr(owner, "_module_fqn", None)
        if isinstance(fqn, str) and fqn:
            return f"module {fqn}"
        names = getattr(getattr(owner, "flat_param", None), "_fqns", None)
        if names:
            module = getattr(owner, "_fully_sharded_module", None)
            listed = ", ".join(str(name) for name in names[:3]) + (", …" if len(names) > 3 else "")
            return f"{type(module).__name__} ({listed})" if module is not None else listed
    return ""
