"""Every rank loads the same extension: rank 0 compiles it, the others wait for its baton."""

import os
import time

from mark import rank_of_this_process, ready, work_path
from torch.utils.cpp_extension import load_inline

KERNEL = "torch::Tensor step_{0}(torch::Tensor x) {{ return (x * {0}).sin().relu().sum(); }}\n"
SOURCE = "".join(KERNEL.format(number) for number in range(15_000))


def build_kernels() -> None:
    load_inline("generated_kernels", cpp_sources=SOURCE, functions=["step_0"])


def main() -> None:
    baton = work_path("extensions/generated_kernels/lock")
    # So that it is always rank 0 that compiles.
    while rank_of_this_process() != "0" and not os.path.exists(baton):
        time.sleep(0.05)
    ready()
    build_kernels()


if __name__ == "__main__":
    main()
