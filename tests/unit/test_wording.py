"""Every cause, fact, action and ground has a text, in the singular and in the plural."""

from __future__ import annotations

import ast
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import breakranks.explain
from breakranks.explain.actions import Action
from breakranks.explain.causes import Cause, Fact
from breakranks.explain.causes.collective_causes import PeersWait, RingWait
from breakranks.explain.causes.host_causes import ClockOffset
from breakranks.explain.causes.process_causes import KernelState, Stopped
from breakranks.explain.finding_parts import Doing, HeldUp, Subject, WaitPlace, Where
from breakranks.explain.frame_meanings import ACTIVITIES
from breakranks.show.wording import action_wording, finding_wording, ground_wording, value_wording
from breakranks.show.wording.wording_registry import cause_text, fact_text

SOURCE = Path(breakranks.explain.__file__).parent
SAID = Path(__file__).parents[1] / "data" / "wording.txt"
ONE = Subject(ranks="3", pid=4242)
MANY = Subject(ranks="0-2")
# A verb in the wrong number after its ranks.
WRONG = re.compile(
    r"\branks [\d,-]+(?: \([^)]*\))? (?:is|has|waits|holds|runs|wants|does|sends)\b"
    r"|\brank \d+(?: \([^)]*\))? (?:are|have|wait|hold|run|want|do|send)\b"
    r"|\b1 (?:other |more )?(?:ranks|threads|groups|hosts|looks|helpers|connections|bytes|members)\b|\b1 times\b"
)
# The values of a field, where an arbitrary text or number would be wrong.
VALUES: dict[tuple[str, str], tuple[Any, ...]] = {
    ("Stopped", "by"): ("signal", "debugger", ""),
    ("KernelState", "state"): ("T", "t", "Z", "X"),
    ("CounterDiffers", "values"): (((3, "1"), (4, "0,2")),),
    ("ThreadRing", "back"): (0,),
    ("RingWait", "ranks"): ("0-2",),
    ("RanksMove", "moving"): (1,),
    ("ThreadsAtLocks", "count"): (2,),
    ("CallStalled", "members"): (4,),
    ("AllOnHost", "ranks"): ("0-2",),
    ("WholeGroup", "ranks"): ("0-2",),
    ("CutConnection", "near"): (ONE,),
    ("CutConnection", "far"): (None, ONE),
    ("LastCall", "rank"): (3,),
    ("BlockedIo", "verb"): ("reading",),
    ("BlockedIo", "peer"): ("", "process 7 (cat)"),
    ("MovesInCode", "share"): (0.97,),
    ("NeverLeaves", "share"): (0.97,),
    ("CallName", "peer"): (None, 3),
    ("WaitedObject", "kind"): ("Lock", "Queue", "Thread", "import lock", "Barrier", "Event"),
    ("WaitedObject", "state"): ("", "empty"),
    ("LinkCut", "pairs"): ((("n1", "n2"),), (("n1", "n3"), ("n2", "n3"))),
    ("ClocksDiffer", "offsets"): ((ClockOffset(host="n2", seconds=40.0),),),
    ("DifferentPlaces", "of"): ("rendezvous", "collectives", ""),
}
BY_NAME: dict[str, tuple[Any, ...]] = {
    "ranks": ("3", "0-2"),
    "waiter": ("3", "0-2"),
    "wanted_by": ("3", "0-2"),
    "absent": ("", "3", "0-2"),
    "unknown": ("", "3", "0-2"),
    "others": ("3", "0-2"),
    "inside": ("", "3", "0-2"),
    "unseen": ("3", "0-2"),
    "only": ("", "3"),
    "verb": ("entered",),
    "word": ("collective", "unknown"),
    "kind": ("named",),
    "state": ("D",),
}


# These need more than one rank.
MUTUAL = (PeersWait, RingWait)


def types_of(kind: type[Any]) -> list[type[Any]]:
    """Return the subclasses of a base, by name."""
    return sorted(kind.__subclasses__(), key=lambda one: one.__name__)


def examples(kind: type[Any]) -> Iterator[Any]:
    """Yield one example for each value of each field, with the first values of the others."""
    fields = {field.name: list(values(kind, field.name, field.type)) for field in msgspec.structs.fields(kind)}
    first = {name: some[0] for name, some in fields.items()}
    made = [kind(**first)]
    for name, some in fields.items():
        made += [kind(**{**first, name: value}) for value in some[1:]]
    yield from made


