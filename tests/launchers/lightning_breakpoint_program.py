"""Ranks of Lightning, of which the first is the parent of the others, come to a breakpoint."""

from __future__ import annotations

import sys

import torch
from leave_group import leave_group
from lightning.fabric import Fabric

import breakranks


def main() -> None:
    fabric = Fabric(accelerator="cpu", devices=int(sys.argv[1]), strategy="ddp")
    fabric.launch()
    mine = torch.tensor(10.0**fabric.global_rank)
    breakranks.breakpoint()
    total = fabric.all_reduce(mine, reduce_op="sum")
    breakranks.print("RESULT", total.item())
    leave_group()


if __name__ == "__main__":
    main()
