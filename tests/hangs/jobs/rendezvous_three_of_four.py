"""Four ranks were promised, three were started."""

import torch.distributed as dist
from mark import ready


def main() -> None:
    ready()
    dist.init_process_group("gloo")
    dist.barrier()


if __name__ == "__main__":
    main()
