"""Where a running thread is: its frames, and the collective that it is in or waits for.

Another thread reads this while the first one runs, so anything may change between two lines.
"""

from __future__ import annotations

import ast
import builtins
import json
import linecache
import os
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LIBRARY = os.path.dirname(os.__file__) + os.sep
SOURCES = ("/torch/distributed/distributed_c10d.py", "/torch/distributed/_functional_collectives.py")
# The functions there that communicate, by their public names. All others only prepare or look up.
COLLECTIVES = frozenset(
    """all_reduce all_reduce_coalesced all_gather all_gather_into_tensor all_gather_coalesced all_gather_object
    all_gather_tensor all_gather_tensor_autograd all_gather_single all_reduce_inplace all_to_all all_to_all_single
    all_to_all_single_autograd barrier batch_isend_irecv broadcast broadcast_object_list gather gather_object irecv
    isend monitored_barrier new_group permute_tensor recv recv_object_list reduce reduce_scatter reduce_scatter_single
    reduce_scatter_tensor reduce_scatter_tensor_autograd scatter scatter_object_list send send_object_list split_group
    wait_tensor init_process_group destroy_process_group _all_gather_base _reduce_scatter_base _store_based_barrier
    _new_group_with_tag""".split()
)
MAX_FRAMES = 1000

Frame = dict[str, Any]


def frames_of(frame: FrameType | None, most: int = 64) -> list[Frame]:
    """Return function, file and line of each frame, innermost first."""
    return [_described(caller) for caller, _ in zip(outwards(frame), range(most), strict=False)]


def collective_of(frame: FrameType | None) -> Frame | None:
    """Return the collective that a stack is in, or else the last one of the process that has begun and not ended.

    ``file``, ``line`` and ``function`` are those of the innermost frame of the user's code.
    """
    try:
        found = _on_stack(frame) or _recorded()
        return None if found is None else {**found, **_users(frame)}
    except Exception:
        return None


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers, innermost first, at most MAX_FRAMES."""
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _described(frame: FrameType) -> Frame:
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)  # since Python 3.11
    return {"function": name, "file": code.co_filename, "line": frame.f_lineno or code.co_firstlineno}


def _users(frame: FrameType | None) -> Frame:
    for caller in outwards(frame):
        if not is_foreign(caller.f_code.co_filename):
            return _described(caller)
    return {}


def is_foreign(file: str) -> bool:
    """Whether a file belongs to torch, breakranks or Python itself."""
    if file.startswith("<"):
        return file.startswith("<frozen")
    if file.startswith((OURS, _torch())) or file.endswith("/typing_extensions.py"):  # has torch's decorators
        return True
    return file.startswith(LIBRARY) and "-packages" not in file


def _torch() -> str:
    return os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or OURS) + os.sep


def _on_stack(frame: FrameType | None) -> Frame | None:
    """Return the outermost of consecutive frames of torch: all_gather_object, not the all_gather inside it."""
    found = None
    for caller in outwards(frame):
        code = caller.f_code
        if code.co_name in COLLECTIVES and code.co_filename.endswith(SOURCES):
            found = caller
        elif found is not None and not is_foreign(code.co_filename):
            break
    if found is None:
        return None
    members, name = _group_of(found)
    return {"op": found.f_code.co_name, "group": name, "members": members}


def _group_of(frame: FrameType) -> tuple[list[int], str]:
    seen = frame.f_locals
    group = seen.get("group", seen.get("pg"))
    operations = seen.get("p2p_op_list")
    if group is None and operations:
        group = getattr(operations[0], "group", None)
    return members_of(group)


def members_of(group: Any) -> tuple[list[int], str]:
    """Return the global ranks and the name of a group, in any form that torch accepts. None is the default group."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    if world is None:
        return [], ""
    found = _resolved(group, world)
    if found is None:
        return (sorted(int(rank) for rank in group), "") if _are_ranks(group) else ([], "")
    ranks = world.pg_group_ranks.get(found) or {}
    desc = str(getattr(found, "group_desc", "") or "")
    name = str(world.pg_names.get(found, "") or "")
    return sorted(ranks), desc if desc and desc != "undefined" else name


def _are_ranks(group: Any) -> bool:
    return isinstance(group, (list, tuple, range)) and bool(group) and all(type(rank) is int for rank in group)


def _resolved(group: Any, world: Any) -> Any:
    """Return the registered group of a group, a name, a device mesh, or a mesh and a dimension."""
    if group is None:
        return world.default_pg
    if isinstance(group, str):
        return next((known for known, name in list(world.pg_names.items()) if name == group), None)
    if isinstance(group, tuple) and len(group) == 2 and hasattr(group[0], "get_group"):
        return group[0].get_group(group[1])
    if hasattr(group, "get_group") and hasattr(group, "mesh"):
        return group.get_group()
    try:
        return group if group in world.pg_group_ranks else None
    except TypeError:
        return None


def _recorded() -> Frame | None:
    """Return what the flight recorder has begun and not retired: DDP's reductions are in no Python frame."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_fr_trace_json", None) or getattr(c10d, "_dump_nccl_trace_json", None)
    if dump is None:
        return None
    entries = json.loads(dump(True, True)).get("entries") or []
    pending = [entry for entry in entries if not entry.get("retired", True)]
    if not pending:
        return None
    last = max(pending, key=lambda entry: entry.get("time_created_ns", 0))
    name, desc = (str(part) for part in (*last.get("process_group", ()), "", "")[:2])
    # Under DETAIL the recorder has no names: the group is the default one or unknown.
    members = members_of(name)[0] if name else []
    op = str(last.get("profiling_name", "")).partition(":")[2] or str(last.get("profiling_name", ""))
    return {"op": op, "group": desc if desc and desc != "undefined" else name, "members": members}


def knowing(frames: Sequence[FrameType], tree: ast.AST) -> FrameType:
    """Return the innermost frame that knows all names of a source; if possible also the names that it assigns to.

    If no frame knows them, return the innermost frame.
    """
    nodes = list(ast.walk(tree))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)} - bound
    kinds = (ast.Assign, ast.AugAssign, ast.AnnAssign)
    assigned = {
        part.id for node in nodes if isinstance(node, kinds) for part in ast.walk(node) if isinstance(part, ast.Name)
    }
    for wanted in (names | assigned, names):
        for frame in frames:
            local = frame.f_locals
            if all(name in local or name in frame.f_globals or hasattr(builtins, name) for name in wanted):
                return frame
    return frames[0]


def place(frame: FrameType | None) -> dict[str, Any]:
    """Return file, line, function and source line of a frame."""
    if frame is None:
        return {}
    file, line = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(file, line, frame.f_globals).strip()
    return {"file": os.path.abspath(file), "line": line, "function": frame.f_code.co_name, "source": source[:200]}
