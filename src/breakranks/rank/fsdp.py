"""Whether a frame is inside a module that FSDP gathers, and which values can be inspected there.

Between its all-gathers the parameters of a module are whole, and those of other modules are shards. The stop tells
which are whole, and what would wait for other ranks.
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
    """Return the FSDP module whose forward or backward the frame is in, innermost first; None outside of one."""
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
    gathered = [name for part, name in _modules(outermost, names) if _gathered(part)]
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
    """Whether a value is an instance of torch's class ``name``; nothing is imported for it."""
    return any(kind.__name__ == name and kind.__module__.startswith("torch.") for kind in type(value).__mro__)


def parallel(module: Any) -> str:
    """Return the wrapper by which a module's forward communicates: FSDP2, FSDP1, DDP or an empty text."""
    for name, kind in (
        ("FSDPModule", "FSDP2"),
        ("FullyShardedDataParallel", "FSDP1"),
        ("DistributedDataParallel", "DDP"),
    ):
        if named(module, name):
            return kind
    return ""


def within(module: Any, depth: int = 0) -> Iterator[Any]:
    """Yield a module and its submodules, outermost first; none of their methods is called."""
    yield module
    for child in list((vars(module).get("_modules") or {}).values()):
        if child is not None and depth < 64:
            yield from within(child, depth + 1)


def groups_of(module: Any) -> Iterator[Any]:
    """Yield the process groups in which a module's forward or backward communicates."""
    if parallel(module) != "FSDP2":
        yield vars(module).get("process_group")
        return
    state = next((state for other, state in _states() if other is module), None)
    for param_group in _param_groups(state):
        for name in ("shard_process_group", "replicate_process_group"):
            group = getattr(getattr(param_group, "mesh_info", None), name, None)
            if group is not None:
                yield group


def _safe(name: str, gathered: bool, backward: bool) -> list[str]:
    module = f"module {name!r}" if name else "the root module"
    whole = f"The parameters of {module} are gathered: whole, and the same on every rank."
    shards = f"The parameters of {module} are not gathered here: they are this rank's shard."
    return [
        "Gradients computed so far can be inspected." if backward else "Activations can be inspected.",
        whole if gathered else shards,
        "Parameters of modules that are not gathered are this rank's shard.",
        "`.full_tensor()` and a forward are collectives: run them on all ranks with `all p …`.",
        "To pass the next all-gather, step all ranks: `all n`.",
    ]


def _calls(frame: FrameType | None) -> Iterator[Any]:
    """Yield the modules that are being called, innermost first."""
    for caller in outwards(frame):
        code = caller.f_code
        if code.co_name in CALLS and code.co_filename.endswith("/torch/nn/modules/module.py"):
            module = caller.f_locals.get("self")
            if module is not None:
                yield module


def _in_backward(frame: FrameType | None) -> bool:
    for caller in outwards(frame):
        code = caller.f_code
        if code.co_name in ("_engine_run_backward", "backward") and code.co_filename.endswith(ENGINE):
            return True
    # On a device the engine's threads have no such frame. They have a task id, which only the thread itself can read.
    task_id = getattr(sys.modules["torch"]._C, "_current_graph_task_id", None)
    own_thread = any(caller is frame for caller in outwards(sys._getframe()))
    return bool(own_thread and task_id is not None and task_id() != -1)


def _sharded(module: Any) -> bool:
    return parallel(module).startswith("FSDP")


def class_of(module: Any) -> str:
    """Return the user's name of a module's class. fully_shard makes a new class, FSDP1 and DDP wrap the module."""
    children = vars(module).get("_modules") or {}
    if parallel(module) in ("FSDP1", "DDP"):
        return type(children.get("_fsdp_wrapped_module", children.get("module", module))).__name__
    bases = [base.__name__ for base in type(module).__bases__]
    return next(name for name in bases if name != "FSDPModule") if "FSDPModule" in bases else type(module).__name__


def _names(module: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[int, str]]:
    yield id(module), prefix
    for name, child in list((vars(module).get("_modules") or {}).items()):
        if child is not None and depth < 64:
            # FSDP1's wrapper is not part of the name that the user knows.
            own = "" if name == "_fsdp_wrapped_module" else name
            yield from _names(child, f"{prefix}.{own}".strip("."), depth + 1)


def _modules(outermost: Any, names: dict[int, str]) -> Iterator[tuple[Any, str]]:
    for module in within(outermost):
        if _sharded(module):
            yield module, names.get(id(module), "")


def _states() -> list[tuple[Any, Any]]:
    mapping = getattr(sys.modules.get("torch.distributed._composable_state"), "_module_state_mapping", {})
    return [(module, held() if callable(held) else held) for module, held in list(mapping.items())]


def _param_groups(state: Any) -> list[Any]:
    several = getattr(state, "_fsdp_param_groups", None)
    single = [] if several is not None else [getattr(state, "_fsdp_param_group", None)]
    return [group for group in (several or single) if group is not None]


def _gathered(module: Any) -> bool:
    try:
        if parallel(module) == "FSDP1":
            handle = vars(module).get("_handle")
            return handle is not None and not handle.is_sharded(handle.flat_param)
        state = next((state for other, state in _states() if other is module), None)
        return any(group._sharded_state.name == "UNSHARDED" for group in _param_groups(state))
    except Exception:
        return False


def _in_its_backward() -> tuple[Any, Any]:
    """Return the outermost module, and the innermost one in it whose backward has begun and not ended."""
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
