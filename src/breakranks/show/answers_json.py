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
    """The same for programs: rank sets folded, numbers that JSON has no word for as text."""
    return {
        "answers": [
            {
                "ranks": _set(one),
                "text": one.text,
                "error": one.error,
                "cut": one.cut,
                "late": one.late,
                "value": _value_json(one.value),
            }
            for one in folded.groups
        ],
        "numbers": None if folded.numbers is None else _numbers_json(folded.numbers),
        "tensors": None if folded.tensors is None else _tensors_json(folded.tensors),
    }


def _set(one: Ranked) -> str:
    """The set folded, from its members: a RankSet costs as much as its highest rank, and there may be 50,000."""
    parts: list[str] = []
    start = last = one.members[0]
    for rank in (*one.members[1:], -1):
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


def _numbers_json(one: NumberSummary) -> dict[str, Any]:
    return {
        "min": _share_json(one.low),
        "max": _share_json(one.high),
        "mean": _plain_number(one.mean),
        "spread": _plain_number(one.spread),
        "majority": _share_json(one.usual),
        "differs": [_share_json(share) for share in one.differs],
        "nan": str(one.nan),
        "inf": str(one.inf),
    }


def _tensors_json(one: TensorSummary) -> dict[str, Any]:
    return {
        "identical": one.same,
        "layouts": [
            {"ranks": _set(row), **{name: getattr(row.tensor, name) for name in LAYOUT}} for row in one.layouts
        ],
        "rows": [{"ranks": _set(row), **_plain(structs.asdict(row.tensor))} for row in one.rows],
        "differing": list(one.differing),
        "majority": None if one.usual is None else _set(one.usual),
        "differs": str(one.differs),
        "nan": str(one.nan),
        "inf": str(one.inf),
    }
