"""This host: its addresses, and what tells it from others."""

from __future__ import annotations

import ipaddress
import os


def addresses() -> tuple[str, ...]:
    """Its own IP addresses, without loopback ones."""
    found = dict.fromkeys(_of_ipv4())
    found.update(dict.fromkeys(_of_ipv6()))
    return tuple(found)


def _of_ipv4() -> list[str]:
    # A leaf of the routing trie, then what it is: `|-- 10.0.0.5` and `/32 host LOCAL`.
    found = []
    last = ""
    for line in _lines("/proc/net/fib_trie"):
        words = line.split()
        if words[:1] == ["|--"]:
            last = words[1]
        elif words[-1:] == ["LOCAL"] and words[:1] == ["/32"] and not last.startswith("127."):
            found.append(last)
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
    """Equal for two processes that see the same processes."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{''.join(_lines('/proc/sys/kernel/random/boot_id'))} {space}"


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []
