"""Whether a frame is inside a module that FSDP gathers, and what may be looked at there.

Between its all-gathers a module's parameters are whole, and those of others are shards. A person who stops there should
know which is which, and what would wait for other ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from breakranks.rank.thread_location import outwards

CALLS = ("_wrapped_call_impl", "_call_impl")
ENGINE = ("/torch/autograd/graph.py", "/torch/autograd/__init__.py")
MAX_NAMED = 8


def inside_of(frame: FrameType | None) -> dict[str, Any] | None:
    """Which FSDP module's forward or backward a frame is in, outwards from it; None if in none."""
    try:
        return _inside(frame)
    except Exception:
        return None


def _inside(frame: FrameType | None) -> dict[str, Any] | None:
    stack = list(_calls(frame))
    backward = _in_backward(frame)
    sharded = [module for module in stack if _sharded(module)]
    outermost = stack[-1] if stack else None
    module = sharded[0] if sharded else None
    if module is None and backward:
        outermost, module = _in_its_backward()
    if module is None or outermost is None:
        return None
    names = dict(_names(outermost))
    gathered = [name for one, name in _modules(outermost, names) if _gathered(one)]
    name = names.get(id(module), "")
    return {
        "kind": parallel(module),
        "module": name,
        "class": class_of(module),
        "pass": "backward" if backward else "forward",
        "gathered": gathered[:MAX_NAMED],
        "gathered_count": len(gathered),
        "safe": _safe(name, _gathered(module), backward),
    }


def named(value: Any, name: str) -> bool:
    return any(one.__name__ == name and one.__module__.startswith("torch.") for one in type(value).__mro__)


def parallel(module: Any) -> str:
    """What a module's forward communicates as: FSDP2, FSDP1, DDP or nothing."""
    for name, kind in (
        ("FSDPModule", "FSDP2"),
        ("FullyShardedDataParallel", "FSDP1"),
        ("DistributedDataParallel", "DDP"),
    ):
        if named(module, name):
            return kind
    return ""


def within(module: Any, depth: int = 0) -> Iterator[Any]:
    """A module and those in it, outermost first; none of their methods runs."""
    yield module
    for child in list((vars(module).get("_modules") or {}).values()):
        if child is not None and depth < 64:
            yield from within(child, depth + 1)


def groups_of(module: Any) -> Iterator[Any]:
    """The process groups that a module's forward or backward communicates in."""
    if parallel(module) != "FSDP2":
        yield vars(module).get("process_group")
        return
    state = next((state for one, state in _states() if one is module), None)
    for group in _param_groups(state):
        for name in ("shard_process_group", "replicate_process_group"):
            found = getattr(getattr(group, "mesh_info", None), name, None)
            if found is not None:
                yield found


def _safe(name: str, gathered: bool, backward: bool) -> list[str]:
    module = f"module {name!r}" if name else "the root module"
    whole = f"The parameters of {module} are gathered: whole, and the same on every rank."
    shards = f"The parameters of {module} are not gathered here: what you see is this rank's shard."
    return [
        "Gradients that have arrived here are safe to look at." if backward else "Activations are safe to look at.",
        whole if gathered else shards,
        "Parameters of modules that are not gathered are this rank's shard.",
        "`.full_tensor()` and another forward are collectives: `all p …` runs them on all ranks.",
        "To cross the next all-gather all ranks must step: `all n`.",
    ]


def _calls(frame: FrameType | None) -> Iterator[Any]:
    """The modules that are being called, innermost first."""
    for one in outwards(frame):
        code = one.f_code
        if code.co_name in CALLS and code.co_filename.endswith("/torch/nn/modules/module.py"):
            module = one.f_locals.get("self")
            if module is not None:
                yield module


def _in_backward(frame: FrameType | None) -> bool:
    for one in outwards(frame):
        code = one.f_code
        if code.co_name in ("_engine_run_backward", "backward") and code.co_filename.endswith(ENGINE):
            return True
    # On a device the engine's threads have no such frame; they know their task, if the frame is of this thread.
    task = getattr(sys.modules["torch"]._C, "_current_graph_task_id", None)
    mine = any(one is frame for one in outwards(sys._getframe()))
    return bool(mine and task is not None and task() != -1)


def _sharded(module: Any) -> bool:
    return parallel(module).startswith("FSDP")


def class_of(module: Any) -> str:
    """What the user called it: fully_shard makes a class of its own, FSDP1 and DDP a module around it."""
    children = vars(module).get("_modules") or {}
    if parallel(module) in ("FSDP1", "DDP"):
        return type(children.get("_fsdp_wrapped_module", children.get("module", module))).__name__
    bases = [one.__name__ for one in type(module).__bases__]
    return next(name for name in bases if name != "FSDPModule") if "FSDPModule" in bases else type(module).__name__


def _names(module: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[int, str]]:
    yield id(module), prefix
    for name, child in list((vars(module).get("_modules") or {}).items()):
        if child is not None and depth < 64:
            # FSDP1's wrapper is no part of the name that the user knows.
            own = "" if name == "_fsdp_wrapped_module" else name
            yield from _names(child, f"{prefix}.{own}".strip("."), depth + 1)


def _modules(outermost: Any, names: dict[int, str]) -> Iterator[tuple[Any, str]]:
    for one in within(outermost):
        if _sharded(one):
            yield one, names.get(id(one), "")


def _states() -> list[tuple[Any, Any]]:
    mapping = getattr(sys.modules.get("torch.distributed._composable_state"), "_module_state_mapping", {})
    return [(module, held() if callable(held) else held) for module, held in list(mapping.items())]


def _param_groups(state: Any) -> list[Any]:
    several = getattr(state, "_fsdp_param_groups", None)
    one = [] if several is not None else [getattr(state, "_fsdp_param_group", None)]
    return [group for group in (several or one) if group is not None]


def _gathered(module: Any) -> bool:
    try:
        if parallel(module) == "FSDP1":
            handle = vars(module).get("_handle")
            return handle is not None and not handle.is_sharded(handle.flat_param)
        state = next((state for one, state in _states() if one is module), None)
        return any(group._sharded_state.name == "UNSHARDED" for group in _param_groups(state))
    except Exception:
        return False


def _in_its_backward() -> tuple[Any, Any]:
    """The outermost module, and the inmost one in it whose backward has begun and not ended."""
    states = _states()
    begun = {id(module) for module, state in states if any(map(_in_pre_backward, _param_groups(state)))}
    for root in [module for module, state in states if getattr(state, "_is_root", False)]:
        inside = [module for module in within(root) if id(module) in begun]
        if inside:
            names = dict(_names(root))
            return root, max(inside, key=lambda module: len(names[id(module)].split(".")) * bool(names[id(module)]))
    return None, None


def _in_pre_backward(group: Any) -> bool:
    return bool(group._training_state.name == "PRE_BACKWARD")
