"""A module that computes its tables in a thread while it is imported, and the thread imports the module."""

import threading


def compute() -> None:
    from lookup_tables import SIZE

    TABLES.append(SIZE)


TABLES: list[int] = []
worker = threading.Thread(target=compute, name="tables")
worker.start()
worker.join()
SIZE = 256
