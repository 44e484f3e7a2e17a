"""What the console makes of many answers: to the letter for the usual cases, and by property for any."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.rankset import RankSet
from breakranks.show.answer_lines import figure_texts, lines
from breakranks.show.answers_json import as_json
from breakranks.show.terminal_text import Line, TerminalStyle, render, text_of
from breakranks.snapshot.answer_groups import FoldedAnswers, Number, RankAnswer, Tensor, describe, fold
from support.values import replace

REPR = "tensor([[1., 2.],\n        [3., 4.]], device='cuda:{}')"
LISTING = "\n".join(f"{number:3}  \tline {number}" for number in range(1, 9))


def number(value: object, kind: str = "float") -> dict[str, Any]:
    return {"kind": "number", "type": kind, "value": value}


def tensor(**changed: object) -> dict[str, Any]:
    return {
        "kind": "tensor", "type": "Tensor", "shape": [4, 8], "dtype": "float32", "device": "cuda:0", "count": 32,
        "nan": 0, "inf": 0, "min": -1.0, "max": 1.2, "mean": 0.1, "digest": "a" * 16, **changed,
    }  # fmt: skip


def texts(*found: str) -> list[RankAnswer]:
    return [RankAnswer(rank=rank, text=text) for rank, text in enumerate(found)]


def numbers(*found: object) -> list[RankAnswer]:
    return [RankAnswer(rank=rank, text=f"{value}\n", value=number(value)) for rank, value in enumerate(found)]


def shown(answers: list[RankAnswer], **look: Any) -> str:
    one = TerminalStyle(**{"width": 80, **look})
    return render(lines(fold(answers), one), one)


def styled(answers: list[RankAnswer], **look: Any) -> list[Line]:
    return lines(fold(answers), TerminalStyle(**{"width": 80, **look}))


def style_of(found: list[Line], text: str) -> set[str]:
    pieces = [piece for line in found for piece in line if text in text_of((piece,))]
    assert pieces, f"{text!r} is not shown"
    return {"" if isinstance(piece, str) else piece[1] for piece in pieces}


def sets(folded: FoldedAnswers) -> list[str]:
    return [str(group.ranks) for group in folded.groups]


# --- groups


def test_the_largest_group_is_first_and_ties_go_by_rank() -> None:
    assert sets(fold(texts("a", "b", "b", "c", "b", "d"))) == ["1-2,4", "0", "3", "5"]


def test_what_counts_as_the_same_answer() -> None:
    one = RankAnswer(rank=0, text="a")
    others = [
        RankAnswer(rank=1, text="a\n"),  # a newline at the end is no difference, all else is
        RankAnswer(rank=2, text="a", error=True),
        RankAnswer(rank=3, text="a", cut=1),
        RankAnswer(rank=4, text="a", late=True),
    ]
    assert sets(fold([one, *others])) == ["0-1", "2", "3", "4"]


def test_of_two_answers_of_a_rank_the_last_counts() -> None:
    folded = fold([RankAnswer(rank=0, text="in all_reduce", late=True), RankAnswer(rank=0, text="1")])
    assert [(group.text, group.late) for group in folded.groups] == [("1", False)]


def test_addresses_are_no_difference_but_other_numbers_are() -> None:
    same = fold(texts("<A object at 0x7f01>", "<A object at 0x7f02>", "<A object at 0x7f02>"))
    assert [(str(group.ranks), group.text) for group in same.groups] == [("0-2", "<A object at 0x…>")]
    assert sets(fold(texts("<A at 0x7f01> 1", "<A at 0x7f02> 2"))) == ["0", "1"]
    assert sets(fold(texts("0x7f01", "0x7f02"))) == ["0", "1"], "hex(flags) is a value"
    assert fold(texts("<A at 0x7f01>", "<A at 0x7f01>")).groups[0].text == "<A at 0x7f01>", "an address that all have"


def test_the_index_of_a_device_is_no_difference_in_tensors() -> None:
    answers = [RankAnswer(rank=rank, text=REPR.format(rank), value=tensor(device=f"cuda:{rank}")) for rank in range(4)]
    folded = fold(answers)
    assert sets(folded) == ["0-3"]
    assert folded.tensors is not None and folded.tensors.same
    assert isinstance(folded.groups[0].value, Tensor)
    assert sets(fold([replace(one, value=None) for one in answers])) == ["0", "1", "2", "3"]


# --- numbers


def test_numbers_are_summed_up() -> None:
    folded = fold(numbers(0.88, 0.5, 0.31, 0.39)).numbers
    assert folded is not None
    assert folded.low is not None and (folded.low.value, str(folded.low.ranks)) == (0.31, "2")
    assert folded.high is not None and (folded.high.value, str(folded.high.ranks)) == (0.88, "0")
    assert folded.mean == pytest.approx(0.52) and folded.spread == pytest.approx(0.57)
    assert folded.usual is None and not folded.differs


def test_nan_equals_nan_and_takes_no_part_in_the_mean() -> None:
    assert fold(numbers("nan", "nan", float("nan"))).numbers is None, "all the same"
    found = fold(numbers("nan", 1.0, 3.0, float("nan"), "-inf", float("inf"))).numbers
    assert found is not None
    assert (found.mean, str(found.nan), str(found.inf)) == (2.0, "0,3", "4-5")
    assert found.low is not None and found.high is not None and (found.low.value, found.high.value) == (1.0, 3.0)


def test_the_majority_may_be_nan() -> None:
    found = fold(numbers("nan", "nan", 1.0)).numbers
    assert found is not None and found.usual is not None
    assert found.usual.value == "nan"
    assert [(share.value, str(share.ranks)) for share in found.differs] == [(1.0, "2")]


def test_half_is_no_majority() -> None:
    found = fold(numbers(1, 1, 2, 2)).numbers
    assert found is not None and found.usual is None


def test_no_summary_of_one_number_or_of_other_things_among_them() -> None:
    assert fold(numbers(1)).numbers is None
    assert fold([*numbers(1, 2), RankAnswer(rank=2, text="'three'")]).numbers is None
    assert fold([*numbers(1, 2), RankAnswer(rank=2, text="*** NameError", error=True)]).numbers is not None
    assert fold([*numbers(1, 2), RankAnswer(rank=2, text="in all_reduce", late=True)]).numbers is not None


@pytest.mark.parametrize("value", [10**300, "1" + "0" * 3800, 2**64, 1.7e308, -1.7e308])
def test_numbers_beyond_every_type(value: object) -> None:
    answers = [*numbers(0.5, value, value), RankAnswer(rank=3, text="", value=number(-1.7e308))]
    found = fold(answers).numbers
    assert found is not None
    msgspec.json.encode(as_json(fold(answers)))
    assert shown(answers)


def test_what_is_no_number() -> None:
    for value in (True, 10**5000, "9" * 5000, "0.5", "", None, [1], {"a": 1}):
        assert describe(number(value)) is None


@pytest.mark.parametrize(
    ("value", "meant"),
    [(3, 3), ("-12345678901234567890123", -12345678901234567890123), ("NaN", "nan"), (float("-inf"), "-inf")],
)
def test_what_is_a_number(value: object, meant: object) -> None:
    assert describe(number(value)) == Number(type="float", value=meant)  # type: ignore[arg-type]


# --- tensors


def test_tensors_that_differ() -> None:
    odd = tensor(digest="b" * 16, max=7103.2, mean="nan", nan=3)
    answers = [RankAnswer(rank=rank, text="x", value=odd if rank == 3 else tensor()) for rank in range(4)]
    found = fold(answers).tensors
    assert found is not None and not found.same
    assert [str(row.ranks) for row in found.rows] == ["0-2", "3"]
    assert found.differing == ("max", "mean", "nan", "digest")
    assert (str(found.differs), str(found.nan), str(found.inf)) == ("3", "3", "")
    assert len(found.layouts) == 1


def test_without_a_digest_nothing_is_said_to_be_identical() -> None:
    found = fold([RankAnswer(rank=rank, text="x", value=tensor(digest=None)) for rank in range(2)]).tensors
    assert found is not None and not found.same and len(found.rows) == 1
    alone = fold([RankAnswer(rank=0, text="x", value=tensor(digest=None))]).tensors
    assert alone is not None and alone.same


def test_one_repr_may_hide_two_tensors() -> None:
    answers = [RankAnswer(rank=rank, text="tensor([0.1, ...])", value=tensor(digest=str(rank))) for rank in range(2)]
    folded = fold(answers)
    assert sets(folded) == ["0-1"] and folded.groups[0].value is None
    assert folded.tensors is not None and not folded.tensors.same


# --- long texts that differ little


def test_a_line_that_differs() -> None:
    folded = fold(texts(LISTING, LISTING, LISTING.replace("line 5", "line V")))
    assert folded.diff is not None
    assert str(folded.diff.ranks) == "0-2" and folded.diff.groups == (0, 1)
    assert {at: [(str(side.ranks), side.text[-1]) for side in sides] for at, sides in folded.diff.sides.items()} == {
        4: [("0-1", "5"), ("2", "V")]
    }


@pytest.mark.parametrize(
    "other",
    [
        LISTING + "\n",
        "a\nb\nc",
        LISTING + "\nmore",
        LISTING.replace("line", "LINE"),
        LISTING.replace("line 1", "x").replace("line 2", "y").replace("line 3", "z"),
    ],
    ids=["same", "short", "longer", "all lines", "three of eight"],
)
def test_texts_that_are_not_compared_by_line(other: str) -> None:
    assert fold(texts(LISTING, LISTING, other)).diff is None


def test_lines_differ_by_more_than_an_address() -> None:
    first = "a\nb <A at 0x7f01>\nc\nd\ne"
    folded = fold(texts(first, first.replace("7f01", "7f02"), first.replace("7f01", "7f03").replace("d", "D")))
    assert folded.diff is not None and list(folded.diff.sides) == [3]
    assert folded.diff.lines[1] == "b <A at 0x…>"
    alone = fold(texts(first, first.replace("7f01", "7f03").replace("d", "D")))
    assert alone.diff is not None and alone.diff.lines[1] == "b <A at 0x…>"
    agreed = fold(texts(first, first.replace("d", "D")))
    assert agreed.diff is not None and agreed.diff.lines[1] == "b <A at 0x7f01>"


def test_an_error_is_not_compared_with_an_answer() -> None:
    failed = RankAnswer(rank=2, text=LISTING.replace("line 5", "line V"), error=True)
    assert fold([*texts(LISTING, LISTING), failed]).diff is None


# --- how it looks


def test_one_rank_has_no_header() -> None:
    assert shown([RankAnswer(rank=7, text="0.52\n")]) == "0.52\n"
    assert shown([RankAnswer(rank=7, text="a\n\tb\n")]) == "a\n        b\n"


def test_everybody_says_the_same() -> None:
    assert shown(numbers(0.52, 0.52, 0.52)) == "[0-2] 0.52\n"
    assert shown(texts("a\nb", "a\nb")) == "[0-1]\na\nb\n"
    assert style_of(styled(texts("a\nb", "a\nb")), "[0-1]") == {"dim"}
    assert style_of(styled(texts("a", "a")), "[0-1]") == {"rank"}
    assert shown(texts("", "")) == ""


def test_one_rank_has_nan() -> None:
    answers = numbers(0.52, 0.52, 0.52, "nan")
    assert shown(answers) == "[0-2]  0.52\n[3]    nan\n      rank 3 differs: nan\n"
    assert style_of(styled(answers), "nan") == {"bad"}


def test_one_rank_has_another_number() -> None:
    answers = numbers(0.001, 0.001, 0.001, 0.01)
    assert shown(answers) == (
        "[0-2]  0.001\n[3]    0.01\n      min 0.001 (ranks 0-2)  max 0.01 (rank 3)  mean 0.00325\n"
        "      rank 3 differs: 0.01\n"
    )
    assert style_of(styled(answers), "differs") == {"warn"}


def test_all_numbers_differ() -> None:
    assert shown(numbers(0.88, 0.5, 0.31, 0.39, "nan", "-inf")) == (
        "[0]  0.88\n[1]  0.5\n[2]  0.31\n[3]  0.39\n[4]  nan\n[5]  -inf\n"
        "      min 0.31 (rank 2)  max 0.88 (rank 0)  mean 0.52\n"
        "      nan on rank 4\n      inf on rank 5\n"
    )


def test_very_many_numbers() -> None:
    answers = numbers(*range(506))
    assert shown(answers) == (
        "[0]    0\n[1]    1\n[2]    2\n… 500 more\n[503]  503\n[504]  504\n[505]  505\n"
        "      min 0 (rank 0)  max 505 (rank 505)  mean 252.5\n"
    )
    assert len(styled(answers, full=True)) == 507
    assert len(styled(numbers(*range(12)))) == 13


def test_very_many_texts() -> None:
    assert "… 94 more\n" in shown(texts(*(f"name {rank}" for rank in range(100))))
    assert "… 94 more\n" in shown(texts(*(f"{rank}\n{rank}" for rank in range(100))))


def test_errors_and_those_who_have_not_answered() -> None:
    answers = [
        *texts("1", "1", "1"),
        RankAnswer(rank=3, text="*** NameError: name 'x' is not defined", error=True),
        RankAnswer(rank=4, text="has not answered; in all_reduce", late=True),
        RankAnswer(rank=5, text=""),
    ]
    assert shown(answers) == (
        "[0-2]  1\n[3]    *** NameError: name 'x' is not defined\n[4]    has not answered; in all_reduce\n"
        "[5]    (nothing)\n"
    )
    assert style_of(styled(answers), "NameError") == {"bad"}
    assert style_of(styled(answers), "all_reduce") == {"dim"}


def test_what_was_cut_is_said() -> None:
    assert shown([RankAnswer(rank=0, text="ab", cut=999_000)]) == "ab\n… 999,000 characters more (cut)\n"
    both = [RankAnswer(rank=rank, text="ab", cut=9 + rank) for rank in range(2)]
    assert shown(both) == "[0]  ab\n     … 9 characters more (cut)\n[1]  ab\n     … 10 characters more (cut)\n"


def test_long_texts_stand_below_their_ranks() -> None:
    assert shown([*texts("a\nb", "a\nb", "c\nd\ne"), RankAnswer(rank=3, text="*** no", error=True)]) == (
        "[0-1]\n  a\n  b\n[2]\n  c\n  d\n  e\n[3] *** no\n"
    )


def test_a_listing_with_a_line_that_differs() -> None:
    answers = texts(*[LISTING] * 3, LISTING.replace("line 5", "line V"), "nothing here")
    assert shown(answers) == (
        "[0-3]\n"
        "           1     line 1\n           2     line 2\n           3     line 3\n           4     line 4\n"
        "  [0-2]    5     line 5\n  [3]      5     line V\n"
        "           6     line 6\n           7     line 7\n           8     line 8\n"
        "[4] nothing here\n"
    )
    assert style_of(styled(answers), "line V") == {"warn"}
    assert style_of(styled(answers), "line 5") == {""}


def test_nothing_is_lost_at_the_edge_of_the_terminal() -> None:
    assert shown(texts("x" * 50, "y"), width=30) == f"[0]  {'x' * 25}\n     {'x' * 25}\n[1]  y\n"
    assert shown(texts("x" * 50), width=30) == f"{'x' * 30}\n{'x' * 20}\n"
    assert shown(texts("x" * 50, "y"), width=0) == f"[0]  {'x' * 50}\n[1]  y\n"


def test_nobody_moves_the_cursor() -> None:
    assert "\x1b" not in shown(texts("\x1b[2Jgone\r\nb", "\x1b]0;title\x07"))


def test_identical_tensors() -> None:
    answers = [RankAnswer(rank=rank, text=REPR.format(rank), value=tensor(device=f"cuda:{rank}")) for rank in range(4)]
    assert shown(answers) == "[0-3] identical\ntensor([[1., 2.],\n        [3., 4.]], device='cuda:…')\n"
    short = [RankAnswer(rank=rank, text="tensor([1.])", value=tensor(nan=2)) for rank in range(4)]
    assert shown(short) == "[0-3] tensor([1.])  identical\n  nan on ranks 0-3\n"


def test_a_tensor_that_differs() -> None:
    odd = tensor(digest="b" * 16, max=7103.2, mean=3.4)
    answers = [
        RankAnswer(rank=rank, text=f"a\nb{rank == 3}", value=odd if rank == 3 else tensor()) for rank in range(4)
    ]
    assert shown(answers) == (
        "  ranks  shape   dtype    min   max  mean\n"
        "  [0-2]  [4, 8]  float32   -1   1.2   0.1\n"
        "  [3]    [4, 8]  float32   -1  7103   3.4\n"
        "  rank 3 differs from the others (max 7103 against 1.2)\n"
    )
    assert style_of(styled(answers), "7103") == {"warn"}
    assert style_of(styled(answers), "float32") == {""}
    assert shown(answers, full=True).startswith("[0-2]\n  a\n  bFalse\n[3]\n  a\n  bTrue\n  ranks")


def test_a_tensor_with_nan() -> None:
    odd = tensor(digest="b" * 16, mean="nan", nan=3)
    answers = [RankAnswer(rank=rank, text="a\nb", value=odd if rank == 3 else tensor()) for rank in range(4)]
    assert shown(answers) == (
        "[0-3]\na\nb\n"
        "  ranks  shape   dtype    min  max  mean  nan\n"
        "  [0-2]  [4, 8]  float32   -1  1.2   0.1    0\n"
        "  [3]    [4, 8]  float32   -1  1.2   nan    3\n"
        "  rank 3 differs from the others (3 nan against none)\n"
    )
    assert "bad" in style_of(styled(answers), "nan")


def test_a_tensor_of_another_shape() -> None:
    odd = tensor(digest="b" * 16, shape=[4, 7], device="cpu", local="shard (2, 4) of (8, 4)")
    answers = [RankAnswer(rank=rank, text=f"t{rank // 3}", value=odd if rank == 3 else tensor()) for rank in range(4)]
    assert shown(answers) == (
        "[0-2]  t0\n[3]    t1\n"
        "  ranks  shape   dtype    device  min  max  mean\n"
        "  [0-2]  [4, 8]  float32  cuda     -1  1.2   0.1\n"
        "  [3]    [4, 7]  float32  cpu      -1  1.2   0.1  shard (2, 4) of (8, 4)\n"
        "  shape differs: [4, 8] on 0-2, [4, 7] on 3\n"
        "  device differs: cuda on 0-2, cpu on 3\n"
        "  rank 3 differs from the others (shape [4, 7] against [4, 8])\n"
    )


def test_the_same_figures_and_other_bits() -> None:
    answers = [RankAnswer(rank=rank, text="t", value=tensor(digest="ab"[rank == 2])) for rank in range(3)]
    assert "rank 2 differs from the others (same figures, other contents)\n" in shown(answers)


def test_tensors_of_one_element_are_numbers() -> None:
    answers = [
        RankAnswer(rank=rank, text=f"tensor({value:.4f})", value=tensor(shape=[], digest=str(rank), value=value))
        for rank, value in enumerate((0.5, 0.6, 0.7))
    ]
    assert shown(answers) == (
        "[0]  tensor(0.5000)\n[1]  tensor(0.6000)\n[2]  tensor(0.7000)\n"
        "      min 0.5 (rank 0)  max 0.7 (rank 2)  mean 0.6\n"
    )


def test_very_many_tensors_still_name_the_ranks_with_nan() -> None:
    answers = [
        RankAnswer(rank=rank, text="t\n", value=tensor(digest=str(rank), max=rank, nan=int(rank == 300)))
        for rank in range(1024)
    ]
    text = shown(answers)
    assert "  … 1,018 more\n" in text and text.endswith("  nan on rank 300\n")


def test_figures_have_the_digits_that_tell_them_apart() -> None:
    assert figure_texts([0.123456789, 0.123456999]) == ["0.1234568", "0.123457"]
    assert figure_texts([0.5, None, "nan", 123456789, 71234.5]) == ["0.5", "-", "nan", "123456789", "7.123e+04"]
    assert figure_texts([10**400]) == ["1000… (401 digits)"]


# --- for programs


def test_json() -> None:
    assert as_json(fold(numbers(0.5, 0.5, "nan"))) == {
        "answers": [
            {"ranks": "0-1", "text": "0.5", "error": False, "cut": 0, "late": False, "value": number(0.5)},
            {"ranks": "2", "text": "nan", "error": False, "cut": 0, "late": False, "value": number("nan")},
        ],
        "numbers": {
            "min": {"value": 0.5, "ranks": "0-1"},
            "max": {"value": 0.5, "ranks": "0-1"},
            "mean": 0.5,
            "spread": 0.0,
            "majority": {"value": 0.5, "ranks": "0-1"},
            "differs": [{"value": "nan", "ranks": "2"}],
            "nan": "2",
            "inf": "",
        },
        "tensors": None,
    }


def test_json_has_integers_of_64_bits_and_digits_beyond() -> None:
    found = as_json(fold(numbers(2**64, 2**64 - 1)))
    assert [one["value"]["value"] for one in found["answers"]] == [str(2**64), 2**64 - 1]
    assert found["numbers"]["max"]["value"] == str(2**64)


def test_json_of_tensors() -> None:
    found = as_json(fold([RankAnswer(rank=rank, text="t", value=tensor(digest=str(rank // 2))) for rank in range(3)]))
    assert found["answers"][0]["value"] is None, "one text, two contents"
    assert [(row["ranks"], row["digest"]) for row in found["tensors"]["rows"]] == [("0-1", "0"), ("2", "1")]
    assert found["tensors"]["layouts"] == [
        {"ranks": "0-2", "shape": (4, 8), "dtype": "float32", "type": "Tensor", "device": "cuda"}
    ]
    assert (found["tensors"]["identical"], found["tensors"]["majority"], found["tensors"]["differs"]) == (
        False,
        "0-1",
        "2",
    )


# --- by property


def too_long() -> str:
    return "9" * 5000  # more digits than Python reads


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.builds(too_long)
anything = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner), max_leaves=6
)
figures = st.sampled_from([0, 1, 1.0, 0.5, -3, 2**70, 1e308, -1e308, "nan", "inf", "-inf", "1" * 400, None])
tensors = st.fixed_dictionaries(
    {"kind": st.just("tensor")},
    optional={
        **dict.fromkeys(("min", "max", "mean", "value"), figures | anything),
        **dict.fromkeys(("nan", "inf", "count"), st.integers(-1, 3) | anything),
        **dict.fromkeys(("type", "dtype", "device", "local", "note"), st.sampled_from(["a", "b:1", ""]) | anything),
        "shape": st.lists(st.integers(0, 3), max_size=3) | anything,
        "digest": st.sampled_from(["a", "b"]) | anything,
    },
)
values = (
    st.none() | tensors | st.fixed_dictionaries({"kind": st.just("number"), "value": figures | anything}) | anything
)
answer = st.builds(
    RankAnswer,
    rank=st.integers(0, 300),
    text=st.sampled_from(["", "1", "a\nb", LISTING, LISTING.replace("line 5", "x"), "<A at 0x7f01>", "<A at 0x7f02>"])
    | st.text(),
    value=values,
    error=st.booleans(),
    cut=st.integers(0, 2),
    late=st.booleans(),
)
many = st.lists(answer, max_size=12, unique_by=lambda one: one.rank)


@given(many)
def test_every_rank_is_in_one_group(answers: list[RankAnswer]) -> None:
    folded = fold(answers)
    assert sorted(rank for group in folded.groups for rank in group.members) == sorted(one.rank for one in answers)
    written = [RankSet.parse(one["ranks"]) for one in as_json(folded)["answers"]]
    assert written == [group.ranks for group in folded.groups]
    sizes = [len(group.members) for group in folded.groups]
    assert sizes == sorted(sizes, reverse=True)
    if folded.diff is not None:
        for sides in folded.diff.sides.values():
            assert sorted(rank for side in sides for rank in side.members) == list(folded.diff.members)


@given(many, st.randoms(use_true_random=False))
def test_the_order_of_answers_is_no_matter(answers: list[RankAnswer], random: Any) -> None:
    mixed = list(answers)
    random.shuffle(mixed)
    assert fold(mixed) == fold(answers)
    assert as_json(fold(mixed)) == as_json(fold(answers))


@given(many, st.sampled_from([0, 1, 20, 80]), st.booleans())
def test_nothing_that_a_process_says_breaks_it(answers: list[RankAnswer], width: int, full: bool) -> None:
    folded = fold(answers)
    json.dumps(as_json(folded), allow_nan=False)
    look = TerminalStyle(width=width, full=full)
    rendered = render(lines(folded, look), look)
    assert all(len(line) <= width or not width for line in rendered.split("\n"))


@given(st.lists(tensors, min_size=1, max_size=8))
def test_tensors_of_any_shape(found: list[dict[str, Any]]) -> None:
    folded = fold([RankAnswer(rank=rank, text="t", value=value) for rank, value in enumerate(found)])
    assert folded.tensors is not None
    ranks = list(range(len(found)))
    assert sorted(rank for row in folded.tensors.rows for rank in row.members) == ranks
    assert sorted(rank for row in folded.tensors.layouts for rank in row.members) == ranks
    json.dumps(as_json(folded), allow_nan=False)
    assert render(lines(folded, TerminalStyle()), TerminalStyle())


@given(st.lists(st.floats(-1e100, 1e100) | st.integers() | st.just(float("nan")), min_size=2, max_size=8))
def test_numbers_of_any_size(found: list[float]) -> None:
    summary = fold(numbers(*found)).numbers
    finite = [value for value in found if value == value]
    if summary is None or not finite:
        assert len(set(finite)) + (len(finite) < len(found)) < 2
        return
    low, high, mean = summary.low, summary.high, summary.mean
    assert low is not None and high is not None and isinstance(mean, int | float)
    assert (low.value, high.value) == (min(finite), max(finite))
    assert low.members == tuple(rank for rank, value in enumerate(found) if value == min(finite))
    slack = 1e-9 * max(map(abs, finite))
    assert min(finite) - slack <= mean <= max(finite) + slack
    assert list(summary.nan) == [rank for rank, value in enumerate(found) if value != value]


@given(anything)
def test_a_description_is_what_it_says_or_nothing(value: object) -> None:
    assert describe(value) is None or isinstance(describe(value), Number | Tensor)


def test_a_thousand_answers_take_milliseconds() -> None:
    text = "\n".join(f"line {number} of a text that goes on <A at 0x7f0000001230>" for number in range(20))
    answers = [RankAnswer(rank=rank, text=f"{text}\nrank {rank}") for rank in range(1024)]
    began = time.process_time()
    render(lines(fold(answers), TerminalStyle()), TerminalStyle())
    assert time.process_time() - began < 10.0  # 40 ms on two slow cores
