"""The functions that word causes and facts, by type."""

from __future__ import annotations

from functools import singledispatch

from breakranks.explain.causes import Cause, Fact
from breakranks.explain.finding_parts import Subject


@singledispatch
def cause_text(cause: Cause, subject: Subject) -> str:
    """Return what is wrong with the subject, without a full stop."""
    raise NotImplementedError(f"no wording for {type(cause).__name__}")


@singledispatch
def fact_text(fact: Fact) -> str:
    """Return one line of evidence."""
    raise NotImplementedError(f"no wording for {type(fact).__name__}")
