"""No framework: rank 1 forks while a thread of its has a lock; the child has the lock, no such thread, and waits."""

import multiprocessing
import threading

from mark import rank_of_this_process, ready

log_lock = threading.Lock()
logging_now, forked = threading.Event(), threading.Event()


def write_log() -> None:
    with log_lock:
        logging_now.set()
        forked.wait()


def convert() -> None:
    ready("helper")
    with log_lock:
        print("converted")


def convert_in_a_child() -> None:
    threading.Thread(target=write_log, name="logger").start()
    logging_now.wait()
    child = multiprocessing.get_context("fork").Process(target=convert)
    child.start()
    forked.set()
    ready()
    child.join()


def work() -> None:
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


if __name__ == "__main__":
    if rank_of_this_process() == "1":
        convert_in_a_child()
    ready()
    work()
