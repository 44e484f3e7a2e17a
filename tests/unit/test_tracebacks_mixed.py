"""Tracebacks of many ranks in one file without prefixes, their lines mixed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakranks.logs.log_events import LogLine, Raised, TracebackEvent
from breakranks.logs.traceback_reader import TracebackReader

NOISE = [
    "step 3 loss 0.25",
    "INFO: saved checkpoint",
    "Loss: 0.3",
    "rank 2 says hello",
    "2026-01-01 10:00:00 INFO x",
    "{'loss': 1.0}",
]
Call = tuple[str, int, str, str]


def traceback(calls: Sequence[Call], exception: str) -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for file, line, function, source in calls:
        lines += [f'  File "/home/me/{file}", line {line}, in {function}', f"    {source}"]
        lines += ["    ^^^^^"] if line % 2 else []
    return [*lines, exception]


HEAD = [
    ("train.py", 90, "<module>", "main()"),
    ("train.py", 81, "main", "train(model)"),
    ("train.py", 70, "train", "loss = step(batch)"),
]
BLOCK = [
    ("torch/module.py", 1778, "_wrapped_call_impl", "return self._call_impl(*args, **kwargs)"),
    ("torch/module.py", 1789, "_call_impl", "return forward_call(*args, **kwargs)"),
    ("torch/container.py", 253, "forward", "input = module(input)"),
]
JOIN = ["", "During handling of the above exception, another exception occurred:", ""]

SHAPE = traceback([*HEAD, ("model.py", 44, "step", "raise ValueError(shape)")], "ValueError: bad shape")
RANKS = [[*SHAPE[:-1], f"ValueError: bad shape on rank {rank}"] for rank in range(3)]
LOAD = traceback([*HEAD[:2], ("data.py", 10, "load", "return open(path)")], "FileNotFoundError: [Errno 2] No file: 'x'")
DEEP = traceback([*HEAD, *BLOCK, *BLOCK, *BLOCK[:2], ("m.py", 5, "forward", "assert x")], "AssertionError")
CHAINED = [
    *traceback([HEAD[2], ("model.py", 40, "step", 'return batch["x"]')], "KeyError: 'x'"),
    *JOIN,
    *traceback([*HEAD[:2], ("train.py", 73, "train", 'raise RuntimeError("failed")')], "RuntimeError: failed"),
]
RECURSION = traceback([HEAD[0], *[("f.py", 3, "fib", "return fib(n - 1)")] * 5], "RecursionError: too deep")


def key(raised: Raised | None) -> object:
    return raised and (raised.text, raised.frames, raised.relation, key(raised.cause))


def read(lines: Sequence[str], voice: str = "") -> list[TracebackEvent]:
    reader = TracebackReader()
    events: list[TracebackEvent] = []
    for position, line in enumerate(lines):
        events += reader.feed(LogLine(line, voice=voice, position=position))
    return events + list(reader.finish())


def counted(events: Sequence[TracebackEvent]) -> Counter[object]:
    found: Counter[object] = Counter()
    for event in events:
        found[key(event.raised)] += event.count
    return found


def expected(copies: Sequence[Sequence[str]]) -> Counter[object]:
    return counted([event for copy in copies for event in read(copy, voice="rank 0")])


def mixed(copies: Sequence[Sequence[str]], chance: random.Random, noise: float = 0.0) -> list[str]:
    """The lines of all copies in any order in which each copy keeps its own."""
    left = [list(reversed(copy)) for copy in copies]
    lines: list[str] = []
    while left:
        copy = chance.choice(left)
        lines.append(copy.pop())
        left = [copy for copy in left if copy]
        while chance.random() < noise:
            lines.append(chance.choice(NOISE))
    return lines


seeds = st.integers(0, 1 << 30)
numbers = st.integers(1, 8)


@settings(deadline=None)
@given(seeds, numbers, st.sampled_from([SHAPE, LOAD, CHAINED]), st.sampled_from([0.0, 0.4]))
def test_copies_of_one_traceback(seed: int, number: int, kind: list[str], noise: float) -> None:
    copies = [kind] * number
    lines = mixed(copies, random.Random(seed), noise)
    assert counted(read(lines)) == expected(copies), "\n".join(lines)


@settings(deadline=None)
@given(seeds, st.lists(numbers, min_size=2, max_size=3), st.sampled_from([0.0, 0.4]))
def test_the_same_frames_with_different_messages(seed: int, numbers: list[int], noise: float) -> None:
    copies = [kind for kind, number in zip(RANKS, numbers, strict=False) for _ in range(number)]
    lines = mixed(copies, random.Random(seed), noise)
    assert counted(read(lines)) == expected(copies), "\n".join(lines)


@pytest.mark.parametrize("seed", range(20))
def test_three_of_one_kind_and_one_of_another(seed: int) -> None:
    copies = [SHAPE, SHAPE, SHAPE, LOAD]
    lines = mixed(copies, random.Random(seed), noise=0.2)
    assert counted(read(lines)) == expected(copies), "\n".join(lines)


@pytest.mark.parametrize("kind", [DEEP, RECURSION])
def test_frames_that_are_repeated(kind: list[str]) -> None:
    """Exactly for most orders: some can be read in more than one way."""
    right = sum(counted(read(mixed([kind] * 4, random.Random(seed)))) == expected([kind] * 4) for seed in range(20))
    assert right >= 17


@pytest.mark.parametrize("seed", range(10))
def test_the_number_of_tracebacks_is_that_of_headers(seed: int) -> None:
    copies = [DEEP] * 3 + [SHAPE] * 5 + [LOAD] * 2
    assert sum(event.count for event in read(mixed(copies, random.Random(seed)))) == 10


def test_frames_are_equal_whatever_the_order_of_ranks() -> None:
    """A whole frame is written at once by Python 3.13: all ranks one behind the other."""
    lines = [line for line in CHAINED for _ in range(5)]
    (event,) = read(lines)
    assert event.count == 5 and key(event.raised) == next(iter(expected([CHAINED])))


def test_lines_that_two_processes_wrote_into_one() -> None:
    lines = [
        SHAPE[0] + SHAPE[0],
        "",
        SHAPE[1] + SHAPE[1],
        "",
        SHAPE[2],
        SHAPE[2],
        *[x for x in SHAPE[3:] for _ in "ab"],
    ]
    (event,) = read(lines)
    assert event.count == 2 and key(event.raised) == next(iter(expected([SHAPE])))


def test_exceptions_in_one_line() -> None:
    lines = [line for line in SHAPE[:-1] for _ in range(3)] + [SHAPE[-1] * 2, "", SHAPE[-1]]
    (event,) = read(lines)
    assert event.count == 3 and event.raised.text == "ValueError: bad shape"


def test_one_after_the_other_each_has_its_whole_message() -> None:
    whole = [*SHAPE, "\tsecond line", "  third line"]
    events = read([*whole, "step 4", *LOAD, *whole])
    assert [event.raised.message for event in events] == [
        "bad shape\n\tsecond line\n  third line",
        "[Errno 2] No file: 'x'",
        "bad shape\n\tsecond line\n  third line",
    ]


def test_what_is_cut_off_is_incomplete() -> None:
    events = read([line for line in SHAPE[:-1] for _ in "abc"] + SHAPE[-1:] * 2)
    assert sorted((event.raised.complete, event.count) for event in events) == [(False, 1), (True, 2)]


def test_many_ranks() -> None:
    lines = [line for line in SHAPE for _ in range(2000)] + [line for line in LOAD for _ in range(48)]
    (shape,), (load,) = expected([SHAPE]), expected([LOAD])
    assert counted(read(lines)) == Counter({shape: 2000, load: 48})


def test_it_ends_when_nothing_more_comes() -> None:
    reader = TracebackReader()
    events: list[TracebackEvent] = []
    for position, line in enumerate([*SHAPE[:3], *SHAPE[:3], *SHAPE[3:], *["x"] * 5000]):
        events += reader.feed(LogLine(line, position=position))
    assert not reader.open
    assert sum(event.count for event in events) == 2
