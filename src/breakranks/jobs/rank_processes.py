"""Which processes are ranks, and of which job, by the environment that each was started with.

The descendants of a rank inherit its variables, so most processes with the variables of rank 3 are not that rank: they
are its helpers, a shell around it, or processes that it left behind. This module distinguishes them.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from breakranks.jobs.launchers import Identity, Launcher, identities, is_agent, is_helper, is_wrapper, launcher_of
from breakranks.observe.process_table import ProcessEntry, ProcessTable


class RankCandidate(NamedTuple):
    """The topmost Python process with an identity.

    ``mother`` is the process above all that have the identity. ``launcher`` is the same pid if that is a launcher,
    otherwise 0. ``helper``: why this is not the rank, but a helper that it left behind.
    """

    entry: ProcessEntry
    identity: Identity
    mother: int
    launcher: int
    helper: str = ""


class Identities:
    """Reads environments on demand, and caches the identities in them."""

    def __init__(self, table: ProcessTable) -> None:
        self.table = table
        self._raw: dict[int, list[Identity]] = {}
        self._chosen: dict[int, Identity | None] = {}
        self._launchers: dict[int, Launcher | None] = {}

    def of(self, pid: int) -> Identity | None:
        """The identity of a process under its innermost launcher."""
        if pid not in self._chosen:
            self._chosen[pid] = None  # reused pids can close a cycle of parents: never visit a pid twice
            self._chosen[pid] = self._choose(pid, self._all(pid))
        return self._chosen[pid]

    def launcher(self, entry: ProcessEntry) -> Launcher | None:
        """The launcher that this process belongs to as one of its own."""
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
            return self.of(entry.ppid)  # everything is inherited from the parent
        # Launchers nest (srun → torchrun), and an environment keeps the variables of all of them. The innermost
        # launcher set its variables last: they are in the fewest ancestors.
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
    """Return one candidate for each tree of processes with the same identity, oldest first."""
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
    # A program that embeds Python. Its memory map is read only if a launcher started it.
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
            return None  # inherited from an outer job, through the launcher of an inner one
        if ancestor.pid == table.own_pid or is_agent(table.command(ancestor.pid)):
            top = None  # breakranks and its descendants are never ranks, whatever the shell's variables are
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
    # A Python program that is not a known launcher may call `elastic_launch`. Init, or the process that adopts the
    # orphans of a session, is never a launcher.
    return known.launcher(mother) is not None or (identity.row.parent_launches and table.is_python(mother))


def _why_helper(table: ProcessTable, top: ProcessEntry, launcher: int) -> str:
    # exec sets the environment of a process. A process that never called exec was forked from one that did.
    if top.forked:
        return "forked from it"
    if not launcher and is_helper(table.command(top.pid)):
        return "a multiprocessing helper"
    return ""


def same_program(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two command lines run the same script. One may name it by its full path."""

    def names(command: tuple[str, ...]) -> set[str]:
        return {os.path.basename(word) for word in command[1:] if not word.startswith("-")}

    return bool(names(one) & names(other))
