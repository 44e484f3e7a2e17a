"""Refuses code typed at one rank's prompt that would start a collective which the other ranks do not join.

There are two checks. ``precheck`` reads the source before anything runs. ``guarding`` intercepts torch's operations
while it runs. The first matters most for FSDP: a collective that is refused midway leaves its modules half gathered.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import inspect
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

from breakranks.rank.fsdp import class_of, groups_of, named, parallel, within
from breakranks.rank.thread_location import COLLECTIVES, members_of

NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "symm_mem")
# The ranks of these depend on the peer, which only guarding sees.
TO_PEERS = frozenset("send recv isend irecv batch_isend_irecv send_object_list recv_object_list wait_tensor".split())
MODULE_METHODS = frozenset(
    """forward __call__ unshard reshard state_dict load_state_dict summon_full_params clip_grad_norm_
    sharded_state_dict""".split()
)
MPI_METHODS = frozenset(
    """barrier bcast gather gatherv scatter scatterv allgather allgatherv alltoall alltoallv alltoallw reduce allreduce
    reduce_scatter reduce_scatter_block scan exscan split dup create spawn ibarrier ibcast igather iscatter iallgather
    iallreduce ireduce send recv ssend sendrecv probe disconnect free""".split()
)
MINDSPORE = frozenset(
    """AllReduce AllGather ReduceScatter Broadcast AlltoAll Reduce Barrier CollectiveGather CollectiveScatter all_reduce
    all_gather_into_tensor all_gather reduce_scatter_tensor reduce_scatter broadcast barrier all_to_all_single
    all_to_all_with_output_shape gather_into_tensor scatter_tensor reduce""".split()
)
# The public names of operations of torch's dispatcher.
KNOWN_AS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgather_base": "all_gather_into_tensor",
    "reduce_scatter_base": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
}
UNKNOWN = object()


class CollectiveRefused(Exception):
    """A collective of which some ranks would not take part."""

    def __init__(self, op: str, members: Iterable[int], participants: Iterable[int], group: str = "") -> None:
        self.op = op
        self.group = group
        self.members = sorted(members)
        self.missing = sorted(set(self.members) - set(participants))
        self.collective = f"{op} of group {group!r}" if group else op
        super().__init__(
            f"{self.collective} needs ranks {fold(self.members)}; {_named(self.missing)} would not take part"
        )


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {fold(ranks)}"


def fold(ranks: Iterable[int]) -> str:
    """Return ranks folded: ``0-2,5``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def precheck(
    source: str, frame_globals: Mapping[str, Any], frame_locals: Mapping[str, Any], participants: frozenset[int]
) -> CollectiveRefused | None:
    """Return why a source must not run on these ranks alone, or None. Nothing of the source runs."""
    try:
        tree = ast.parse(source.strip())
        names = _Names(tree, frame_locals, frame_globals)
        for node in ast.walk(tree):
            for op, members, group in _needs(names, node) if isinstance(node, ast.Call) else ():
                if not participants.issuperset(members):
                    return CollectiveRefused(op, members, participants, group)
    except Exception:
        pass  # what cannot be read from the text is left to guarding()
    return None


Need = tuple[str, list[int], str]  # a collective: its name, the ranks of its group, the group's name


