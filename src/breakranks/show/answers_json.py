"""Folded answers as JSON, for programs."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from breakranks.snapshot.answer_groups import (
    LAYOUT,
    AnswerShare,
    Figure,
    FoldedAnswers,
    Number,
    NumberSummary,
    Ranked,
    Tensor,
    TensorSummary,
)

_JSON_INTEGERS = range(-(2**63), 2**64)


def as_json(folded: FoldedAnswers) -> dict[str, Any]:
    """The answers as JSON: rank sets folded, and numbers that JSON cannot represent as text."""
    return {
        "answers": [
            {
                "ranks": _set(group),
                "text": group.text,
                "error": group.error,
                "cut": group.cut,
                "late": group.late,
                "value": _value_json(group.value),
            }
            for group in folded.groups
        ],
        "numbers": None if folded.numbers is None else _numbers_json(folded.numbers),
        "tensors": None if folded.tensors is None else _tensors_json(folded.tensors),
    }


def _set(ranked: Ranked) -> str:
    """The set folded, from its members: a RankSet costs as much as its highest rank, and there may be 50,000 sets."""
    parts: list[str] = []
    start = last = ranked.members[0]
    for rank in (*ranked.members[1:], -1):
        if rank != last + 1:
            parts.append(f"{start}" if start == last else f"{start}-{last}")
            start = rank
        last = rank
    return ",".join(parts)


def _value_json(value: Number | Tensor | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"kind": "number" if isinstance(value, Number) else "tensor", **_plain(structs.asdict(value))}


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    return {key: _plain_number(value) if isinstance(value, int) else value for key, value in found.items()}


def _plain_number(value: Figure | None) -> Figure | None:
    return str(value) if isinstance(value, int) and value not in _JSON_INTEGERS else value


def _share_json(share: AnswerShare | None) -> dict[str, Any] | None:
    return None if share is None else {"value": _plain_number(share.value), "ranks": _set(share)}


def _numbers_json(numbers: NumberSummary) -> dict[str, Any]:
    return {
        "min": _share_json(numbers.low),
        "max": _share_json(numbers.high),
        "mean": _plain_number(numbers.mean),
        "spread": _plain_number(numbers.spread),
        "majority": _share_json(numbers.usual),
        "differs": [_share_json(share) for share in numbers.differs],
        "nan": str(numbers.nan),
        "inf": str(numbers.inf),
    }


def _tensors_json(tensors: TensorSummary) -> dict[str, Any]:
    return {
        "identical": tensors.same,
        "layouts": [
            {"ranks": _set(row), **{name: getattr(row.tensor, name) for name in LAYOUT}} for row in tensors.layouts
        ],
        "rows": [{"ranks": _set(row), **_plain(structs.asdict(row.tensor))} for row in tensors.rows],
        "differing": list(tensors.differing),
        "majority": None if tensors.usual is None else _set(tensors.usual),
        "differs": str(tensors.differs),
        "nan": str(tensors.nan),
        "inf": str(tensors.inf),
    }
