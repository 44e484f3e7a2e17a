"""Rank 0 prepares the dataset under the `filelock` library's lock, as Hugging Face code does; it is taken."""

import filelock
import torch.distributed as dist
from mark import ready, work_path


def download_and_prepare() -> None:
    with filelock.FileLock(work_path("imagenet.lock")):
        print("preparing")


def main() -> None:
    dist.init_process_group("gloo")
    ready()
    if dist.get_rank() == 0:
        download_and_prepare()
    dist.barrier()


if __name__ == "__main__":
    main()
