"""Rank 0 compiles a large C++ extension, which takes minutes; the others wait for it in a barrier."""

import torch.distributed as dist
from mark import ready
from torch.utils.cpp_extension import load_inline

KERNEL = "torch::Tensor step_{0}(torch::Tensor x) {{ return (x * {0}).sin().relu().sum(); }}\n"
SOURCE = "".join(KERNEL.format(number) for number in range(15_000))


def build_kernels() -> None:
    load_inline("generated_kernels", cpp_sources=SOURCE, functions=["step_0"])


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 0:
        build_kernels()
    dist.barrier()
    build_kernels()


if __name__ == "__main__":
    main()
