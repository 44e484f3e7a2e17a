"""Causes and facts, by topic. A cause is what a finding reports; facts are its evidence.

Each is a typed record with a tag. ``show.wording`` has a function for each that makes the sentence.
"""

from __future__ import annotations

from msgspec import Struct


class Cause(Struct, frozen=True, kw_only=True, tag=True):
    """Why ranks are blocked."""


class Fact(Struct, frozen=True, kw_only=True, tag=True):
    """One item of evidence."""
