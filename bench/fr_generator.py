"""Flight recorder dumps of simulated jobs, with the truth about their problems.

A small simulator: every rank has a program of collectives, sends and receives over groups. Hosts issue them, devices
complete them, and at the end the simulator knows which rank waits for which. The calls of each rank are written as
torch would dump them: a ring of records, one file per rank. The problem and the culprits are written to OUT.truth.json,
beside the folder and not in it. Torch is not needed.

    python bench/fr_generator.py OUT --layout dp_tp --scenario cascade --ranks 256 --culprit 13
    python bench/fr_generator.py --list

How hosts and devices behave (--semantics):

    nccl      the host enqueues up to --ahead operations; a device runs those of one group in order, and
              whatever comes after an operation that the compute stream waits for comes after it
    blocking  the host waits for each operation, records as NCCL's (TORCH_NCCL_BLOCKING_WAIT)
    gloo      the host waits for each operation; records with gloo's holes: no members of groups, no sends
              and receives, the state is always "scheduled" and only "retired" tells

An operation of a group completes when all members have reached it and agree about it. Members that do not agree wait
forever. Real libraries may also crash or compute wrong results, which leaves no such dump.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import re
import signal
import struct
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

PREFIX = "nccl_trace_rank_"
RANKS_PER_HOST = 8
EPOCH = 1_760_000_000_000_000_000
MILLISECOND = 1_000_000
WATCHDOG = 100 * MILLISECOND  # how often the watchdog looks for what has completed
STEPS = 4  # in a cycle, after which every rank's program repeats
PAST_CYCLES = 300  # that a job with wrapped rings has run before the dumps are made
IN_PROCESS = 60_000  # records, up to which starting processes to write them is not worth it
VERSIONS = ("2.10", "2.7", "2.4", "2.2", "1.4", "1.1")
SEMANTICS = ("nccl", "blocking", "gloo")

MISSING = "missing-from-collective"
MISMATCH = "collective-mismatch"
ORDER = "collective-order-deadlock"
P2P = "p2p-deadlock"

Sizes = tuple[tuple[int, ...], ...]
SEND, RECV = "send", "recv"


class Group(NamedTuple):
    name: str
    desc: str
    ranks: tuple[int, ...]


class Op(NamedTuple):
    """An operation that a rank may issue, shared by all ranks that issue the same."""

    group: int
    name: str
    inputs: Sizes
    outputs: Sizes
    dtype: str
    site: str
    rank: int = -1  # of a send or a receive: whose it is, and
    peer: int = -1  # who has the other end
    stream: bool = True  # the compute stream waits for it, so whatever comes later does
    host: bool = False  # the host waits for it
    endless: bool = False  # joined by all and still not done when the dump is made
    agree: tuple[Any, ...] = ()  # what members must have in common


@dataclass
class Truth:
    """The problem of a job, and the culprits."""

    scenario: str
    layout: str
    semantics: str
    ranks: int
    kind: str | None = None
    kinds: list[str] = field(default_factory=list)  # as good as kind
    culprits: list[int] = field(default_factory=list)
    acceptable: list[list[int]] = field(default_factory=list)  # sets of culprits that are right too
    victims: list[int] = field(default_factory=list)  # who else does not get on
    absent: list[int] = field(default_factory=list)  # ranks without a dump
    waits: dict[int, list[int]] = field(default_factory=dict)  # whom a blocked rank waits for, directly
    waits_on: dict[int, list[str]] = field(default_factory=dict)  # the groups whose operations block it
    note: str = ""

    def names(self, culprits: Iterable[int]) -> bool:
        """Whether these are the culprits."""
        return set(culprits) in [set(self.culprits), *map(set, self.acceptable)]


class Plan:
    """A job before it runs: its groups, and what each rank does."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.groups: list[Group] = []
        self.ops: list[Op] = []
        self.cycle: list[list[int]] = [[] for _ in range(ranks)]
        self.programs: list[list[int]] = []
        self.where: list[int] = []  # in each program, where the cycle in which things go wrong begins
        self.main = 0  # one of the groups where most of the traffic is; scenarios look at the culprit's
        self._known: dict[Op, int] = {}
        self.world = self.group("default_pg", range(ranks))

    def group(self, desc: str, ranks: Iterable[int]) -> int:
        self.groups.append(Group(str(len(self.groups)), desc, tuple(ranks)))
        return len(self.groups) - 1

    def op(self, made: Op) -> int:
        known = self._known.get(made)
        if known is None:
            known = self._known[made] = len(self.ops)
            self.ops.append(made)
        return known

    def collective(self, group: int, name: str, size: Sequence[int], site: str, **options: Any) -> int:
        """The index of an operation where every member passes the same."""
        dtype = options.pop("dtype", "BFloat16")
        members = len(self.groups[group].ranks)
        one = tuple(size)
        many = (one[0] * members, *one[1:])
        inputs, outputs = {"_all_gather_base": (one, many), "_reduce_scatter_base": (many, one)}.get(name, (one, one))
        agree = (name, inputs, outputs, dtype)
        return self.op(Op(group, name, (inputs,), (outputs,), dtype, site, agree=agree, **options))

    def barrier(self, group: int, site: str) -> int:
        return self.collective(group, "all_reduce_barrier", (1,), site, dtype="Float", host=True)

    def exchange(self, group: int, tokens: int, got: int, width: int, site: str) -> int:
        """An all_to_all: what goes in and out may differ from rank to rank, the width of a row may not."""
        agree = ("all_to_all", width)
        return self.op(Op(group, "all_to_all", ((tokens, width),), ((got, width),), "BFloat16", site, agree=agree))

    def pair(self, name: str, group: int, rank: int, peer: int, size: Sequence[int], site: str) -> int:
        """A send or a receive of a rank."""
        sizes = (tuple(size),)
        return self.op(Op(group, name, sizes, sizes, "BFloat16", site, rank=rank, peer=peer, agree=(sizes,)))

    def changed(self, op: int, **changes: Any) -> int:
        made = self.ops[op]._replace(**changes)
        if made.peer < 0 and made.name != "all_to_all":
            made = made._replace(agree=(made.name, made.inputs[0], made.outputs[0], made.dtype))
        return self.op(made)


# --- Layouts: which groups there are, and what a cycle of each rank's program is ---


def lay_world(plan: Plan) -> None:
    """Data parallel: buckets reduced while the backward pass runs."""
    plan.main = plan.world
    for step in range(STEPS):
        one = [plan.collective(plan.world, "broadcast", (256,), "ddp_buffers", dtype="Float")]
        for bucket in range(6):
            site = f"ddp_bucket_{bucket % 3}"
            last = bucket == 5
            one.append(
                plan.collective(plan.world, "all_reduce", (6_553_600 - bucket,), site, dtype="Float", stream=last)
            )
        one.append(plan.collective(plan.world, "_all_gather_base", (16,), "metrics", dtype="Float"))
        if step == STEPS - 1:
            one.append(plan.collective(plan.world, "all_reduce", (1,), "loss", dtype="Float", host=True))
        for cycle in plan.cycle:
            cycle.extend(one)


