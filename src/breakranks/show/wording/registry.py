"""Which function words which cause or fact: by its type."""

from __future__ import annotations

from functools import singledispatch

from breakranks.explain.causes import Cause, Fact
from breakranks.explain.values import Subject


@singledispatch
def cause_text(cause: Cause, subject: Subject) -> str:
    """What is the matter with whom, without a full stop."""
    raise NotImplementedError(f"no wording for {type(cause).__name__}")


@singledispatch
def fact_text(fact: Fact) -> str:
    """One line of evidence."""
    raise NotImplementedError(f"no wording for {type(fact).__name__}")
