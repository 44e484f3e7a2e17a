"""Which processes are ranks, and of what: from the environment each was started with.

Everything below a rank inherits its variables, so most processes that say "I am rank 3" are not: they
are its helpers, a shell around it, or what it left behind when it died. This module tells them apart.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from breakranks.jobs.launchers import Identity, Launcher, identities, is_agent, is_helper, is_wrapper, launcher_of
from breakranks.observe.process_table import ProcessEntry, ProcessTable


class RankCandidate(NamedTuple):
    """The topmost Python process of an identity.

    ``mother`` is the process above all that carry the identity; ``launcher`` is the same pid where that
    is a launcher, else 0. ``helper`` says why this cannot be the rank but is what it left behind.
    """

    entry: ProcessEntry
    identity: Identity
    mother: int
    launcher: int
    helper: str = ""


class Identities:
    """Reads environments on demand and remembers what they say."""

    def __init__(self, table: ProcessTable) -> None:
        self.table = table
        self._raw: dict[int, list[Identity]] = {}
        self._chosen: dict[int, Identity | None] = {}
        self._launchers: dict[int, Launcher | None] = {}

    def of(self, pid: int) -> Identity | None:
        """What a process is, by its innermost launcher."""
        if pid not in self._chosen:
            self._chosen[pid] = None  # reused pids can close a circle of parents: never ask twice
            self._chosen[pid] = self._choose(pid, self._all(pid))
        return self._chosen[pid]

    def launcher(self, entry: ProcessEntry) -> Launcher | None:
        """The launcher whose own process this is."""
        if entry.pid not in self._launchers:
            row = launcher_of(self.table.command(entry.pid), entry.name) if entry.state != "Z" else None
            self._launchers[entry.pid] = row
        return self._launchers[entry.pid]

    def _all(self, pid: int) -> list[Identity]:
        if pid not in self._raw:
            environ = self.table.environ(pid)
            self._raw[pid] = identities(environ) if environ else []
        return self._raw[pid]

    def _choose(self, pid: int, found: list[Identity]) -> Identity | None:
        if len(found) < 2:
            return found[0] if found else None
        entry = self.table.get(pid)
        if entry is not None and entry.ppid != pid and self._all(entry.ppid) == found:
            return self.of(entry.ppid)  # all inherited: it is what its parent is
        # Launchers nest (srun → torchrun), and an environment keeps the variables of them all. The
        # innermost is the one whose variables were set last: fewest ancestors carry them.
        best = min(found, key=lambda identity: self._height(pid, identity))
        if best.row.by_hand:
            for identity in found:
                if not identity.row.by_hand and (identity.rank, identity.world) == (best.rank, best.world):
                    return identity
        return best

    def _height(self, pid: int, identity: Identity) -> int:
        height = 0
        for ancestor in self.table.ancestors(pid):
            if identity not in self._all(ancestor.pid):
                break
            height += 1
        return height


def candidates(table: ProcessTable, known: Identities) -> list[RankCandidate]:
    """One candidate for each tree of processes that carry one identity, oldest first."""
    found: dict[int, RankCandidate] = {}
    for entry in table:
        if entry.kernel or entry.state in "ZX" or not _may_be_python(table, known, entry):
            continue
        identity = known.of(entry.pid)
        if identity is None or not identity.is_rank or known.launcher(entry) is not None:
            continue
        if is_agent(table.command(entry.pid)):
            continue
        candidate = _topmost(table, known, entry, identity)
        if candidate is not None:
            found.setdefault(candidate.entry.pid, candidate)
    return sorted(found.values(), key=lambda c: (c.entry.ticks, c.entry.started, c.entry.pid))


def _may_be_python(table: ProcessTable, known: Identities, entry: ProcessEntry) -> bool:
    if table.is_python(entry):
        return True
    # A program that embeds Python: only worth a look at its memory map if a launcher started it.
    parent = table.get(entry.ppid)
    if parent is None or entry.exe is None or entry.exe in _NEVER_PYTHON:
        return False
    return known.launcher(parent) is not None and table.is_python(entry, deep=True)


_NEVER_PYTHON = frozenset(("bash", "sh", "dash", "zsh", "sleep", "env", "srun", "slurmstepd", "ssh", "sshd"))


def _topmost(table: ProcessTable, known: Identities, entry: ProcessEntry, identity: Identity) -> RankCandidate | None:
    top = None if entry.pid == table.own_pid or is_wrapper(table.command(entry.pid)) else entry
    mother: ProcessEntry | None = None
    for ancestor in table.ancestors(entry.pid):
        if known.of(ancestor.pid) != identity:
            mother = ancestor
            break
        if known.launcher(ancestor) is not None:
            return None  # the launcher of an inner job inherited an outer one's variables; so did this
        if ancestor.pid == table.own_pid or is_agent(table.command(ancestor.pid)):
            top = None  # we are no rank, though our shell's variables say so; nor is what has them from us
        elif _may_be_python(table, known, ancestor) and not is_wrapper(table.command(ancestor.pid)):
            top = ancestor
    if top is None:
        return None
    launcher = mother.pid if mother is not None and _launches(table, known, identity, mother) else 0
    return RankCandidate(
        entry=top,
        identity=identity,
        mother=mother.pid if mother else 0,
        launcher=launcher,
        helper=_why_helper(table, top, launcher),
    )


def _launches(table: ProcessTable, known: Identities, identity: Identity, mother: ProcessEntry) -> bool:
    # Python, but no launcher we know: `elastic_launch` called from somebody's own program. Never init, nor
    # a session's reaper of orphans.
    return known.launcher(mother) is not None or (identity.row.parent_launches and table.is_python(mother))


def _why_helper(table: ProcessTable, top: ProcessEntry, launcher: int) -> str:
    # The variables were put there by exec; so one that never called exec was forked from one that did.
    if top.forked:
        return "forked from it"
    if not launcher and is_helper(table.command(top.pid)):
        return "a multiprocessing helper"
    return ""


def same_program(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two command lines run the same script: one may name it by its whole path."""

    def names(command: tuple[str, ...]) -> set[str]:
        return {os.path.basename(word) for word in command[1:] if not word.startswith("-")}

    return bool(names(one) & names(other))
