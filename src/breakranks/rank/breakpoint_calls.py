"""The calls of breakranks in the program: how often each was called, and how often it stopped."""

from __future__ import annotations

import os
from types import CodeType, FrameType

_MAX_PUBLISHED_SITES = 256


class BreakpointSite:
    """One call in the code. ``calls``: how many have returned; ``inside``: how many have not."""

    __slots__ = ("calls", "code", "complained", "condition", "fired", "inside", "name", "stops")

    def __init__(self, frame: FrameType) -> None:
        self.code: CodeType = frame.f_code  # the reference keeps its id from being reused
        # The end of the path is the same on all hosts, even if the folder of the program is not.
        folder, file = os.path.split(frame.f_code.co_filename)
        self.name = f"{os.path.join(os.path.basename(folder), file)}:{frame.f_lineno}"
        self.calls = 0
        self.fired = 0
        self.stops = 0
        self.inside = 0
        self.complained = False
        self.condition: tuple[str, CodeType] | None = None


class BreakpointSites(dict[tuple[int, int], BreakpointSite]):
    """Sites by code object and offset of the call."""

    def at(self, frame: FrameType) -> BreakpointSite:
        key = (id(frame.f_code), frame.f_lasti)
        site = self.get(key)
        if site is None:
            site = self[key] = BreakpointSite(frame)
        return site

    def counts(self) -> dict[str, int]:
        """Return the number of calls of each site that have returned."""
        return {site.name: site.calls for site in list(self.values())[-_MAX_PUBLISHED_SITES:]}

    def begun(self) -> dict[str, int]:
        """Return the same, including calls that have not returned."""
        return {site.name: site.calls + site.inside for site in list(self.values())[-_MAX_PUBLISHED_SITES:]}


SITES = BreakpointSites()
