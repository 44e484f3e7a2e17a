"""Sets of host names: ``n[1-4,8]``, ``n1,n2``, ``@rack1``, ``n[1-9]!n3``.

The syntax is ClusterShell's. ClusterShell expands all but plain sets, because importing it takes longer than many
commands. Names from any source are checked here before they reach a command line.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from itertools import product

from breakranks.errors import UsageError

MAX_HOSTS = 100_000
EXAMPLES = "Write hosts as: n1,n2 or node-[5,8] or n[1-4,7] or n[1-9]!n3, or a ClusterShell group: @rack1"

_HOST = re.compile(r"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.:][A-Za-z0-9_.:-]*", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,9}))?)?", re.ASCII)
_ANY_RANGE = re.compile(r"([0-9]+)-([0-9]+)(?:/([0-9]+))?")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_PLAIN = re.compile(r"[A-Za-z0-9_.:@-]*", re.ASCII)
_OPERATORS = ",!&^"
_MARK = re.compile(r"[\[\],!&^]")
_DIGITS = re.compile(r"([0-9]+)")


def hosts_of(text: str, scheme: str) -> tuple[str, ...]:
    """Return the hosts of a node set, each once, in natural order; raise UsageError for an invalid set.

    >>> hosts_of("n[9-11],login", "ssh")
    ('login', 'n9', 'n10', 'n11')
    """
    text = text.strip()
    if not text:
        raise UsageError(f"{scheme}: names no host", EXAMPLES)
    if too_many(text):
        raise UsageError(f"{shortened(text)!r} has more than {MAX_HOSTS:,} hosts", EXAMPLES)
    names = plain(text)
    if names is None:
        names = _by_clustershell(text)
    return checked(names, text)


def checked(names: Iterable[str], text: str) -> tuple[str, ...]:
    """Return host names that are safe on a command line, sorted, each once. ``text`` is their source, for messages."""
    unique = set(names)
    if not unique:
        raise UsageError(f"{shortened(text)!r} names no host", EXAMPLES)
    if len(unique) > MAX_HOSTS:
        raise UsageError(f"{shortened(text)!r} has {len(unique):,} hosts, more than {MAX_HOSTS:,}", EXAMPLES)
    for name in unique:
        if not _HOST.fullmatch(name) or len(name) > 255:
            raise UsageError(f"{shortened(name)!r} is not a host name", EXAMPLES)
    return tuple(sorted(unique, key=_counted))


def shortened(text: str) -> str:
    """Return a text short enough for a message: a user may have pasted a whole file."""
    return text if len(text) <= 80 else text[:77] + "..."


def plain(text: str) -> list[str] | None:
    """Return the names of a set without groups and operators, or None for a set that needs ClusterShell."""
    names: list[str] = []
    for element in _elements(text, ","):
        parts = _BRACKET.split(element)
        fixed, inner = parts[::2], parts[1::2]
        if not element or element[0] == "@" or not all(fixed[1:-1]) or not _PLAIN.fullmatch("".join(fixed)):
            return None
        numbers: list[list[str]] = []
        for ranges in inner:
            chosen = _numbers(ranges)
            if chosen is None:
                return None
            numbers.append(chosen)
        for choice in product(*numbers):
            names.append(fixed[0] + "".join(a + b for a, b in zip(choice, fixed[1:], strict=True)))
    return names


def _numbers(text: str) -> list[str] | None:
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        low, high, step = match[1], match[2] or match[1], int(match[3] or 1)
        padded = (len(low) > 1 and low[0] == "0") or (len(high) > 1 and high[0] == "0")
        if (padded and len(low) != len(high)) or int(low) > int(high) or not step:
            return None
        numbers += [str(number).zfill(len(low) if padded else 1) for number in range(int(low), int(high) + 1, step)]
    return numbers


def _elements(text: str, separators: str) -> list[str]:
    """Return the parts between separators that are outside brackets."""
    parts, start, inside = [], 0, False
    for match in _MARK.finditer(text):
        mark = match[0]
        if mark in "[]":
            inside = mark == "["
        elif not inside and mark in separators:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def too_many(text: str) -> bool:
    """Return whether a set has more than MAX_HOSTS hosts, without expanding it."""
    total = 0
    for element in _elements(text, _OPERATORS):
        size = 1
        for ranges in _BRACKET.findall(element):
            size *= max(1, sum(_length(part) for part in ranges.split(",")))
        total += size
        if total > MAX_HOSTS:
            return True
    return False


def _length(part: str) -> int:
    match = _ANY_RANGE.search(part.replace(" ", ""))
    if match is None:
        return 1
    if max(map(len, match.groups(""))) > 18:
        return MAX_HOSTS + 1
    return (int(match[2]) - int(match[1])) // max(1, int(match[3] or 1)) + 1


def _by_clustershell(text: str) -> list[str]:
    try:
        nodeset = importlib.import_module("ClusterShell.NodeSet")
    except ImportError as error:
        raise UsageError(
            f"{shortened(text)!r} needs ClusterShell, which is not installed ({error})",
            "Install it (pip install ClusterShell), or list the hosts: n1,n2 or n[1-4]",
        ) from error
    try:
        return [str(name) for name in nodeset.NodeSet(text)]
    except nodeset.NodeSetException as error:
        raise UsageError(f"{shortened(text)!r} is not a set of hosts: {shortened(str(error))}", EXAMPLES) from error
    except Exception as error:  # a group source is a program of the site
        raise UsageError(
            f"ClusterShell cannot expand {shortened(text)!r}: {shortened(str(error))}",
            "Try: nodeset -e '…'. Groups are defined in /etc/clustershell/groups.conf; list them: nodeset -l",
        ) from error


def _counted(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that orders n9 before n10."""
    return [(1, int(part), part) if part.isdecimal() else (0, 0, part) for part in _DIGITS.split(name)]
