"""A SoftFileLock whose owner died: the file is there, its owner is not, and every rank waits for it."""

import filelock
from mark import ready, work_path


def load_tokenizer() -> None:
    with filelock.SoftFileLock(work_path("tokenizer.lock")):
        print("loading")


if __name__ == "__main__":
    ready()
    load_tokenizer()
