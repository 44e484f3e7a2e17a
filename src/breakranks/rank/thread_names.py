"""The threads of the job by name, as users name them."""

from __future__ import annotations

import threading


def find_thread(name: str) -> int:
    """Return the ident of a thread by its name, its number in the kernel or its ident; 0 where no thread has it."""
    if name == "main":
        return threading.main_thread().ident or 0
    for ident, thread in list(threading._active.items()):  # type: ignore[attr-defined]
        if thread.name == name or name in (str(ident), str(thread.native_id)):
            return int(ident)
    return int(name) if name.isdigit() else 0


def thread_label(ident: int) -> str:
    """The name alone where no other thread has it, so that ranks give equal answers; else with the number."""
    names = [thread.name for thread in list(threading._active.values())]  # type: ignore[attr-defined]
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return thread.name if thread is not None and names.count(thread.name) == 1 else numbered_name(ident)


def numbered_name(ident: int) -> str:
    """The name with the thread's number in the kernel."""
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return f"{thread.name} ({thread.native_id})" if thread is not None else f"thread {ident}"
