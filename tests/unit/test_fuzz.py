"""Broken files and messages are read or refused with a remedy, and nothing else. `scripts/fuzz` tries many more."""

from __future__ import annotations

import json
import random
import sys
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import readers

# A real process hears what it is told: tests/process/test_fuzz_rank.py
PURE = [name for name in readers.READERS if name != "rank-hears"]
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


# TOML is read from 3.11 on; before, the refusal says so.
READ = [name for name in PURE if sys.version_info >= (3, 11) or name not in ("config", "meanings")]


@pytest.mark.parametrize("name", READ)
def test_what_is_whole_is_read(name: str) -> None:
    assert "read" in {readers.tried(name, data) for data in readers.READERS[name].seeds()}


@pytest.mark.parametrize("name", PURE)
@QUICK
@given(chance=st.randoms(use_true_random=False))
def test_what_was_changed_is_read_or_refused(name: str, chance: random.Random) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a regular expression of --meanings
        readers.tried(name, readers.varied(name, chance))


@pytest.mark.parametrize("name", PURE)
@QUICK
@given(data=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(name: str, data: bytes) -> None:
    readers.tried(name, data)


@pytest.mark.parametrize("data", [b'{"entries": [\xff]}', b'{"version": "2.10", "entries": [{"\xe9": 1}]}'])
def test_json_that_is_not_utf8(data: bytes) -> None:
    assert readers.tried("dump-json", data) == "refused"


@pytest.mark.parametrize("created", [2**63 - 1, 2**64, 10**30, -(2**40)])
def test_a_call_at_a_time_that_no_calendar_has(created: int) -> None:
    top = json.loads(readers.READERS["dump-json"].seeds()[0])
    for entry in top["entries"]:
        entry["time_created_ns"] = created
    assert readers.tried("dump-json", json.dumps(top).encode()) == "read"


def test_a_pickle_that_asks_for_gigabytes() -> None:
    """Two bytes of it name a place in a table of 34 GB."""
    from breakranks.observe.recorder.safe_unpickle import DumpError, decode

    with pytest.raises(DumpError, match="more memory"):
        decode(b"\x80\x02}r\xff\xff\xff\xff.")


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"event": "hello", "rank": 1, "world": 1000000000000000000000000000000}',
        b'{"event": "hello", "rank": 1, "state": "stopped", "since": "{}"}',
        b'{"event": "hello", "rank": 1, "state": "stopped", "since": 1' + b"0" * 400 + b"}",
        b'{"event": "hello", "rank": 1, "state": "stopped", "role": []}',
        b'{"event": "hello", "rank": [], "state": "stopped"}',
        b'{"event": "state", "turn": "x"}',
        b'{"event": "hello", "rank": 1, "state": "stopped", "where": {"line": []}}',
        b'{"event": "answer", "id": 1, "cut": "x"}',
    ],
)
def test_an_agent_that_does_not_keep_to_the_protocol_is_hung_up_on(line: bytes) -> None:
    assert readers.tried("rank-says", line + b"\n") == "refused"
