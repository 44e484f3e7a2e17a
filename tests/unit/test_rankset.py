"""Rank sets are the words of every answer, so their algebra and their spelling are checked by property."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.errors import UsageError
from breakranks.rankset import MAX_RANK, RankSet, ranks_text

members = st.frozensets(st.integers(0, 5000), max_size=60)


@given(members)
def test_it_holds_what_it_was_given(ranks: frozenset[int]) -> None:
    made = RankSet(ranks)
    assert list(made) == sorted(ranks)
    assert len(made) == len(ranks)
    assert bool(made) == bool(ranks)
    assert all(rank in made for rank in ranks)
    assert -1 not in made and 5001 not in made


@given(members, members)
def test_algebra_is_that_of_sets(a: frozenset[int], b: frozenset[int]) -> None:
    left, right = RankSet(a), RankSet(b)
    assert set(left | right) == a | b
    assert set(left & right) == a & b
    assert set(left - right) == a - b
    assert (left <= right) == (a <= b)
    assert (left == right) == (a == b)
    if a == b:
        assert hash(left) == hash(right)


@given(members)
def test_what_is_written_reads_back(ranks: frozenset[int]) -> None:
    made = RankSet(ranks)
    assert RankSet.parse(str(made)) == made


@given(members)
def test_ranges_are_maximal_and_in_order(ranks: frozenset[int]) -> None:
    runs = list(RankSet(ranks).ranges())
    assert [rank for a, b in runs for rank in range(a, b + 1)] == sorted(ranks)
    # Two neighbouring runs have a hole between them, or they would be one.
    assert all(later[0] > earlier[1] + 1 for earlier, later in itertools.pairwise(runs))


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 9))
def test_parse_reads_steps(start: int, length: int, step: int) -> None:
    assert list(RankSet.parse(f"{start}-{start + length}/{step}")) == list(range(start, start + length + 1, step))


@given(members.filter(bool))
def test_first_is_the_lowest(ranks: frozenset[int]) -> None:
    assert RankSet(ranks).first == min(ranks)


@given(st.text(max_size=20))
def test_parse_never_fails_but_by_saying_so(text: str) -> None:
    try:
        RankSet.parse(text)
    except UsageError as error:
        assert error.message and error.help


@pytest.mark.parametrize("text", ["x", "3-1", "1--2", "0-8/0", "-1", "1;2", f"{MAX_RANK + 1}", ","])
def test_parse_names_what_is_wrong(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        RankSet.parse(text)
    assert caught.value.help


def test_small_cases() -> None:
    assert str(RankSet.span(0, 512) - RankSet([7])) == "0-6,8-511"
    assert RankSet.parse("") == RankSet()
    assert RankSet.span(4, 4) == RankSet()
    assert ranks_text(RankSet([3])) == "rank 3"
    assert ranks_text(RankSet([0, 1])) == "ranks 0-1"
    with pytest.raises(ValueError):
        RankSet([-1])
    with pytest.raises(ValueError):
        _ = RankSet().first


@given(st.integers(0, 1000), st.integers(2, 40), st.integers(1, 500), st.integers(0, 39))
def test_steps_are_read_as_written(start: int, step: int, count: int, spare: int) -> None:
    end = start + step * (count - 1) + min(spare, step - 1)
    assert list(RankSet.parse(f"{start}-{end}/{step}")) == list(range(start, end + 1, step))
