"""Causes and facts, by what they are about. A cause is what a finding says; facts are its evidence.

Each is a typed record with a tag; ``show.wording`` has a function for each that makes the sentence.
"""

from __future__ import annotations

from msgspec import Struct


class Cause(Struct, frozen=True, kw_only=True, tag=True):
    """Why ranks stand."""


class Fact(Struct, frozen=True, kw_only=True, tag=True):
    """One item of evidence."""
