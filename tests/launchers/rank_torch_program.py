"""Two ranks of torch try what breakranks does inside a rank; each writes what it found to ``found.<rank>.json``."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from breakranks.rank import collective_guard, fsdp, thread_location, value_summary
from breakranks.rank.pg_timeouts import GroupTimeouts

SHORT = 3.0
LATE = 9.0  # so much more than that, that the other may be late too
BOTH = frozenset((0, 1))
found: dict[str, Any] = {}
SEEN: dict[str, Any] = {}


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 4)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if "stop" in SEEN:
            SEEN[SEEN["stop"]] = fsdp.inside_of(sys._getframe())
        return self.line(given).tanh()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            given = layer(given)
        return given


def net() -> Net:
    torch.manual_seed(7)
    return Net()


def sharded() -> Net:
    made = net()
    for layer in made.layers:
        fully_shard(layer)
    fully_shard(made)
    return made


def rank() -> int:
    return dist.get_rank()


def me() -> frozenset[int]:
    return frozenset((rank(),))


def refused(function: Callable[[], Any], participants: frozenset[int]) -> str:
    try:
        with collective_guard.guarding(participants):
            function()
    except collective_guard.CollectiveRefused as no:
        return str(no)
    return ""


def train(model: torch.nn.Module, steps: int = 2) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        loss = model(torch.full((2, 4), float(step + rank() + 1))).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_guarding() -> dict[str, Any]:
    one = torch.ones(4)
    two = torch.ones(8)
    mesh = init_device_mesh("cpu", (2,))
    split = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
    alone = [dist.new_group([0], group_desc="first"), dist.new_group([1], group_desc="second")][rank()]
    operations: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(one),
        "barrier": lambda: dist.barrier(),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(two, one),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(one, two),
        "broadcast": lambda: dist.broadcast(one, 0),
        "send": lambda: dist.send(one, 1) if rank() == 0 else dist.recv(one, 0),
        "isend": lambda: dist.isend(one, 1).wait() if rank() == 0 else dist.irecv(one, 0).wait(),
        "all_gather_object": lambda: dist.all_gather_object([None, None], "x"),
        "broadcast_object_list": lambda: dist.broadcast_object_list(["x"], 0),
        "functional": lambda: functional.all_reduce(one, "sum", dist.group.WORLD).sum(),
        "full_tensor": lambda: split.full_tensor(),
        "redistributed": lambda: split @ torch.distributed.tensor.ones(2, 2, device_mesh=mesh, placements=[Shard(0)]),
        "monitored_barrier": lambda: dist.monitored_barrier(),
    }
    told = {name: refused(call, me()) for name, call in operations.items()}
    both = {name: refused(call, BOTH) for name, call in operations.items()}
    inside = refused(lambda: dist.all_reduce(one, group=alone), me())
    return {"alone": told, "both": both, "own group": inside, "local": refused(lambda: (split * 2).sum(), me())}


def prechecked(source: str, names: dict[str, Any]) -> str | None:
    refused = collective_guard.precheck(source, names, {}, me())
    return None if refused is None else str(refused)


def check_precheck() -> dict[str, Any]:
    ran: list[str] = []

    class Trap:
        @property
        def model(self) -> Any:
            ran.append("property")
            return None

        def __getattr__(self, name: str) -> Any:
            ran.append(name)
            raise AttributeError(name)

    model = sharded()
    holder = torch.nn.Sequential(model)
    old = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    replica = DistributedDataParallel(net())
    split = distribute_tensor(torch.ones(4, 2), init_device_mesh("cpu", (2,)), [Shard(0)])
    names: dict[str, Any] = {
        "x": torch.ones(2, 4), "m": model, "h": holder, "old": old, "ddp": replica, "w": split, "trap": Trap(),
        "self": type("Trainer", (), {})(), "plain": net(), "dist": dist, "barrier": dist.barrier,
        "alone": [dist.new_group([0]), dist.new_group([1])][rank()], "torch": torch,
    }  # fmt: skip
    names["self"].model = model
    bad = [
        "m(x)", "m.forward(x)", "h(x)", "self.model(x)", "m.layers[0](x)", "h[0].layers[-1](x)", "y = 1 + m(x).sum()",
        "old(x)", "old.state_dict()", "m.state_dict()", "m.reshard()", "ddp(x)", "w.full_tensor()",
        "w.redistribute(placements=[])", "m.unshard()",
        "m(x).sum().backward()", "x.sum().backward()", "dist.all_reduce(x)", "barrier()", "dist.new_group([0])",
        "torch.distributed.broadcast(x, 0)", "[dist.all_reduce(t) for t in [x]]", "dist.destroy_process_group()",
    ]  # fmt: skip
    good = [
        "plain(x)", "x.sum()", "m.layers[0]", "list(m.parameters())", "w.to_local()", "dist.get_rank()",
        "ddp.state_dict()", "trap.model(x)", "trap.other()", "dist.all_reduce(x, group=alone)", "dist.barrier(alone)",
        "no such (", "ddp.module(x)", "[m(1) for m in [abs]]",
    ]  # fmt: skip
    return {
        "bad": {source: prechecked(source, names) for source in bad},
        "good": {source: prechecked(source, names) for source in good},
        "both": [source for source in bad if collective_guard.precheck(source, names, {}, BOTH)],
        "ran": ran,
    }


def check_forward_refused() -> dict[str, Any]:
    """A model whose forward was refused, at the source and while it ran, trains as one that was never touched."""
    untouched = train(sharded())
    model = sharded()
    given = torch.ones(2, 4)
    first = refused(lambda: model(given), me())
    said = prechecked("model(given)", {"model": model, "given": given})
    losses = train(model, 1)
    second = refused(lambda: model(given), me())
    inner = refused(lambda: model.layers[1](given), me())
    states = [module._get_fsdp_state()._training_state.name for module in (model, *model.layers)]
    rest = train_from(model, 1)
    return {"untouched": untouched, "touched": losses + rest, "states": states, "said": [said, first, second, inner]}


def train_from(model: torch.nn.Module, step: int) -> list[float]:
    loss = model(torch.full((2, 4), float(step + rank() + 1))).pow(2).mean()
    loss.backward()
    return [loss.item()]


def check_fsdp() -> dict[str, Any]:
    model = sharded()
    given = torch.ones(2, 4, requires_grad=True)
    SEEN["stop"] = "forward"
    result = model(given)
    del SEEN["stop"]
    hidden = model.layers[0].line
    result.register_hook(lambda grad: SEEN.update(backward=fsdp.inside_of(sys._getframe())))
    result.sum().backward()
    old = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    SEEN["stop"] = "FSDP1"
    old(torch.ones(2, 4))
    SEEN["stop"] = "DDP"
    DistributedDataParallel(net())(torch.ones(2, 4))
    del SEEN["stop"]
    weight = value_summary.describe(hidden.weight)
    return {**SEEN, "outside": fsdp.inside_of(sys._getframe()), "weight": weight}


def check_where() -> dict[str, Any]:
    """Rank 1 waits in collectives for rank 0, and is looked at by a thread of its own."""
    seen: dict[str, Any] = {}
    main = threading.main_thread().ident
    group = dist.new_group([0, 1], group_desc="pair")
    work = torch.ones(4)

    def look(name: str) -> None:
        """Once the main thread stands in the call: before that, gloo may not have put away the call before it."""
        deadline = time.monotonic() + 60
        before: list[thread_location.Frame] = []
        while time.monotonic() < deadline:
            frame = sys._current_frames().get(main or 0)
            frames = thread_location.frames_of(frame)
            got = thread_location.collective_of(frame)
            if got is not None and frames == before and any("<lambda>" in one["function"] for one in frames):
                seen[name] = got
                seen["frames"] = frames
                break
            before = frames
            time.sleep(0.1)
        store.set(f"seen {name}", "1")

    store = dist.distributed_c10d._get_default_store()
    calls: dict[str, Callable[[], Any]] = {
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.ones(8), work, group=group),
        "recv": lambda: dist.recv(work, 0) if rank() else dist.send(work, 1),
        "all_gather_object": lambda: dist.all_gather_object([None, None], 1),
        "wait": lambda: dist.all_reduce(work, group=group, async_op=True).wait(),
    }
    for name, call in calls.items():
        if rank() == 1:
            thread = threading.Thread(target=look, args=(name,))
            thread.start()
            call()
            thread.join()
        else:
            store.wait([f"seen {name}"], timedelta(seconds=90))
            call()
    return seen


def late(action: Callable[[], Any], who: int, timeout: float = SHORT) -> str:
    """``who`` comes late to a collective; what became of it, and whether that was at the timeout or before it."""
    began = time.monotonic()
    if rank() == who:
        time.sleep(LATE)
    try:
        action()
        return "fine"
    except Exception as error:
        took = time.monotonic() - began
        return f"{type(error).__name__} after {f'{timeout:g} s' if took > timeout - 0.5 else f'only {took:.1f} s'}"


def check_timeouts() -> dict[str, Any]:
    one = torch.ones(2)
    timeouts = GroupTimeouts()
    before = dist.distributed_c10d._new_process_group_helper
    pair = dist.new_group([0, 1], timeout=timedelta(seconds=SHORT), group_desc="pair")
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    notes = timeouts.extend()
    result: dict[str, Any] = {"notes": notes, "extended": timeouts.extended}
    result["collective"] = late(lambda: dist.all_reduce(one), 0)
    made: list[Any] = []
    soon = timedelta(seconds=2)
    result["making"] = late(lambda: made.append(dist.new_group([0, 1], timeout=soon, group_desc="made")), 0)
    result["store"] = late(lambda: store.get("late") if rank() else store.set("late", "1"), 0)
    dist.destroy_process_group(pair)
    timeouts.refresh()
    timeouts.restore()
    timeouts.restore()
    result["restored"] = {
        "extended": timeouts.extended,
        "function": dist.distributed_c10d._new_process_group_helper is before,
        "store": store.timeout.total_seconds(),
    }
    dist.barrier()
    result["exchange again"] = late(lambda: dist.send(one, 1) if rank() == 0 else dist.recv(one, 0), 0)
    result["made again"] = late(lambda: dist.all_reduce(one, group=made[0]), 0, 2.0)
    return result


def check_detail() -> dict[str, Any]:
    one = torch.ones(2)
    dist.barrier()
    timeouts = GroupTimeouts()
    result: dict[str, Any] = {"notes": timeouts.extend(), "kind": type(backend()).__name__}
    made: list[Any] = []
    result["making"] = late(
        lambda: made.append(dist.new_group([0, 1], timeout=timedelta(seconds=2), group_desc="made")), 0
    )
    timeouts.restore()
    dist.all_reduce(one, group=made[0])
    result["again"] = late(lambda: dist.all_reduce(one), 0)
    return result


def backend() -> Any:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def meet() -> None:
    """Both have imported torch: a group of a short timeout can be made."""
    mine, other = os.environ["RANK"], str(1 - int(os.environ["RANK"]))
    with open(f"up.{mine}", "w"):
        pass
    deadline = time.monotonic() + 120
    while not os.path.exists(f"up.{other}") and time.monotonic() < deadline:
        time.sleep(0.02)


def main() -> None:
    meet()
    dist.init_process_group("gloo", timeout=timedelta(seconds=180 if sys.argv[1] == "guards" else SHORT))
    checks = {"detail": [check_detail], "plain": [check_timeouts]}.get(
        sys.argv[1], [check_guarding, check_precheck, check_forward_refused, check_fsdp, check_where]
    )
    for check in checks:
        try:
            found[check.__name__] = check()
        except Exception:
            found[check.__name__] = traceback.format_exc()
    path = f"found.{rank()}.json"
    with open(path + ".new", "w") as file:
        json.dump(found, file, indent=1)
    os.rename(path + ".new", path)
    # The other rank may still be in an error that it is to have.
    deadline = time.monotonic() + 60
    while not os.path.exists(f"found.{1 - rank()}.json") and time.monotonic() < deadline:
        time.sleep(0.05)
    os._exit(0)


if __name__ == "__main__":
    main()
