"""A data-loader worker is forked while a thread has a lock: the child gets the lock and no such thread."""

import threading

import torch
import torch.distributed as dist
from mark import ready
from torch.utils.data import DataLoader, Dataset

log_lock = threading.Lock()
logging_now, forked = threading.Event(), threading.Event()


def write_log() -> None:
    with log_lock:
        logging_now.set()
        forked.wait()


class Images(Dataset):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        if dist.get_rank() == 1:
            ready("helper")
            self.warn_if_corrupt(index)
        return torch.ones(8)

    def warn_if_corrupt(self, index: int) -> None:
        with log_lock:
            print("checked", index)


def main() -> None:
    dist.init_process_group("gloo")
    threading.Thread(target=write_log, name="logger").start()
    logging_now.wait()
    batches = iter(DataLoader(Images(), batch_size=4, num_workers=1))
    forked.set()
    ready()
    for batch in batches:
        dist.all_reduce(batch.sum())


if __name__ == "__main__":
    main()
