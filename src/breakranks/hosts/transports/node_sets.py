"""Sets of host names: ``n[1-4,8]``, ``n1,n2``, ``@rack1``, ``n[1-9]!n3``.

The language is ClusterShell's, and so is the work, save for plain sets: importing ClusterShell takes longer than
many a whole answer. Names are checked here, whatever they came from, before they reach a command line.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from itertools import product

from breakranks.errors import UsageError

MAX_HOSTS = 100_000  # hosts that a set may have
EXAMPLES = "Write hosts as: n1,n2 or node-[5,8] or n[1-4,7] or n[1-9]!n3, or a group of ClusterShell's: @rack1"

_HOST = re.compile(r"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.:][A-Za-z0-9_.:-]*", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,9}))?)?", re.ASCII)
_ANY_RANGE = re.compile(r"([0-9]+)-([0-9]+)(?:/([0-9]+))?")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_PLAIN = re.compile(r"[A-Za-z0-9_.:@-]*", re.ASCII)
_OPERATORS = ",!&^"
_MARK = re.compile(r"[\[\],!&^]")
_DIGITS = re.compile(r"([0-9]+)")


def hosts_of(text: str, scheme: str) -> tuple[str, ...]:
    """The hosts of a node set, each once, in the order in which a person counts; raises UsageError.

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
    """Host names that may stand on a command line, sorted, each once; ``text`` is where they came from."""
    unique = set(names)
    if not unique:
        raise UsageError(f"{shortened(text)!r} names no host", EXAMPLES)
    if len(unique) > MAX_HOSTS:
        raise UsageError(f"{shortened(text)!r} has {len(unique):,} hosts; {MAX_HOSTS:,} is the most", EXAMPLES)
    for name in unique:
        if not _HOST.fullmatch(name) or len(name) > 255:
            raise UsageError(f"{shortened(name)!r} is not a host name", EXAMPLES)
    return tuple(sorted(unique, key=_counted))


def shortened(text: str) -> str:
    """A text for a message, as a person may have pasted a whole file."""
    return text if len(text) <= 80 else text[:77] + "..."


def plain(text: str) -> list[str] | None:
    """The names of a set without groups and operators; None where it is for ClusterShell to say."""
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
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        low, high, step = match[1], match[2] or match[1], int(match[3] or 1)
        padded = (len(low) > 1 and low[0] == "0") or (len(high) > 1 and high[0] == "0")
        if (padded and len(low) != len(high)) or int(low) > int(high) or not step:
            return None
        found += [str(number).zfill(len(low) if padded else 1) for number in range(int(low), int(high) + 1, step)]
    return found


def _elements(text: str, separators: str) -> list[str]:
    """Parts between separators that are not in brackets."""
    found, start, inside = [], 0, False
    for match in _MARK.finditer(text):
        mark = match[0]
        if mark in "[]":
            inside = mark == "["
        elif not inside and mark in separators:
            found.append(text[start : match.start()])
            start = match.end()
    return [*found, text[start:]]


def too_many(text: str) -> bool:
    """Whether the numbers in a set make more hosts than anybody has; said without counting them out."""
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
            f"{shortened(text)!r} needs ClusterShell, which is not here ({error})",
            "Install it (pip install ClusterShell), or write the hosts out: n1,n2 or n[1-4]",
        ) from error
    try:
        return [str(name) for name in nodeset.NodeSet(text)]
    except nodeset.NodeSetException as error:
        raise UsageError(f"{shortened(text)!r} is not a set of hosts: {shortened(str(error))}", EXAMPLES) from error
    except Exception as error:  # a group source is the site's own program
        raise UsageError(
            f"{shortened(text)!r}: ClusterShell cannot say which hosts these are: {shortened(str(error))}",
            "Try it alone: nodeset -e '…'. Groups are in /etc/clustershell/groups.conf, see: nodeset -l",
        ) from error


def _counted(name: str) -> list[tuple[int, int, str]]:
    """A key by which n9 comes before n10."""
    return [(1, int(part), part) if part.isdecimal() else (0, 0, part) for part in _DIGITS.split(name)]
