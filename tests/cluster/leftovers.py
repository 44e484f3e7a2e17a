"""What a look at hosts leaves on them: nothing. And what it does while it lasts."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support.waiting import wait_for

from .nodes import Host, Nodes


def programs(host: Host) -> Counter[str]:
    """What runs on a host, and how often. What a daemon writes into its own command line is left out."""
    return Counter(re.sub(r"\[.*", "", command) for command in host.processes().values() if command)


def up(nodes: Nodes) -> list[Host]:
    return [host for host in nodes if os.path.exists(f"/proc/{host.pid}")]


@contextmanager
def leaves_nothing(nodes: Nodes, *, files: bool = True, but: str = "") -> Iterator[None]:
    """No process, and no file in what a host has for itself, is left afterwards that was not there before.

    It may take a moment: a session of sshd ends after its command. Files whose path begins with ``but`` are left out.
    """

    def look(host: Host) -> tuple[Counter[str], set[str]]:
        places = host.files() if files else set()
        return programs(host), {path for path in places if not (but and path.startswith(but))}

    before = {host.name: look(host) for host in up(nodes)}
    yield

    def left() -> dict[str, list[str]]:
        found = {}
        for host in up(nodes):
            (processes, places), (had_processes, had_places) = look(host), before[host.name]
            if more := [*(processes - had_processes), *(places - had_places)]:
                found[host.name] = more
        return found

    def none() -> bool:
        nonlocal more
        more = left()
        return not more

    more: dict[str, list[str]] = {}
    try:
        wait_for("nothing is left behind", none)
    except AssertionError:
        raise AssertionError(f"left behind: {more}") from None


@contextmanager
def seen_meanwhile(look: Callable[[], set[str]]) -> Iterator[set[str]]:
    """Look again and again while something goes on: all that was ever seen."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.update(look())
            over.wait(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
