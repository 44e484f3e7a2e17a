"""This host: its addresses, its users, and a key that distinguishes it from others."""

from __future__ import annotations

import ipaddress
import os
import pwd


def addresses() -> tuple[str, ...]:
    """Return the IP addresses of this host, without loopback ones."""
    found = dict.fromkeys(_of_ipv4())
    found.update(dict.fromkeys(_of_ipv6()))
    return tuple(found)


def _of_ipv4() -> list[str]:
    # A leaf of the routing trie, followed by its type: `|-- 10.0.0.5` and `/32 host LOCAL`.
    found = []
    leaf = ""
    for line in _lines("/proc/net/fib_trie"):
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words[-1:] == ["LOCAL"] and words[:1] == ["/32"] and not leaf.startswith("127."):
            found.append(leaf)
    return found


def _of_ipv6() -> list[str]:
    found = []
    for line in _lines("/proc/net/if_inet6"):
        try:
            address = ipaddress.IPv6Address(int(line.split()[0], 16))
        except (ValueError, IndexError):
            continue
        if not address.is_loopback:
            found.append(str(address))
    return found


def same_host() -> str:
    """Return a key that is equal for two processes in the same PID namespace of the same boot."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{''.join(_lines('/proc/sys/kernel/random/boot_id'))} {namespace}"


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def user_name(uid: int) -> str:
    """The name of a user, or the number if there is no name (a user of a container, seen from outside)."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)
