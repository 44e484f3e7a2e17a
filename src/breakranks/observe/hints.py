"""Local variables worth keeping, by an allow-list: the only ones that ever leave the target.

A stack says that a rank is in ``recv``; its local ``src`` says from whom. Values are kept as short text.
Nothing else of a frame's variables is kept: they may hold secrets, and a snapshot must not.
"""

from __future__ import annotations

import re

from breakranks.snapshot.code import is_own

_RANK = ("src", "dst", "group_src", "group_dst")
# (function, end of the file's path) -> names. The path must match: these names mean this only there.
_KEPT: dict[tuple[str, str], tuple[str, ...]] = {
    ("recv", "torch/distributed/distributed_c10d.py"): _RANK,
    ("send", "torch/distributed/distributed_c10d.py"): _RANK,
    ("recv_object_list", "torch/distributed/distributed_c10d.py"): _RANK,
    ("send_object_list", "torch/distributed/distributed_c10d.py"): _RANK,
    ("broadcast", "torch/distributed/distributed_c10d.py"): _RANK,
    ("_store_based_barrier", "torch/distributed/distributed_c10d.py"): ("rank", "world_size", "group_name"),
    ("init_process_group", "torch/distributed/distributed_c10d.py"): ("rank", "world_size"),
    ("_jit_compile", "torch/utils/cpp_extension.py"): ("build_directory",),
    ("_wrap", "torch/multiprocessing/spawn.py"): ("i",),
    ("_worker_loop", "torch/utils/data/_utils/worker.py"): ("worker_id",),
    ("acquire", "filelock/_api.py"): ("lock_filename",),
    ("acquire", "portalocker/utils.py"): ("filename",),
}
_FUNCTIONS = frozenset(function for function, _ in _KEPT)
# Loop counters of the user's own code: they tell which rank is behind. Numbers only.
_COUNTERS = frozenset("step i it iter iteration epoch batch_idx batch_index global_step n_iter idx".split())
_NUMBER = re.compile(r"-?\d{1,18}\Z")
_LONGEST = 512


def wanted(function: str, file: str) -> tuple[str, ...]:
    """The locals to keep of this library frame."""
    if function not in _FUNCTIONS:
        return ()
    for (name, path), kept in _KEPT.items():
        if name == function and file.endswith(path):
            return kept
    return ()


def keep(function: str, file: str, name: str, text: str) -> str | None:
    """The value to keep, or None. ``text`` is the representation that the inspector gives."""
    if name in wanted(function, file):
        return text.strip("\"'")[:_LONGEST]
    if name in _COUNTERS and _NUMBER.match(text) and is_own(file):
        return text
    return None
