"""How often each breakpoint in the code was called, and how often it stopped: counted per site, as people mean it."""

from __future__ import annotations

import os
from types import CodeType, FrameType

_MAX_SITES_TOLD = 256


class BreakpointSite:
    """One call of ours in the code. ``calls`` are those that have returned, ``inside`` those that have not."""

    __slots__ = ("calls", "code", "complained", "condition", "fired", "inside", "name", "stops")

    def __init__(self, frame: FrameType) -> None:
        self.code: CodeType = frame.f_code  # kept alive, so that nobody else gets its id
        # The path's end is the same on all hosts, wherever each has its copy.
        folder, file = os.path.split(frame.f_code.co_filename)
        self.name = f"{os.path.join(os.path.basename(folder), file)}:{frame.f_lineno}"
        self.calls = 0
        self.fired = 0
        self.stops = 0
        self.inside = 0
        self.complained = False
        self.condition: tuple[str, CodeType] | None = None


class BreakpointSites(dict[tuple[int, int], BreakpointSite]):
    """Sites by the call's place in its code object."""

    def at(self, frame: FrameType) -> BreakpointSite:
        key = (id(frame.f_code), frame.f_lasti)
        site = self.get(key)
        if site is None:
            site = self[key] = BreakpointSite(frame)
        return site

    def counts(self) -> dict[str, int]:
        """How many calls of each site this rank has behind it."""
        return {site.name: site.calls for site in list(self.values())[-_MAX_SITES_TOLD:]}

    def begun(self) -> dict[str, int]:
        """The same, with the call that a thread is in."""
        return {site.name: site.calls + site.inside for site in list(self.values())[-_MAX_SITES_TOLD:]}


SITES = BreakpointSites()
