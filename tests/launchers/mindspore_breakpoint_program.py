"""Workers of MindSpore that come to a breakpoint between two collectives."""

from __future__ import annotations

import mindspore
from mindspore import Tensor, ops
from mindspore.communication import get_rank, init

import breakranks


def main() -> None:
    mindspore.set_device("CPU")
    init()
    reduce = ops.AllReduce()
    mine = Tensor([[1.0, 2.0], [3.0, 4.0]], mindspore.float32) * (get_rank() + 1)
    summed = reduce(mine)
    breakranks.breakpoint()
    total = reduce(summed + mine)
    breakranks.print("RESULT", total.asnumpy().tolist())


if __name__ == "__main__":
    main()
