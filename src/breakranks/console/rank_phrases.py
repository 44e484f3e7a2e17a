"""Ranks in a sentence: one or many."""

from __future__ import annotations

from breakranks.rankset import RankSet, ranks_text


def are(ranks: RankSet, what: str) -> str:
    return f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} {what}"


def verb(ranks: RankSet, one: str, many: str) -> str:
    return f"{ranks_text(ranks)} {one if len(ranks) == 1 else many}"


def them(ranks: RankSet) -> str:
    return "it" if len(ranks) == 1 else "them"


def they_stop(ranks: RankSet) -> str:
    return "it stops" if len(ranks) == 1 else "they stop"


def they_come(ranks: RankSet) -> str:
    return "it comes" if len(ranks) == 1 else "they come"
