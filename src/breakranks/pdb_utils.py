"""The old name of :mod:`breakranks.mindspeed`."""

from breakranks.mindspeed import breakpoint_, clear_

__all__ = ["breakpoint_", "clear_"]