def lay_dp_tp(plan: Plan) -> None:
    """Tensor parallel in groups of eight, data parallel across."""
    width = inner_size(plan.ranks)
    tensor = rows(plan, "mesh_tp", width)
    data = columns(plan, "mesh_dp", width)
    plan.main = tensor[0]
    for step in range(STEPS):
        for rank, cycle in enumerate(plan.cycle):
            inner, outer = tensor[rank // width], data[rank % width]
            for layer in range(2):
                for part in ("attention", "mlp"):
                    cycle.append(plan.collective(inner, "all_reduce", (4, 2048, 4096), f"{part}_{layer}"))
            for layer in (1, 0):
                cycle.append(
                    plan.collective(inner, "_reduce_scatter_base", (1024, 4096), f"backward_{layer}", stream=False)
                )
                cycle.append(plan.collective(inner, "all_reduce", (4, 2048, 4096), f"backward_{layer}"))
            cycle.append(plan.collective(outer, "_reduce_scatter_base", (1_048_576,), "grad_shard", dtype="Float"))
            cycle.append(plan.collective(outer, "_all_gather_base", (1_048_576,), "param_gather"))
            if step == STEPS - 1:
                cycle.append(plan.collective(plan.world, "all_reduce", (1,), "grad_norm", dtype="Float", host=True))


def lay_pp(plan: Plan) -> None:
    """Pipelines of four stages, data parallel between the ranks of one stage."""
    stages = next(n for n in (4, 2, 1) if plan.ranks % n == 0)
    if stages == 1:
        raise ValueError("pp needs an even number of ranks")
    width = plan.ranks // stages  # rank = stage * width + replica
    pipes = [plan.group("mesh_pp", range(replica, plan.ranks, width)) for replica in range(width)]
    data = [plan.group("mesh_dp", range(stage * width, (stage + 1) * width)) for stage in range(stages)]
    plan.main = pipes[0]
    size = (2, 2048, 4096)
    for step in range(STEPS):
        for rank, cycle in enumerate(plan.cycle):
            stage, pipe = rank // width, pipes[rank % width]
            before, after = rank - width, rank + width
            for _ in range(4):
                if stage > 0:
                    cycle.append(plan.pair(RECV, pipe, rank, before, size, "stage_recv_forward"))
                if stage < stages - 1:
                    cycle.append(plan.pair(SEND, pipe, rank, after, size, "stage_send_forward"))
            for _ in range(4):
                if stage < stages - 1:
                    cycle.append(plan.pair(RECV, pipe, rank, after, size, "stage_recv_backward"))
                if stage > 0:
                    cycle.append(plan.pair(SEND, pipe, rank, before, size, "stage_send_backward"))
            for bucket in range(2):
                site, last = f"ddp_bucket_{bucket}", bucket == 1
                cycle.append(plan.collective(data[stage], "all_reduce", (4_194_304,), site, dtype="Float", stream=last))
            if step == STEPS - 1:
                cycle.append(plan.collective(plan.world, "all_reduce", (1,), "grad_norm", dtype="Float", host=True))


def lay_fsdp(plan: Plan) -> None:
    """Parameters sharded over eight ranks and replicated across."""
    width = inner_size(plan.ranks)
    shard = rows(plan, "mesh_shard", width)
    replicate = columns(plan, "mesh_replicate", width)
    plan.main = shard[0]
    for step in range(STEPS):
        for rank, cycle in enumerate(plan.cycle):
            inner, outer = shard[rank // width], replicate[rank % width]
            for layer in range(3):
                cycle.append(plan.collective(inner, "_all_gather_base", (524_288 + layer,), f"unshard_{layer % 2}"))
            for layer in (2, 1, 0):
                size = (524_288 + layer,)
                cycle.append(plan.collective(inner, "_all_gather_base", size, "unshard_backward"))
                cycle.append(
                    plan.collective(inner, "_reduce_scatter_base", size, "grad_shard", dtype="Float", stream=False)
                )
                cycle.append(
                    plan.collective(outer, "all_reduce", size, "grad_replicate", dtype="Float", stream=layer == 0)
                )
            if step == STEPS - 1:
                cycle.append(plan.collective(plan.world, "all_reduce", (1,), "grad_norm", dtype="Float", host=True))


def lay_moe(plan: Plan) -> None:
    """Experts spread over eight ranks: tokens go to their expert and back, as many as happen to."""
    width = inner_size(plan.ranks)
    experts = rows(plan, "mesh_ep", width)
    data = columns(plan, "mesh_dp", width)
    plan.main = experts[0]
    uneven = [(-1) ** i * 64 * (1 + i // 2) for i in range(width - width % 2)] + [0] * (width % 2)
    tokens, hidden = 4096, 2048
    for step in range(STEPS):
        for rank, cycle in enumerate(plan.cycle):
            inner, outer = experts[rank // width], data[rank % width]
            for layer in range(2):
                got = tokens + uneven[(rank % width + step + layer) % width]
                cycle.append(plan.exchange(inner, tokens, got, hidden, "dispatch"))
                cycle.append(plan.exchange(inner, got, tokens, hidden, "combine"))
            cycle.append(plan.exchange(inner, tokens, tokens, hidden, "backward_experts"))
            cycle.append(plan.collective(outer, "all_reduce", (2_097_152,), "ddp_bucket_0", dtype="Float"))
            if step == STEPS - 1:
                cycle.append(plan.collective(plan.world, "all_reduce", (1,), "grad_norm", dtype="Float", host=True))


def inner_size(ranks: int) -> int:
    return next(n for n in (8, 4, 2, 1) if ranks % n == 0 and (ranks // n > 1 or n == 1))


def rows(plan: Plan, desc: str, width: int) -> list[int]:
    return [plan.group(desc, range(first, first + width)) for first in range(0, plan.ranks, width)]


def columns(plan: Plan, desc: str, width: int) -> list[int]:
    return [plan.group(desc, range(first, plan.ranks, width)) for first in range(width)]


LAYOUTS: dict[str, Callable[[Plan], None]] = {
    "world": lay_world,
    "dp_tp": lay_dp_tp,
    "pp": lay_pp,
    "fsdp": lay_fsdp,
    "moe": lay_moe,
}


# --- Scenarios: what goes wrong ---


class Trouble:
    """What a scenario may do to a job before it runs, and to its dumps after."""

    def __init__(self, plan: Plan, culprit: int, chance: random.Random, truth: Truth) -> None:
        self.plan = plan
        self.culprit = culprit
        self.chance = chance
        self.truth = truth
        self.ahead: int | None = None
        self.ignore_host = False  # no host waits for any operation
        self.skew = 0  # nanoseconds, by which dumps are apart in time

    def blame(self, kind: str, *culprits: int, note: str = "") -> None:
        self.truth.kind = kind
        self.truth.culprits = sorted(culprits)
        self.truth.note = note

    def blame_call(self, rank: int, at: int) -> None:
        """The call of a rank does not match the others'. Of two members it is unknown which one is wrong."""
        self.blame(MISMATCH, rank)
        members = self.plan.groups[self.plan.ops[self.plan.programs[rank][at]].group].ranks
        if len(members) == 2:
            self.truth.acceptable = [list(members), *([one] for one in members if one != rank)]

    def place(self, rank: int, wanted: Callable[[Op], bool], skip: int = 2) -> int:
        """Where, in the cycle in which things go wrong, a rank issues such an operation (not its first)."""
        program, first = self.plan.programs[rank], self.plan.where[rank]
        found = [at for at in range(first, len(program)) if wanted(self.plan.ops[program[at]])]
        if not found:
            raise ValueError(f"{self.truth.layout} has no place for {self.truth.scenario}")
        return found[min(skip, len(found) - 1)]

    def main_place(self, rank: int, skip: int = 2) -> int:
        """Where a rank issues an operation of the kind of group that has most of the traffic."""
        desc = self.plan.groups[self.plan.main].desc
        return self.place(rank, lambda op: self.plan.groups[op.group].desc == desc, skip)

    def reduction_place(self, rank: int) -> int:
        """Where a rank issues an operation with sizes that all members must share."""
        desc = self.plan.groups[self.plan.main].desc
        ops = self.plan.ops
        mine = {ops[op].group for op in self.plan.cycle[rank] if self.plan.groups[ops[op].group].desc == desc}
        alike = [op for op in self.plan.cycle[rank] if ops[op].group in mine and fixed(ops[op])]
        if alike:
            return self.place(rank, lambda op: op.group in mine and fixed(op))
        return self.place(rank, fixed, 0)

    def stop(self, rank: int, at: int) -> None:
        """From there on the rank does something else: it loads data, or loops, or writes a checkpoint."""
        del self.plan.programs[rank][at:]

    def swap(self, rank: int, at: int, **changes: Any) -> None:
        program = self.plan.programs[rank]
        program[at] = self.plan.changed(program[at], **changes)

    def insert(self, rank: int, at: int, *ops: int) -> None:
        self.plan.programs[rank][at:at] = ops


def fixed(op: Op) -> bool:
    return op.peer < 0 and op.name != "all_to_all"


def healthy(_: Trouble) -> None:
    """Nothing is wrong, nothing is pending."""


def healthy_wrapped(_: Trouble) -> None:
    """Nothing is wrong. Rings have wrapped and begin at different records."""


def healthy_in_flight(trouble: Trouble) -> None:
    """Nothing is wrong. Every rank has just enqueued what is not done yet."""
    plan = trouble.plan
    for rank, program in enumerate(plan.programs):
        at = trouble.place(rank, lambda op: op.peer < 0, 0)
        program[at] = plan.changed(program[at], endless=True)
    trouble.ignore_host = True
    trouble.ahead = 6


def healthy_skewed(trouble: Trouble) -> None:
    """Nothing is wrong. Dumps were made one after another while the job ran."""
    trouble.skew = 400 * MILLISECOND


def missing(trouble: Trouble) -> None:
    """One rank does not call a collective."""
    trouble.stop(trouble.culprit, trouble.main_place(trouble.culprit))
    trouble.blame(MISSING, trouble.culprit)


def behind(trouble: Trouble) -> None:
    """One rank stops while the others' hosts run far ahead of it."""
    trouble.ahead = 64
    trouble.ignore_host = True
    missing(trouble)


def extra(trouble: Trouble) -> None:
    """One rank calls a barrier that no other rank calls."""
    plan, rank = trouble.plan, trouble.culprit
    at = trouble.reduction_place(rank)
    group = plan.ops[plan.programs[rank][at]].group
    trouble.insert(rank, at, plan.barrier(group, "evaluate"))
    trouble.blame_call(rank, at)


def op_mismatch(trouble: Trouble) -> None:
    """One rank calls a different collective."""
    plan, rank = trouble.plan, trouble.culprit
    at = trouble.reduction_place(rank)
    old = plan.ops[plan.programs[rank][at]]
    name = "broadcast" if old.name != "broadcast" else "all_reduce"
    trouble.swap(rank, at, name=name, inputs=old.outputs, site="other_branch")
    trouble.blame_call(rank, at)


def size(trouble: Trouble) -> None:
    """One rank's tensors have another size."""
    plan, rank = trouble.plan, trouble.culprit
    at = trouble.reduction_place(rank)
    old = plan.ops[plan.programs[rank][at]]
    grown = {name: tuple((one[0] + 8, *one[1:]) for one in getattr(old, name)) for name in ("inputs", "outputs")}
    trouble.swap(rank, at, **grown)
    trouble.blame_call(rank, at)


def dtype(trouble: Trouble) -> None:
    """One rank's tensors have another type."""
    rank = trouble.culprit
    at = trouble.reduction_place(rank)
    trouble.swap(rank, at, dtype="Half")
    trouble.blame_call(rank, at)


def order(trouble: Trouble) -> None:
    """Two ranks enter two groups in opposite order."""
    _ring_of_groups(trouble, [trouble.culprit, (trouble.culprit + 1) % trouble.plan.ranks])


def order_ring(trouble: Trouble) -> None:
    """Three ranks, three groups of two: each enters first the one that its neighbour enters last."""
    if trouble.plan.ranks < 3:
        raise ValueError("order_ring needs three ranks")
    _ring_of_groups(trouble, [(trouble.culprit + i) % trouble.plan.ranks for i in range(3)])


def _ring_of_groups(trouble: Trouble, members: list[int]) -> None:
    plan, count = trouble.plan, len(members)
    pairs = [(members[i], members[(i + 1) % count]) for i in range(count)]
    groups = [plan.group(f"exchange_{i}", sorted(pair)) for i, pair in enumerate(pairs)]
    ops = [plan.collective(group, "all_reduce", (1024,), f"exchange_{i % 2}") for i, group in enumerate(groups)]
    for i, rank in enumerate(members):
        trouble.insert(rank, plan.where[rank], ops[i], ops[i - 1])
        # Once it went well, which also shows who is in these groups, where nothing else does.
        trouble.insert(rank, plan.where[rank] - len(plan.cycle[rank]), *sorted((ops[i], ops[i - 1])))
    trouble.blame(ORDER, *members)


def p2p_cycle(trouble: Trouble) -> None:
    """Ranks in a ring all receive before they send."""
    plan = trouble.plan
    count = min(4, plan.ranks)
    ring = [(trouble.culprit + i) % plan.ranks for i in range(count)]
    for i, rank in enumerate(ring):
        receive = plan.pair(RECV, plan.world, rank, ring[i - 1], (1024,), "ring_recv")
        send = plan.pair(SEND, plan.world, rank, ring[(i + 1) % count], (1024,), "ring_send")
        trouble.insert(rank, plan.where[rank], receive, send)
    trouble.blame(P2P, *ring)


def p2p_missing(trouble: Trouble) -> None:
    """A rank receives from one that is somewhere else and never sends."""
    plan, rank = trouble.plan, trouble.culprit
    other = (rank + 1) % plan.ranks
    trouble.insert(other, plan.where[other], plan.pair(RECV, plan.world, other, rank, (1024,), "handover_recv"))
    trouble.stop(rank, plan.where[rank])
    trouble.blame(MISSING, rank)


def p2p_skipped(trouble: Trouble) -> None:
    """A rank skips a send, and continues to collectives that the receiver does not reach."""
    plan, rank = trouble.plan, trouble.culprit
    other = (rank + 1) % plan.ranks
    trouble.insert(other, plan.where[other], plan.pair(RECV, plan.world, other, rank, (1024,), "handover_recv"))
    trouble.blame(MISSING, rank, note="the two wait for each other, so a cycle of the two is right as well")
    trouble.truth.kinds = [ORDER, P2P]
    trouble.truth.acceptable = [sorted((rank, other))]


def dead(trouble: Trouble) -> None:
    """One rank died: it has left no dump."""
    missing(trouble)
    trouble.truth.absent = [trouble.culprit]


def partial(trouble: Trouble) -> None:
    """One rank does not call a collective, and some dumps of the waiting ranks are lost."""
    missing(trouble)
    others = [rank for rank in range(trouble.plan.ranks) if rank != trouble.culprit]
    trouble.truth.absent = sorted(trouble.chance.sample(others, max(1, trouble.plan.ranks // 8)))
    trouble.truth.acceptable = [sorted([trouble.culprit, *trouble.truth.absent])]


def two_roots(trouble: Trouble) -> None:
    """Two ranks that share no group but the world stop, each for itself."""
    plan, first = trouble.plan, trouble.culprit
    shared = {rank for group in plan.groups[1:] if first in group.ranks for rank in group.ranks}
    free = [rank for rank in range(plan.ranks) if rank not in shared and rank != first]
    if not free:
        raise ValueError("two_roots needs more ranks")
    second = free[len(free) // 2]
    for rank in (first, second):
        trouble.stop(rank, trouble.main_place(rank))
    trouble.blame(MISSING, first, second)


def moe_mismatch(trouble: Trouble) -> None:
    """In an all_to_all, where sizes may differ, one rank's rows have another width."""
    plan, rank = trouble.plan, trouble.culprit
    at = trouble.place(rank, lambda op: op.name == "all_to_all")
    old = plan.ops[plan.programs[rank][at]]
    half = {name: tuple((one[0], one[1] // 2) for one in getattr(old, name)) for name in ("inputs", "outputs")}
    width = old.inputs[0][1]
    trouble.swap(rank, at, **half, agree=("all_to_all", width // 2))
    trouble.blame_call(rank, at)


def moe_skip(trouble: Trouble) -> None:
    """A rank without tokens skips one all_to_all; later ones match wrongly, until one is missing."""
    plan, rank = trouble.plan, trouble.culprit
    at = trouble.place(rank, lambda op: op.name == "all_to_all")
    group = plan.groups[plan.ops[plan.programs[rank].pop(at)].group]
    trouble.blame(MISSING, rank, note="before that, what goes in and out of the group does not add up")
    # In the end it waits in the world for ranks that wait for it in their group.
    trouble.truth.kinds = [MISMATCH, ORDER]
    trouble.truth.acceptable = [list(group.ranks)]


def uneven(trouble: Trouble) -> None:
    """One rank had less data: it is in the last barrier while the others still reduce."""
    plan, rank = trouble.plan, trouble.culprit
    trouble.stop(rank, plan.where[rank])
    plan.programs[rank].append(plan.barrier(plan.world, "finish"))
    for other in range(plan.ranks):
        if other != rank:
            plan.programs[other].append(plan.barrier(plan.world, "finish"))
    trouble.blame(MISMATCH, rank)


def uneven_gone(trouble: Trouble) -> None:
    """One rank had less data and has ended, without a dump."""
    trouble.stop(trouble.culprit, trouble.plan.where[trouble.culprit])
    trouble.blame(MISSING, trouble.culprit)
    trouble.truth.absent = [trouble.culprit]


class Scenario(NamedTuple):
    act: Callable[[Trouble], None]
    layouts: tuple[str, ...] = ("world", "dp_tp", "pp", "fsdp", "moe")  # the first if none is asked for
    culprit: int | None = None
    pairs: bool = False  # needs sends and receives, of which gloo records none
    wrap: bool = False


MOST = ("dp_tp", "world", "pp", "fsdp", "moe")
SCENARIOS: dict[str, Scenario] = {
    "healthy": Scenario(healthy),
    "healthy_wrapped": Scenario(healthy_wrapped, wrap=True),
    "healthy_in_flight": Scenario(healthy_in_flight),
    "healthy_skewed": Scenario(healthy_skewed),
    "missing": Scenario(missing),
    "first_missing": Scenario(missing, culprit=0),
    "cascade": Scenario(missing, ("dp_tp", "fsdp", "moe")),
    "behind": Scenario(behind),
    "extra": Scenario(extra),
    "op": Scenario(op_mismatch),
    "first_op": Scenario(op_mismatch, culprit=0),
    "size": Scenario(size),
    "dtype": Scenario(dtype),
    "order": Scenario(order, MOST),
    "order_ring": Scenario(order_ring, MOST),
    "p2p_cycle": Scenario(p2p_cycle, pairs=True),
    "p2p_missing": Scenario(p2p_missing, pairs=True),
    "p2p_skipped": Scenario(p2p_skipped, pairs=True),
    "pp_stall": Scenario(missing, ("pp",), pairs=True),
    "dead": Scenario(dead, MOST),
    "partial": Scenario(partial, MOST),
    "two_roots": Scenario(two_roots, ("dp_tp", "fsdp", "moe", "pp")),
    "moe_mismatch": Scenario(moe_mismatch, ("moe",)),
    "moe_skip": Scenario(moe_skip, ("moe",)),
    "uneven": Scenario(uneven, ("world",)),
    "uneven_gone": Scenario(uneven_gone, ("world",)),
}


# --- The simulator ---


class Instance:
    """One operation and the members that have reached it."""

    __slots__ = ("agree", "arrived", "endless", "latest", "wanted", "wrong")

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.arrived: list[tuple[int, int]] = []
        self.latest = 0
        self.agree: tuple[Any, ...] | None = None
        self.wrong = False
        self.endless = False


class Run:
    """All ranks, run until no rank makes progress.

    Waits depend only on the programs, so ranks are advanced in any order. The times follow from the waits.
    """

    def __init__(self, plan: Plan, *, blocking: bool, ahead: int, ignore_host: bool, seed: int) -> None:
        self.plan = plan
        self.blocking = blocking
        self.ahead = 1 if blocking else ahead
        self.ignore_host = ignore_host and not blocking
        ranks = plan.ranks
        self.issued: list[list[int]] = [[] for _ in range(ranks)]
        self.created: list[list[int]] = [[] for _ in range(ranks)]
        self.started: list[list[int]] = [[] for _ in range(ranks)]
        self.done: list[list[int]] = [[] for _ in range(ranks)]
        self.instances: dict[tuple[int, ...], Instance] = {}
        self._pending: list[deque[int]] = [deque() for _ in range(ranks)]
        self._keys: list[list[tuple[int, ...]]] = [[] for _ in range(ranks)]
        self._counts: list[dict[tuple[int, ...], int]] = [defaultdict(int) for _ in range(ranks)]
        self._host = [EPOCH] * ranks
        self._device = [EPOCH] * ranks
        self._chance = [random.Random(seed * 1_000_003 + rank) for rank in range(ranks)]
        self._sizes = [len(group.ranks) for group in plan.groups]
        # What depends on an operation alone, by its index.
        self._pair = [op.peer >= 0 for op in plan.ops]
        self._stream = [op.stream or self.blocking for op in plan.ops]
        self._waits = [blocking or (op.host and not self.ignore_host) for op in plan.ops]
        self._takes = [150_000 + 40 * sum(math.prod(one) for one in op.inputs) // 1000 for op in plan.ops]

    def run(self) -> None:
        turn = deque(range(self.plan.ranks))
        waiting = [True] * self.plan.ranks
        while turn:
            rank = turn.popleft()
            waiting[rank] = False
            for other in self._advance(rank):
                if not waiting[other]:
                    waiting[other] = True
                    turn.append(other)

    def _advance(self, rank: int) -> list[int]:
        """Issue what the host may issue, and start what the device may start. Return the ranks that may now advance."""
        moved: list[int] = []
        program, issued, pending = self.plan.programs[rank], self.issued[rank], self._pending[rank]
        while True:
            at = len(issued)
            can = at < len(program) and len(pending) < self.ahead
            if can and pending and self._waits[issued[-1]] and not self.done[rank][-1]:
                can = False
            if can:
                self._issue(rank, program[at])
            if self._start(rank, moved):
                continue
            if not can:
                return moved

    def _issue(self, rank: int, index: int) -> None:
        chance = self._chance[rank].random()
        now = self._host[rank] + 20_000 + int(chance * 60_000)
        if chance > 0.9:
            now += int((chance - 0.9) * 50_000_000)  # computes something first
        self._host[rank] = now
        op = self.plan.ops[index]
        if self._pair[index]:
            ends = (rank, op.peer) if op.name == SEND else (op.peer, rank)
            stream: tuple[int, ...] = (op.group, *ends)
        else:
            stream = (op.group,)
        counts = self._counts[rank]
        number = counts[stream]
        counts[stream] = number + 1
        self._keys[rank].append((*stream, number))
        self._pending[rank].append(len(self.issued[rank]))
        self.issued[rank].append(index)
        self.created[rank].append(now)
        self.started[rank].append(0)
        self.done[rank].append(0)

    def _start(self, rank: int, moved: list[int]) -> bool:
        """Start the operations that may start. Return whether that completed an operation of this rank."""
        busy: list[tuple[int, ...]] = []
        started, keys, issued = self.started[rank], self._keys[rank], self.issued[rank]
        for at in self._pending[rank]:
            index = issued[at]
            stream = keys[at][:-1]
            if not started[at] and stream not in busy:
                started[at] = max(self.created[rank][at], self._device[rank])
                if self._arrive(rank, at, index, moved):
                    return True
            if self._stream[index]:
                return False
            busy.append(stream)
        return False

    def _arrive(self, rank: int, at: int, index: int, moved: list[int]) -> bool:
        op = self.plan.ops[index]
        key = self._keys[rank][at]
        one = self.instances.get(key)
        if one is None:
            one = self.instances[key] = Instance(2 if self._pair[index] else self._sizes[op.group])
            one.agree = op.agree
        elif one.agree != op.agree:
            one.wrong = True
        one.endless = one.endless or op.endless
        one.arrived.append((rank, at))
        one.latest = max(one.latest, self.started[rank][at])
        if len(one.arrived) < one.wanted or one.wrong or one.endless:
            return False
        end = one.latest + self._takes[index]
        for other, place in one.arrived:
            self.done[other][place] = end
            self._pending[other].remove(place)
            self._device[other] = max(self._device[other], end)
            if self._waits[index] or len(self._pending[other]) + 1 >= self.ahead:
                self._host[other] = max(self._host[other], end)
            if other != rank:
                moved.append(other)
        del self.instances[key]
        return True

    def blocked(self) -> set[int]:
        return {rank for rank, pending in enumerate(self._pending) if pending}

    def waits(self) -> tuple[dict[int, set[int]], dict[int, set[str]]]:
        """The ranks that each blocked rank waits for, and in which groups."""
        whom: dict[int, set[int]] = defaultdict(set)
        where: dict[int, set[str]] = defaultdict(set)
        for key, one in self.instances.items():
            members = set(key[1:3]) if len(key) == 4 else set(self.plan.groups[key[0]].ranks)
            absent = members - {rank for rank, _ in one.arrived}
            for rank, _ in one.arrived:
                whom[rank] |= absent
                where[rank].add(self.plan.groups[key[0]].name)
        return dict(whom), dict(where)


# --- Dumps ---

SITE_PACKAGES = "/opt/conda/lib/python3.11/site-packages"
C10D = f"{SITE_PACKAGES}/torch/distributed/distributed_c10d.py"
MODULE = f"{SITE_PACKAGES}/torch/nn/modules/module.py"
CODE = "/workspace/train"
CALLS = {  # the function in torch that a name in a record comes from
    "all_reduce": ("all_reduce", 3017),
    "all_reduce_barrier": ("barrier", 4984),
    "broadcast": ("broadcast", 2817),
    "_all_gather_base": ("all_gather_into_tensor", 4012),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 4533),
    "all_to_all": ("all_to_all_single", 4683),
    SEND: ("send", 2573),
    RECV: ("recv", 2631),
}
MAIN = (
    ("train_step", f"{CODE}/trainer.py", 377),
    ("train", f"{CODE}/trainer.py", 512),
    ("main", f"{CODE}/run.py", 140),
    ("<module>", f"{CODE}/run.py", 188),
)
BACKWARD = ("backward", "pre", "ddp_bucket", "grad", "unshard_backward")
GLOO_NAMES = {"_all_gather_base": "all_gather", "_reduce_scatter_base": "all_reduce", "all_reduce_barrier": "barrier"}

Frame = tuple[str, str, int]


def frames(op: Op) -> tuple[Frame, ...]:
    """The stack of a call, innermost first, as deep as those of real trainers are."""
    function, line = CALLS[op.name]
    stack: list[Frame] = [(function, C10D, line), ("wrapper", f"{SITE_PACKAGES}/torch/distributed/c10d_logger.py", 83)]
    kind = re.sub(r"_\d+$", "", op.site)
    number = sum(map(ord, op.site)) % 97
    if kind.startswith(BACKWARD):  # called by autograd, whose threads do not begin in the script
        stack.append((f"{kind}_hook", f"{CODE}/parallel/{kind}.py", 40 + number))
        stack.append(("apply", f"{SITE_PACKAGES}/torch/autograd/function.py", 311))
        stack.append(("_run_hooks", f"{CODE}/parallel/hooks.py", 61))
        return tuple(stack)
    if kind in ("attention", "mlp", "unshard", "dispatch", "combine"):
        stack.append((f"{kind}_forward", f"{CODE}/model/{kind}.py", 90 + number))
        for name, file, where in (
            (kind, "layers.py", 210),
            ("block", "layers.py", 140),
            ("model", "model.py", 318),
        ):
            stack.append(("_call_impl", MODULE, 1784))
            stack.append(("_wrapped_call_impl", MODULE, 1773))
            if name != kind:
                stack.append(("forward", f"{CODE}/model/{file}", where))
        stack = [*stack[:10], ("forward", f"{CODE}/model/model.py", 402 + number)]
    else:
        stack.append((kind, f"{CODE}/{kind}.py", 20 + number))
    return (*stack, *MAIN)


class Text(NamedTuple):
    """A string that a pickle has once, and then refers to by number."""

    number: int
    text: str


class Rows(NamedTuple):
    """The frames of a stack: dictionaries that a pickle has once, by number."""

    numbers: tuple[int, ...]
    rows: tuple[tuple[Text, Text, int], ...]


class Slot(NamedTuple):
    """What differs from record to record."""

    name: str


def whole(value: int) -> bytes:
    """A number as torch's pickler writes it."""
    if 0 <= value < 0x100:
        return b"K" + value.to_bytes(1, "little")
    if 0 <= value < 0x10000:
        return b"M" + value.to_bytes(2, "little")
    if -0x80000000 <= value < 0x80000000:
        return b"J" + value.to_bytes(4, "little", signed=True)
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


def refer(number: int) -> bytes:
    return b"h" + bytes((number,)) if number < 256 else b"j" + number.to_bytes(4, "little")


def remember(number: int) -> bytes:
    return b"q" + bytes((number,)) if number < 256 else b"r" + number.to_bytes(4, "little")


class Numbering:
    """Numbers for the strings and frames of all files of a job, so that pieces of one fit another."""

    def __init__(self) -> None:
        self._texts: dict[str, Text] = {}
        self._frames: dict[Frame, int] = {}
        self._count = 0

    def next(self) -> int:
        self._count += 1
        return self._count - 1

    def text(self, text: str) -> Text:
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = Text(self.next(), text)
        return known

    def own(self, text: str) -> Text:
        """A number for a string that is another one in every file."""
        return self.text(f"\0{text}")

    def stack(self, stack: Sequence[Frame]) -> Rows:
        numbers = []
        for frame in stack:
            if frame not in self._frames:
                self._frames[frame] = self.next()
            numbers.append(self._frames[frame])
        return Rows(tuple(numbers), tuple((self.text(name), self.text(file), line) for name, file, line in stack))


class Pickle:
    """Writes a pickle as torch's C++ pickler does: protocol 2, strings and shared frames remembered, lists not."""

    def __init__(self, numbering: Numbering, own: dict[int, str]) -> None:
        self.numbering = numbering
        self.seen: set[int] = set()
        self.own = own

    def value(self, value: Any) -> bytes:
        if value is None:
            return b"N"
        if value is True:
            return b"\x88"
        if value is False:
            return b"\x89"
        if isinstance(value, Text):
            return self._text(value)
        if isinstance(value, str):
            return self._text(self.numbering.text(value))
        if isinstance(value, int):
            return whole(value)
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        if isinstance(value, Rows):
            return b"](" + b"".join(map(self._frame, value.numbers, value.rows)) + b"e"
        if isinstance(value, dict):
            return b"}(" + b"".join(self.value(key) + self.value(item) for key, item in value.items()) + b"u"
        if isinstance(value, tuple) and len(value) == 2:
            return self.value(value[0]) + self.value(value[1]) + b"\x86"
        return b"](" + b"".join(map(self.value, value)) + b"e"

    def _text(self, text: Text) -> bytes:
        if text.number in self.seen:
            return refer(text.number)
        self.seen.add(text.number)
        data = self.own.get(text.number, text.text).encode()
        return b"X" + len(data).to_bytes(4, "little") + data + remember(text.number)

    def _frame(self, number: int, row: tuple[Text, Text, int]) -> bytes:
        if number in self.seen:
            return refer(number)
        name, file, line = row
        pairs = (("name", name), ("filename", file), ("line", line))
        body = b"".join(self.value(key) + self.value(item) for key, item in pairs)
        self.seen.add(number)
        return b"}(" + body + b"u" + remember(number)


class Recorder:
    """The content of the flight recorders of all ranks after a run, and its writing."""

    def __init__(
        self,
        plan: Plan,
        run: Run,
        *,
        entries: int,
        gloo: bool,
        timing: bool,
        version: str,
        past: Sequence[int],
        skew: int,
        hung: bool,
        chance: random.Random,
    ) -> None:
        self.plan = plan
        self.run = run
        self.hung = hung
        self.entries = entries
        self.gloo = gloo
        self.timing = timing and not gloo
        self.version = version
        self.past = past  # cycles that each rank ran before
        hosts = -(-plan.ranks // RANKS_PER_HOST)
        self.clocks = [chance.randint(-3 * MILLISECOND, 3 * MILLISECOND) for _ in range(hosts)]
        self.threads = [[str(139_000_000_000_000 + chance.randrange(1 << 40) * 64) for _ in range(2)] for _ in past]
        self.mine = memberships(plan)
        end = max((times[-1] for times in run.created if times), default=EPOCH)
        self.end = end
        # Dumps that are apart in time lie in the last part of the run.
        self.cuts = [end - chance.randrange(skew) if skew else None for _ in range(plan.ranks)]
        self.numbering = Numbering()
        self.thread_texts = [self.numbering.own(f"thread {i}") for i in range(2)]
        self._shapes: dict[tuple[int, int], list[tuple[Text, Any]]] = {}
        self._pieces: dict[tuple[int, int], list[bytes | str]] = {}

    # What is in a record, in torch's order.

    def shape(self, index: int, pg_id: int) -> list[tuple[Text, Any]]:
        known = self._shapes.get((index, pg_id))
        if known is not None:
            return known
        op, text = self.plan.ops[index], self.numbering.text
        group = self.plan.groups[op.group]
        stack = frames(op)
        thread = int(stack[-1][0] != "<module>")
        inputs: Any = [list(one) for one in op.inputs]
        outputs: Any = [list(one) for one in op.outputs]
        dtypes = [op.dtype]
        name = f"nccl:{op.name}"
        if op.peer >= 0:
            # Ranks in the name count within the group.
            here, there = group.ranks.index(op.rank), group.ranks.index(op.peer)
            name += f" {here}->{there}" if op.name == SEND else f" {here}<-{there}"
        if self.gloo:
            name = "gloo:" + GLOO_NAMES.get(op.name, op.name)
            if op.name == "all_reduce_barrier":
                inputs, outputs, dtypes = [], [], []
            elif op.name == "_reduce_scatter_base":
                outputs = inputs
            elif op.name == "_all_gather_base":
                outputs = [[len(group.ranks), *op.inputs[0]]]
        fields: list[tuple[str, Any]] = [
            ("frames", self.numbering.stack(stack)),
            ("record_id", Slot("record")),
            ("pg_id", pg_id),
            ("process_group", (text(group.name), text(group.desc))),
            ("thread_name", text("pt_autograd_0" if thread else "python3")),
            ("thread_id", self.thread_texts[thread]),
            ("collective_seq_id", Slot("seq")),
            ("p2p_seq_id", Slot("pair")),
            ("op_id", Slot("op")),
            ("profiling_name", text(name)),
            ("time_created_ns", Slot("created")),
            ("duration_ms", Slot("duration")),
            ("input_sizes", inputs),
            ("input_dtypes", [text(one) for one in dtypes]),
            ("output_sizes", outputs),
            ("output_dtypes", [text(one) for one in dtypes]),
            ("state", Slot("state")),
            ("time_discovered_started_ns", Slot("started")),
            ("time_discovered_completed_ns", Slot("completed")),
            ("retired", Slot("retired")),
            ("timeout_ms", 1_800_000 if self.gloo else 600_000),
            ("is_p2p", op.peer >= 0),
        ]
        drop = dropped(self.version) | (set() if self.timing else {"duration_ms"})
        if self.version.startswith("1."):
            # One counter then, for collectives and the rest.
            fields = [("seq_id", Slot("op")) if key == "collective_seq_id" else (key, value) for key, value in fields]
        made = [(text(key), value) for key, value in fields if key not in drop]
        self._shapes[index, pg_id] = made
        return made

    def records(self, rank: int) -> tuple[list[tuple[int, int, dict[str, Any]]], dict[str, dict[str, int]]]:
        """The ring of a rank, as (operation, pg_id, what is in its slots), and the status of its groups."""
        run, ops, cut = self.run, self.plan.ops, self.cuts[rank]
        mine = {group: i for i, group in enumerate(self.mine[rank])}
        seqs, pairs, counts = (dict.fromkeys(mine, 0) for _ in range(3))
        record_id, cycles = 0, self.past[rank]
        if cycles:
            for index in self.plan.cycle[rank]:
                op = ops[index]
                if op.peer < 0 or not self.gloo:
                    record_id += cycles
                    counts[op.group] += cycles
                    (pairs if op.peer >= 0 else seqs)[op.group] += cycles
        status = {group: [-1, -1, -1] for group in mine}
        created, started, done = run.created[rank], run.started[rank], run.done[rank]
        shown = [
            (at, index)
            for at, index in enumerate(run.issued[rank])
            if (cut is None or created[at] <= cut) and not (self.gloo and ops[index].peer >= 0)
        ]
        kept = len(shown) - self.entries  # from there on records are still in the ring
        clock, look, when = self.clocks[rank // RANKS_PER_HOST], rank * 7_919_000 % WATCHDOG, self.when(rank)
        made: list[tuple[int, int, dict[str, Any]]] = []
        for place, (at, index) in enumerate(shown):
            op = ops[index]
            group, pair = op.group, op.peer >= 0
            begin, end = started[at], done[at]
            if cut is not None and end > cut:
                end = 0
                begin = begin if begin <= cut else 0
            counts[group] += 1
            if pair:
                pairs[group] += 1
            else:
                seq = seqs[group] = seqs[group] + 1
                enqueued = status[group]
                enqueued[0] = seq
                if self.timing and begin:
                    enqueued[1] = seq
                if end:
                    enqueued[2] = seq
            if place < kept:
                record_id += 1
                continue
            record: dict[str, Any] = {
                "record": record_id,
                "seq": seqs[group],
                "pair": pairs[group],
                "op": counts[group],
                "created": created[at] + clock,
                "retired": end > 0,
                "state": "scheduled",
                "started": None,
                "completed": None,
            }
            if end and not self.gloo:
                record["completed"] = min(end + WATCHDOG - (end + look) % WATCHDOG + clock, when)
                record["state"] = "completed"
            if begin and self.timing:  # else nothing is known of the start, not even of what has ended
                record["started"] = begin + 2 * MILLISECOND + clock
                if end:
                    record["duration"] = (end - begin) / MILLISECOND
                else:
                    record["state"] = "started"
            made.append((index, mine[group], record))
            record_id += 1
        names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
        return made, {
            str(i): dict(zip(names, status[group], strict=True)) for group, i in mine.items() if counts[group]
        }

    def config(self, rank: int) -> Any:
        groups = [self.plan.groups[i] for i in self.mine[rank]]
        if self.version == "1.1":
            return None
        if self.version == "1.4":
            return {i: list(group.ranks) for i, group in enumerate(groups)}
        if self.gloo:
            return {"": {"name": "", "desc": "", "ranks": "[]"}}
        return {
            group.name: {"name": group.name, "desc": group.desc, "ranks": self._ranks_text(group)} for group in groups
        }

    def _ranks_text(self, group: Group) -> str:
        return "[" + ", ".join(map(str, group.ranks)) + "]"

    def head(self, rank: int, status: dict[str, dict[str, int]]) -> dict[str, Any]:
        head: dict[str, Any] = {"version": self.version}
        config = self.config(rank)
        if config is not None:
            head["pg_config"] = config
        library = "" if self.gloo else "2.28.9"
        if number(self.version) >= (2, 8):
            head["comm_lib_version"] = library
        elif number(self.version) >= (2, 6):
            head["nccl_version"] = library
        if number(self.version) >= (2, 3):
            head["pg_status"] = status
        return head

    def write_pickle(self, rank: int, path: Path) -> None:
        ring, status = self.records(rank)
        own = {text.number: self.threads[rank][i] for i, text in enumerate(self.thread_texts)}
        pickle = Pickle(self.numbering, own)
        head = self.head(rank, status)
        out = [b"\x80\x02}(", *(pickle.value(key) + pickle.value(value) for key, value in head.items())]
        out.append(pickle.value("entries") + b"](")
        states = {name: self.numbering.text(name) for name in ("scheduled", "started", "completed")}
        written: set[tuple[int, int]] = set()
        for index, pg_id, record in ring:
            kind = index, pg_id
            state = record["state"] = states[record["state"]]
            entire = not self.timing or "duration" in record
            if kind in written and entire and state.number in pickle.seen:
                for piece in self._pieces[kind]:
                    if isinstance(piece, bytes):
                        out.append(piece)
                        continue
                    value = record[piece]
                    out.append(whole(value) if value.__class__ is int else pickle.value(value))
                continue
            shape = self.shape(index, pg_id)
            if kind not in self._pieces:
                self._pieces[kind] = self._cut(shape)
            if entire:
                written.add(kind)
            out.append(b"}(")
            for key, value in shape:
                if not isinstance(value, Slot):
                    out.append(pickle.value(key) + pickle.value(value))
                elif value.name in record:
                    out.append(pickle.value(key) + pickle.value(record[value.name]))
            out.append(b"u")
        out.append(b"eu.")
        path.write_bytes(b"".join(out))

    def _cut(self, shape: list[tuple[Text, Any]]) -> list[bytes | str]:
        """A record in pieces: what is the same for all of a kind, and the slots' names between."""
        everything = Pickle(self.numbering, {})
        everything.seen = _All()
        pieces: list[bytes | str] = []
        text = b"}("
        for key, value in shape:
            text += everything.value(key)
            if isinstance(value, Slot):
                pieces += [text, value.name]
                text = b""
            else:
                text += everything.value(value)
        return [*pieces, text + b"u"]

    def write_json(self, rank: int, path: Path) -> None:
        ring, status = self.records(rank)
        head = self.head(rank, status)
        if "pg_status" in head:
            head["pg_status"] = {
                group: {key: str(value) for key, value in one.items()} for group, one in status.items()
            }
        if self.version == "1.4":
            head["pg_config"] = {str(group): ranks for group, ranks in head["pg_config"].items()}
        rows = []
        for index, pg_id, record in ring:
            row: dict[str, Any] = {}
            for key, value in self.shape(index, pg_id):
                if isinstance(value, Rows):
                    continue  # torch leaves stacks out of JSON
                if isinstance(value, Slot):
                    if value.name in record:
                        row[key.text] = 0 if record[value.name] is None else record[value.name]
                else:
                    row[key.text] = self._plain(value, rank)
            rows.append(row)
        whole_dump = {**head, "entries": rows, "nccl_comm_state": {}}
        path.write_text(json.dumps(whole_dump, separators=(",", ":"), sort_keys=True))

    def _plain(self, value: Any, rank: int) -> Any:
        if isinstance(value, Text):
            return self.threads[rank][self.thread_texts.index(value)] if value.text.startswith("\0") else value.text
        if isinstance(value, (list, tuple)):
            return [self._plain(one, rank) for one in value]
        return value

    def when(self, rank: int) -> int:
        """When the dump of a rank was made, by its clock: on a timeout, or soon after its last record."""
        cut = self.cuts[rank]
        if cut is None:
            cut = self.end + (600_000 if self.hung else 30) * MILLISECOND
        return cut + self.clocks[rank // RANKS_PER_HOST]


class _All(set[int]):
    def __contains__(self, _: object) -> bool:
        return True

    def add(self, _: int) -> None:
        pass


def memberships(plan: Plan) -> list[list[int]]:
    """The groups of each rank, in the order of its pg_id."""
    mine: list[list[int]] = [[] for _ in range(plan.ranks)]
    for i, group in enumerate(plan.groups):
        for rank in group.ranks:
            mine[rank].append(i)
    return mine


def number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


def dropped(version: str) -> set[str]:
    """The fields that a record of that version did not have yet."""
    drop: set[str] = set()
    if number(version) < (2, 8):
        drop |= {"thread_name", "thread_id"}
    if number(version) < (2, 0):
        drop |= {"process_group", "p2p_seq_id", "input_dtypes", "output_dtypes", "timeout_ms", "is_p2p"}
    if number(version) < (1, 4):
        drop |= {"record_id", "op_id"}
    return drop


# --- All of it ---


def simulate(
    *,
    ranks: int = 64,
    layout: str | None = None,
    scenario: str = "missing",
    semantics: str = "nccl",
    entries: int = 2000,
    culprit: int | None = None,
    seed: int = 1,
    ahead: int = 16,
    wrap: bool | None = None,
    version: str = "2.10",
    timing: bool = False,
) -> tuple[Truth, Recorder]:
    """Run a job with a problem. Return the truth, and the content of the recorders."""
    if scenario not in SCENARIOS:
        raise ValueError(f"no scenario {scenario!r}; there are {', '.join(SCENARIOS)}")
    what = SCENARIOS[scenario]
    layout = layout or what.layouts[0]
    if layout not in what.layouts:
        raise ValueError(f"{scenario} needs one of the layouts {', '.join(what.layouts)}")
    if semantics not in SEMANTICS or version not in VERSIONS:
        raise ValueError(f"semantics are {', '.join(SEMANTICS)}; versions are {', '.join(VERSIONS)}")
    if semantics == "gloo" and (what.pairs or (layout == "pp" and not scenario.startswith("healthy"))):
        raise ValueError("gloo records no sends and receives")
    if ranks < 2:
        raise ValueError("a job has two ranks or more")
    chance = random.Random(seed)
    wrap = what.wrap if wrap is None else wrap
    plan = Plan(ranks)
    LAYOUTS[layout](plan)
    if wrap and ranks >= 4:
        # Every other rank does more than the rest, so that rings of the same size begin elsewhere.
        some = plan.group("metrics", range(0, ranks, 2))
        more = plan.collective(some, "_all_gather_base", (64,), "metrics", dtype="Float")
        for rank in range(0, ranks, 2):
            plan.cycle[rank][-1:-1] = [more] * 3
    lengths = [len(cycle) for cycle in plan.cycle]
    spare = 2  # cycles after the one in which things go wrong
    if wrap:
        cycles = -(-entries * 11 // (10 * min(lengths))) + spare + 1
    else:
        cycles = max(spare + 2, (entries - 8) // max(lengths))
    start = plan.barrier(plan.world, "setup")
    plan.programs = [[start, *cycle * cycles] for cycle in plan.cycle]
    plan.where = [1 + length * (cycles - spare - 1) for length in lengths]
    if culprit is None:
        culprit = what.culprit if what.culprit is not None else min(13, ranks // 2)
    elif not 0 <= culprit < ranks:
        raise ValueError(f"there is no rank {culprit}")
    truth = Truth(scenario, layout, semantics, ranks)
    trouble = Trouble(plan, culprit, chance, truth)
    what.act(trouble)

    run = Run(
        plan,
        blocking=semantics != "nccl",
        ahead=trouble.ahead or ahead,
        ignore_host=trouble.ignore_host,
        seed=seed,
    )
    run.run()
    waits, places = run.waits()
    truth.waits = {rank: sorted(waits[rank]) for rank in sorted(waits)}
    truth.waits_on = {rank: sorted(places[rank]) for rank in sorted(places)}
    if truth.kind is not None:
        truth.victims = sorted(run.blocked() - set(truth.culprits))
        truth.kinds = [truth.kind, *truth.kinds]
    recorder = Recorder(
        plan,
        run,
        entries=entries,
        gloo=semantics == "gloo",
        timing=timing,
        version=version,
        past=[PAST_CYCLES if wrap else 0] * ranks,
        skew=trouble.skew,
        hung=truth.kind is not None,
        chance=chance,
    )
    return truth, recorder


def write(recorder: Recorder, truth: Truth, out: Path, *, as_json: bool = False, processes: int | None = None) -> None:
    """Write one file per rank, except for lost dumps."""
    out.mkdir(parents=True, exist_ok=True)
    there = [rank for rank in range(truth.ranks) if rank not in set(truth.absent)]
    held = sum(min(recorder.entries, len(recorder.run.issued[rank])) for rank in there)
    if processes is None:
        processes = 1 if held < IN_PROCESS else min(4, len(os.sched_getaffinity(0)))
    if processes <= 1:
        _write_some(recorder, out, there, as_json)
        return
    context = multiprocessing.get_context("fork")  # the children share the simulation
    children = []
    try:
        for i in range(processes):
            child = context.Process(target=_write_child, args=(recorder, out, there[i::processes], as_json))
            child.start()
            children.append(child)
        for child in children:
            child.join()
    finally:
        for child in children:
            if child.is_alive():
                child.terminate()
                child.join()
    if any(child.exitcode for child in children):
        raise RuntimeError("writing the dumps failed")


def _write_some(recorder: Recorder, out: Path, ranks: Sequence[int], as_json: bool) -> None:
    for rank in ranks:
        path = out / f"{PREFIX}{rank}{'.json' if as_json else ''}"
        (recorder.write_json if as_json else recorder.write_pickle)(rank, path)
        when = recorder.when(rank)
        os.utime(path, ns=(when, when))


def _write_child(*what: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _write_some(*what)


def truth_path(out: Path) -> Path:
    return out.parent / f"{out.name}.truth.json"


def generate(
    out: str | os.PathLike[str], *, as_json: bool = False, processes: int | None = None, **options: Any
) -> Truth:
    """Simulate a job, write its dumps into a folder and the truth beside it. Options as for simulate."""
    folder = Path(out)
    truth, recorder = simulate(**options)
    write(recorder, truth, folder, as_json=as_json, processes=processes)
    truth_path(folder).write_text(json.dumps(asdict(truth)) + "\n")
    return truth


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="the folder for the dumps")
    parser.add_argument("--list", action="store_true", help="what scenarios there are")
    parser.add_argument("--scenario", default="missing", choices=SCENARIOS, metavar="NAME")
    parser.add_argument("--layout", choices=LAYOUTS, help="default: what the scenario suggests")
    parser.add_argument("--ranks", type=int, default=64, metavar="N")
    parser.add_argument("--entries", type=int, default=2000, metavar="N", help="size of a rank's ring (2000)")
    parser.add_argument("--semantics", default="nccl", choices=SEMANTICS)
    parser.add_argument("--ahead", type=int, default=16, metavar="N", help="how far a host may run ahead (16)")
    parser.add_argument("--culprit", type=int, metavar="RANK")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wrap", action="store_true", default=None, help="a long job: rings have wrapped")
    parser.add_argument("--timing", action="store_true", help="as with TORCH_NCCL_ENABLE_TIMING")
    parser.add_argument("--version", default="2.10", choices=VERSIONS, help="of the dump's schema")
    parser.add_argument("--json", action="store_true", help="as _dump_fr_trace_json writes, without stacks")
    args = parser.parse_args()
    if args.list:
        for name, one in SCENARIOS.items():
            print(f"{name:18} {(one.act.__doc__ or '').strip()}  [{' '.join(one.layouts)}]")
        return 0
    if args.out is None:
        parser.error("where to?")
    options = {key: value for key, value in vars(args).items() if key not in ("out", "list", "json")}
    began = time.perf_counter()
    try:
        truth = generate(args.out, as_json=args.json, **options)
    except ValueError as problem:
        print(f"fr_generator: {problem}", file=sys.stderr)
        return 2
    culprits = ",".join(map(str, truth.culprits)) or "no rank"
    print(
        f"{args.out}: {truth.ranks - len(truth.absent)} dumps, {truth.kind or 'nothing wrong'}, {culprits}; "
        f"{len(truth.victims)} victims; {time.perf_counter() - began:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