class _Names:
    """Resolves names and attributes to values. No property and no ``__getattr__`` of the job runs."""

    def __init__(self, tree: ast.AST, *scopes: Mapping[str, Any]) -> None:
        self.scopes = (*scopes, vars(builtins))
        nodes = list(ast.walk(tree))
        bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        self.bound = bound | {node.arg for node in nodes if isinstance(node, ast.arg)}

    def value(self, node: ast.AST | None) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return -node.operand.value if isinstance(node.operand.value, int) else UNKNOWN
        if isinstance(node, ast.Name) and node.id not in self.bound:
            return next((scope[node.id] for scope in self.scopes if node.id in scope), UNKNOWN)
        if isinstance(node, ast.Attribute):
            return attribute(self.value(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return _item(self.value(node.value), self.value(node.slice))
        return UNKNOWN


def attribute(base: Any, name: str) -> Any:
    """Return an attribute that is a plain value, without running code of the job; else UNKNOWN."""
    if base is UNKNOWN:
        return UNKNOWN
    if isinstance(base, ModuleType):
        return vars(base).get(name, UNKNOWN)
    if _is_module(base):
        for place in (vars(base), *(vars(base).get(kind) or {} for kind in ("_modules", "_parameters", "_buffers"))):
            if name in place:
                return place[name]
    value = inspect.getattr_static(base, name, UNKNOWN)
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    return UNKNOWN if isinstance(value, property) or inspect.isdatadescriptor(value) else value


def _item(base: Any, key: Any) -> Any:
    try:
        if type(base) in (list, tuple, dict):
            return base[key]
        if _is_module(base) and isinstance(key, (int, str)):
            children = vars(base)["_modules"]
            return list(children.values())[key] if isinstance(key, int) else children[key]
    except (LookupError, TypeError):
        pass
    return UNKNOWN


def _needs(names: _Names, call: ast.Call) -> Iterator[Need]:
    """Yield the collectives that a call would start, as far as its text tells."""
    target = names.value(call.func)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    base = names.value(call.func.value) if isinstance(call.func, ast.Attribute) else UNKNOWN
    if _is_module(target):
        yield from _of_module(target, "forward")
    elif _is_module(base) and method in MODULE_METHODS:
        yield from _of_module(base, method.strip("_").replace("call", "forward"))
    elif method in ("full_tensor", "redistribute") and named(base, "DTensor"):
        yield from _of_dtensor(base, method)
    elif method == "backward":
        for value in (value for scope in names.scopes[:2] for value in list(scope.values())):
            yield from _of_module(value, "backward") if _is_module(value) else ()
    elif isinstance(target, (FunctionType, MethodType)):
        yield from _of_function(names, call, target)
    elif type(base).__module__.startswith("mpi4py") and method.lower() in MPI_METHODS:
        yield from _of_mpi(base, method)
    elif type(target).__module__.startswith("mindspore") and type(target).__name__ in MINDSPORE:
        yield from _of_mindspore(type(target).__name__)


def _is_module(value: Any) -> bool:
    kind = getattr(sys.modules.get("torch.nn"), "Module", None)
    return kind is not None and isinstance(value, kind) and isinstance(vars(value).get("_modules"), dict)


def _of_module(module: Any, method: str) -> Iterator[Need]:
    for part in within(module):
        kind = parallel(part)
        # Only FSDP gathers anything for these. FSDP2's state_dict gathers nothing, but reshards: then this rank alone
        # would gather again in its next pass.
        if not kind or (method in ("state_dict", "load_state_dict", "reshard") and not kind.startswith("FSDP")):
            continue
        for group in groups_of(part):
            members, name = members_of(group)
            yield f"{method} of {class_of(module)} ({kind})", members, name


def _of_dtensor(value: Any, method: str) -> Iterator[Need]:
    spec = value._spec
    dimensions = [at for at, placement in enumerate(spec.placements) if type(placement).__name__ != "Replicate"]
    if len(dimensions) == 1:
        members, name = members_of((spec.mesh, dimensions[0]))
        yield method, members, name
    elif dimensions or method == "redistribute":
        yield method, sorted(int(rank) for rank in spec.mesh.mesh.flatten().tolist()), ""


def _of_function(names: _Names, call: ast.Call, target: Any) -> Iterator[Need]:
    module, name = str(getattr(target, "__module__", "")), str(getattr(target, "__name__", ""))
    if module.startswith("torch.distributed") and name in COLLECTIVES and name not in TO_PEERS:
        given = _group_argument(names, call, target)
        if given is UNKNOWN:
            return
        members, group = members_of(given)
        yield name, members or _launched(), group
    elif module.startswith("torch.distributed.checkpoint") and not name.startswith("_"):
        members, group = members_of(None)
        yield name, members, group
    elif module.startswith("mindspore") and name in MINDSPORE:
        yield from _of_mindspore(name)


def _group_argument(names: _Names, call: ast.Call, target: Any) -> Any:
    """Return the group that a call names, or None, the default group."""
    for keyword in call.keywords:
        if keyword.arg in ("group", "pg"):
            return names.value(keyword.value)
    parameters = list(inspect.signature(target).parameters)
    at = parameters.index("group") if "group" in parameters else len(call.args)
    return names.value(call.args[at]) if at < len(call.args) else None


def _launched() -> list[int]:
    """Return all ranks by the launcher's variable, where there is no group yet."""
    return list(range(int(os.environ.get("WORLD_SIZE", "0"))))


def _of_mpi(comm: Any, method: str) -> Iterator[Need]:
    mpi: Any = sys.modules["mpi4py.MPI"]
    if isinstance(comm, mpi.Comm) and comm != mpi.COMM_NULL:
        group = comm.Get_group()
        ranks = mpi.Group.Translate_ranks(group, list(range(group.Get_size())), mpi.COMM_WORLD.Get_group())
        yield method, [int(rank) for rank in ranks], str(comm.Get_name())


def _of_mindspore(op: str) -> Iterator[Need]:
    yield op, list(range(sys.modules["mindspore.communication"].get_group_size())), ""


@contextlib.contextmanager
def guarding(participants: frozenset[int], *, modules: bool = True) -> Iterator[None]:
    """Raise CollectiveRefused from a collective of torch that would wait for other ranks, before it is issued.

    This applies to this thread. ``modules``: also refuse forwards, before they begin; this needs a hook that all
    threads call.
    """
    with contextlib.ExitStack() as stack:
        try:
            world = members_of(None)[0]
            if world and not participants.issuperset(world):
                if modules:
                    stack.enter_context(_before_modules(participants))
                stack.enter_context(_mode_class()(participants))
        except Exception:
            pass  # a version of torch without this interface: precheck() is the only check
        yield


@contextlib.contextmanager
def _before_modules(participants: frozenset[int]) -> Iterator[None]:
    """Refuse a forward before FSDP's own hooks begin it: global hooks run first."""
    own_thread = threading.get_ident()

    def check(module: Any, _: Any) -> None:
        if threading.get_ident() == own_thread and parallel(module):
            for op, members, group in _of_module(module, "forward"):
                if not participants.issuperset(members):
                    raise CollectiveRefused(op, members, participants, group)

    handle = sys.modules["torch.nn.modules.module"].register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()


@functools.cache
def _mode_class() -> Any:
    base: Any = sys.modules["torch.utils._python_dispatch"].TorchDispatchMode

    class Guard(base):  # type: ignore[misc]
        def __init__(self, participants: frozenset[int]) -> None:
            super().__init__()
            self.participants = participants

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else torch imports its compiler into the job: 800 modules, 2 seconds

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "namespace", "") in NAMESPACES:
                _check(func, args, kwargs or {}, self.participants)
            elif any(kind.__name__ in ("DTensor", "AsyncCollectiveTensor") for kind in types):
                return NotImplemented  # a DTensor first becomes its local operations, which come here again
            return func(*args, **(kwargs or {}))

    return Guard


def _check(func: Any, args: Any, kwargs: dict[str, Any], participants: frozenset[int]) -> None:
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    group: Any = next((given[name] for name in ("process_group", "group_name") if name in given), UNKNOWN)
    if group is UNKNOWN:
        return
    if not isinstance(group, str):
        group = sys.modules["torch._C._distributed_c10d"].ProcessGroup.unbox(group)
    members, name = members_of(group)
    op = func._schema.name.partition("::")[2].strip("_")
    peer = given.get("dst" if op == "send" else "src") if op in ("send", "recv") else None
    if isinstance(peer, int) and peer < len(members):
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        members = [c10d.get_global_rank(group, peer), c10d.get_rank()]
    if not participants.issuperset(members):
        raise CollectiveRefused(KNOWN_AS.get(op, op), members, participants, name)
