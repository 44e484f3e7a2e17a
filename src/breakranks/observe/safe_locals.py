"""The allow-list of local variables that are read from a target.

A stack shows that a rank is in ``recv``; its local ``src`` tells from which rank. Values are kept as short text. No
other variables of a frame are kept: they may contain secrets, and a snapshot must not.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b

from breakranks.snapshot.code_owner import is_own

_C10D = "torch/distributed/distributed_c10d.py"
_ENDS = ("src", "dst", "group_src", "group_dst")
# (function, part of the path of its file) → names. The path must match: elsewhere these names mean something else.
_KEPT: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("recv", _C10D, _ENDS),
    ("send", _C10D, _ENDS),
    ("recv_object_list", _C10D, _ENDS),
    ("send_object_list", _C10D, _ENDS),
    ("broadcast", _C10D, _ENDS),
    ("reduce", _C10D, _ENDS),
    ("gather", _C10D, _ENDS),
    ("scatter", _C10D, _ENDS),
    ("_store_based_barrier", _C10D, ("rank", "world_size", "group_name")),
    ("init_process_group", _C10D, ("rank", "world_size")),
    ("_jit_compile", "torch/utils/cpp_extension.py", ("build_directory",)),
    ("_wrap", "torch/multiprocessing/spawn.py", ("i",)),
    ("_worker_loop", "torch/utils/data/_utils/worker.py", ("worker_id",)),
    ("", "/filelock/", ("lock_filename", "canonical")),
    ("", "/portalocker/", ("filename",)),
)
# Loop counters of the user's own code, which show which rank is behind. Only numbers are kept.
_COUNTERS = frozenset("step i it iter iteration epoch batch_idx batch_index global_step n_iter idx".split())
_NUMBER = re.compile(r"-?\d{1,18}\Z")
# A lock file that the user's own code made: a path with such an ending. It must look like a path: a text that ends in
# "lock" may be anything, even a password.
_LOCK_PATH = re.compile(r"""["'][^"'\n]{0,400}(?:/[^"'\n/]{0,100}lock|\.lock|\.lck|\.pid)["']\Z""", re.IGNORECASE)
# A new key in every run, stored nowhere. Without it a short secret could be guessed from its mark.
_KEY = os.urandom(16)
_FLOAT = re.compile(r"-?\d+\.\d*(e[-+]?\d+)?\Z")
_MAX_VALUE_CHARACTERS = 512


def progress(values: list[str]) -> str:
    """Return a short mark of the plain values of a frame, which changes when the frame makes progress.

    Only numbers, text and containers of them count: an object that a waiting loop creates anew in each iteration is
    not progress.
    """
    plain = [text for text in values if text and " at 0x" not in text and not _FLOAT.match(text)]
    return blake2b("\0".join(plain).encode(errors="replace"), key=_KEY, digest_size=4).hexdigest()


def kept_names() -> tuple[str, ...]:
    """Return the variables of libraries that are kept, as ``rank_messages.StacksRequest`` has them."""
    return tuple(f"{function}|{path}|{name}" for function, path, names in _KEPT for name in names)


def keep(function: str, file: str, name: str, text: str) -> str | None:
    """Return the value to keep, or None. ``text`` is the representation that py-spy prints."""
    for kept, path, names in _KEPT:
        if name in names and kept in ("", function) and path in file:
            return text.strip("\"'")[:_MAX_VALUE_CHARACTERS]
    if not is_own(file):
        return None
    if name in _COUNTERS and _NUMBER.match(text):
        return text
    if _LOCK_PATH.match(text):
        return text.strip("\"'")
    return None
