"""Ranks in a sentence, singular and plural."""

from __future__ import annotations

from breakranks.rankset import RankSet, ranks_text


def verb(ranks: RankSet, singular: str, plural: str) -> str:
    return f"{ranks_text(ranks)} {singular if len(ranks) == 1 else plural}"


def are(ranks: RankSet, predicate: str) -> str:
    return verb(ranks, f"is {predicate}", f"are {predicate}")


def them(ranks: RankSet) -> str:
    return "it" if len(ranks) == 1 else "them"


def they_stop(ranks: RankSet) -> str:
    return "it stops" if len(ranks) == 1 else "they stop"


def they_return(ranks: RankSet) -> str:
    return "it returns" if len(ranks) == 1 else "they return"