def values(owner: type[Any], name: str, kind: Any) -> Iterator[Any]:
    known = VALUES.get((owner.__name__, name)) or (BY_NAME.get(name) if kind is str else None)
    if known is not None:
        yield from known
        return
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        for part in typing.get_args(kind):
            yield from values(owner, name, part)
    elif kind is type(None):
        yield None
    elif origin is tuple:
        inner = typing.get_args(kind)
        if inner[-1] is Ellipsis:
            every = list(values(owner, name, inner[0]))
            yield (every[0],)
            yield (every[0], every[-1])
        else:
            yield tuple(next(values(owner, name, part)) for part in inner)
    elif isinstance(kind, type) and issubclass(kind, Cause) and kind is Cause:
        yield Stopped(by="signal")
    elif isinstance(kind, type) and issubclass(kind, Fact) and kind is Fact:
        yield KernelState(pid=7, state="T")
    elif kind is Where:
        yield Where("load_batch", "/home/me/data.py", 88)
    elif kind is Subject:
        yield ONE
        yield MANY
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from examples(kind)
    elif kind is bool:
        yield False
        yield True
    elif kind is int:
        yield 1
        yield 2
    elif kind is float:
        yield 94.0
    elif kind is str:
        yield f"<{name}>"
    else:
        raise AssertionError(f"{owner.__name__}.{name}: no example of {kind}")


def everything() -> Iterator[str]:
    """Yield every sentence, one per line, under the name of its type."""
    for kind in types_of(Cause):
        yield f"# {kind.__name__}"
        for subject in (MANY,) if kind in MUTUAL else (ONE, MANY):
            yield from dict.fromkeys(cause_text(cause, subject) for cause in examples(kind))
    for kind in types_of(Fact):
        yield f"# {kind.__name__}"
        yield from dict.fromkeys(fact_text(fact) for fact in examples(kind))


def test_every_cause_and_fact_has_words() -> None:
    assert finding_wording.AREAS
    without = [kind.__name__ for kind in types_of(Cause) if cause_text.dispatch(kind) is cause_text.dispatch(object)]
    without += [kind.__name__ for kind in types_of(Fact) if fact_text.dispatch(kind) is fact_text.dispatch(object)]
    actions = action_wording.action_text
    without += [kind.__name__ for kind in types_of(Action) if actions.dispatch(kind) is actions.dispatch(object)]
    assert not without


def test_the_sentences_are_those_that_were_read() -> None:
    """All sentences are in tests/data/wording.txt. After a change, write it again with ``python
    tests/unit/test_wording.py`` and read the diff."""
    assert "\n".join(everything()) + "\n" == SAID.read_text()


def test_verbs_have_the_number_of_their_ranks() -> None:
    assert [line for line in everything() if WRONG.search(line)] == []


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (True, "ranks 0-2 is stopped"),
        (True, "rank 3 (n1, pid 7) have ended"),
        (True, "and 1 more ranks wait"),
        (False, "rank 3 is here, ranks 0-2 are not"),
    ],
)
def test_the_pattern_finds_wrong_numbers(wrong: bool, text: str) -> None:
    assert bool(WRONG.search(text)) == wrong


def strings_of(keyword: str) -> set[str]:
    """Return every string constant that the sources of ``explain`` pass for an argument of this name."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == keyword:
                found |= {one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
    return {one for one in found if isinstance(one, str)}


def test_every_ground_has_words() -> None:
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    unused = [ground for ground in ground_wording.GROUNDS if f'"{ground}"' not in text]
    assert not unused
    conditions = {"exited", ""}  # constants in the conditions of conditional expressions
    assert strings_of("grounds") - set(ground_wording.GROUNDS) <= conditions


def test_every_advice_has_words() -> None:
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert not [advice for advice in action_wording.ADVICE if f'"{advice}"' not in text]
    advised = set(re.findall(r'Advise\(\s*what="([^"]+)"', text))
    assert advised and advised <= set(action_wording.ADVICE)


def test_who_waits() -> None:
    at = WaitPlace(call=value_wording.CallName(operation="barrier"))
    assert value_wording.held_up(HeldUp(ranks="0"), 1) == "rank 0 waits for it"
    assert value_wording.held_up(HeldUp(ranks="0-1"), 2) == "ranks 0-1 wait for them"
    assert value_wording.held_up(HeldUp(ranks="0-3", through=2, groups=1), 1).endswith(
        ", 2 of them through 1 other group"
    )
    assert value_wording.held_up(HeldUp(ranks="0-3", through=2, groups=1, at=at), 1).endswith(
        ", 2 of them through 1 other group, others in barrier"
    )
    assert value_wording.held_up(HeldUp(ranks="0", mutual=True, at=at), 1) == "rank 0 waits in barrier"


def test_every_activity_has_words() -> None:
    assert value_wording.PHRASES.keys() == ACTIVITIES


def test_what_a_thread_does() -> None:
    assert value_wording.doing_for(Doing(word="sleep", left=40.0)) == "sleeping for another 40 s"
    assert value_wording.doing_for(Doing(word="compute", stands=12.0)) == "computing (for 12 s)"
    assert value_wording.activity(Doing(word="file-lock")) == "waiting for a lock file"


if __name__ == "__main__":
    SAID.write_text("\n".join(everything()) + "\n")
