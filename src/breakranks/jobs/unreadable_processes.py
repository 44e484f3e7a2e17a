"""Processes that cannot be inspected, and the remedies: those of other users, and in containers."""

from __future__ import annotations

import os

from breakranks.errors import THIS_BREAKRANKS
from breakranks.observe.process_table import ProcessEntry, ProcessTable
from breakranks.observe.this_host import user_name
from breakranks.rankset import RankSet
from breakranks.snapshot.model import Problem


def refused_problems(table: ProcessTable) -> list[Problem]:
    """A problem for each user whose Python processes this user may not inspect."""
    by_user: dict[int, list[int]] = {}
    for entry in table:
        if entry.exe is None and not entry.kernel and entry.state not in "ZX" and _worth_telling(table, entry):
            by_user.setdefault(entry.uid, []).append(entry.pid)
    return [_refused(table, uid, sorted(pids)) for uid, pids in sorted(by_user.items())]


def _worth_telling(table: ProcessTable, entry: ProcessEntry) -> bool:
    # System daemons, which every machine has, are not ranks.
    daemon = entry.ppid <= 1 and entry.session in (0, entry.pid)
    return not daemon and table.is_python(entry) and table.refused(entry.pid)


def _refused(table: ProcessTable, uid: int, pids: list[int]) -> Problem:
    user = user_name(uid)
    many = "es" if len(pids) > 1 else ""
    what = f"{len(pids)} Python process{many} of user {user} cannot be inspected (pid {pids_text(pids)})"
    container = table.container(pids[0])
    if container:
        return Problem(
            f"{what}: in container {container}",
            f"Run breakranks in the container: docker exec -it {container} breakranks why",
        )
    if os.geteuid() == 0:
        return Problem(
            what,
            f"root lacks a capability here. Run as that user (su {user} -c 'breakranks why'), or start "
            "the container with --cap-add=SYS_PTRACE.",
        )
    if uid == os.geteuid():
        return Problem(what, f"They are protected from their own user. Run as root: sudo {THIS_BREAKRANKS} why")
    return Problem(
        what, f"Run as that user (sudo -u {user} {THIS_BREAKRANKS} why) or as root: sudo {THIS_BREAKRANKS} why"
    )


def container_problem(table: ProcessTable, pids: list[int]) -> Problem | None:
    """A problem for ranks in another pid namespace than this process; None if there are none."""
    own = table.namespace(table.own_pid or os.getpid())
    inside = [pid for pid in pids if own and table.namespace(pid) not in ("", own)]
    if not inside:
        return None
    container = table.container(inside[0])
    enter = f"docker exec -it {container} breakranks why" if container else f"nsenter -t {inside[0]} -a breakranks why"
    return Problem(
        f"pid {pids_text(inside)}: in a container (another pid namespace), where paths and pids differ",
        f"If their stacks cannot be read from here, run breakranks in the container: {enter}",
    )


def pids_text(pids: list[int], limit: int = 8) -> str:
    """Pids, folded, and shortened if there are many."""
    shown = RankSet(pids[:limit])
    return f"{shown} and {len(pids) - limit} more" if len(pids) > limit else str(shown)
