"""Messages as lines: whatever is between two hosts, they arrive complete or are dropped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.hosts.framing import ALL, FILE, MESSAGE, STAGE, FramedMessage, FrameReader, FrameWriter

NONCE = "0123456789abcdef"
bodies = st.binary(min_size=0, max_size=5000)


def read(data: bytes, reader: FrameReader | None = None) -> list[FramedMessage]:
    return list((reader or FrameReader(NONCE)).feed(data))


@given(st.lists(st.tuples(st.sampled_from([STAGE, MESSAGE, FILE]), bodies), max_size=5), st.integers(1, 700), st.data())
def test_messages_arrive_however_the_stream_is_cut(
    messages: list[tuple[bytes, bytes]], piece: int, data: st.DataObject
) -> None:
    writer = FrameWriter(NONCE, piece)
    whole = b"".join(writer.lines("n1", kind, body) for kind, body in messages)
    reader = FrameReader(NONCE)
    found: list[FramedMessage] = []
    at = 0
    while at < len(whole):
        step = data.draw(st.integers(1, len(whole) - at))
        found += reader.feed(whole[at : at + step])
        at += step
    assert found == [FramedMessage("n1", kind, body) for kind, body in messages]
    assert (reader.broken, reader.strays) == (0, b"")


def test_lines_are_as_short_as_asked_for() -> None:
    lines = FrameWriter(NONCE, 600).lines("a-host-with-a-long-name.cluster.example.org", FILE, bytes(range(256)) * 100)
    assert all(len(line) < 900 for line in lines.splitlines())
    assert len(lines.splitlines()) > 40


def test_a_banner_is_not_a_message() -> None:
    lines = FrameWriter(NONCE, 100).lines("n1", STAGE, b"x" * 300)
    reader = FrameReader(NONCE)
    first, rest = lines.split(b"\n", 1)
    found = read(b"Welcome to n1\nYou have mail. " + first + b"\r\nmotd @br1 is no line\n" + rest, reader)
    assert found == [FramedMessage("n1", STAGE, b"x" * 300)]
    assert reader.strays == b"Welcome to n1\nYou have mail. motd @br1 is no line\n"


def test_many_hosts_share_a_stream() -> None:
    one = FrameWriter(NONCE, 10).lines("n1", FILE, b"a" * 40).splitlines(keepends=True)
    two = FrameWriter(NONCE, 10).lines("n2", FILE, b"b" * 40).splitlines(keepends=True)
    mixed = b"".join(line for pair in zip(one, two, strict=True) for line in pair)
    assert read(mixed) == [FramedMessage("n1", FILE, b"a" * 40), FramedMessage("n2", FILE, b"b" * 40)]


def test_lines_of_another_run_are_not_messages() -> None:
    reader = FrameReader(NONCE)
    assert read(FrameWriter("fedcba9876543210", 100).lines(ALL, STAGE, b"{}"), reader) == []
    assert reader.strays.startswith(b"@br1 fedcba")


def test_a_lost_piece_loses_its_message_alone() -> None:
    writer = FrameWriter(NONCE, 10)
    first = writer.lines("n1", FILE, b"a" * 40).splitlines(keepends=True)
    reader = FrameReader(NONCE)
    assert read(b"".join(first[:-1]) + writer.lines("n1", FILE, b"b"), reader) == [FramedMessage("n1", FILE, b"b")]
    assert reader.broken == 1


@pytest.mark.parametrize(
    "line",
    [
        b"@br1 0123456789abcdef n1 0 . " + b"eg==",  # packed, and empty
        b"@br1 0123456789abcdef n1 0 . " + b"eno=",  # packed, and not zlib
        b"@br1 0123456789abcdef n1 0 . a",  # not base64
        b"@br1 0123456789abcdef n1 0 . ",
        b"@br1 0123456789abcdef n1 99999999999999999999 . eg==",
        b"@br1 0123456789abcdef n1",
        b"\xff" * 100,
    ],
)
def test_rubbish_is_dropped(line: bytes) -> None:
    assert read(line + b"\n") == []


def test_a_bomb_is_not_unpacked() -> None:
    import zlib

    from breakranks.hosts import framing

    packer = zlib.compressobj(9)
    bomb = (
        b"".join(packer.compress(bytes(1 << 20)) for _ in range((framing.MAX_MESSAGE_BYTES >> 20) + 2)) + packer.flush()
    )
    reader = FrameReader(NONCE)
    assert read(FrameWriter(NONCE, 48_000).lines("n1", framing.PACKED, bomb), reader) == []
    assert reader.broken == 1


@given(st.binary(max_size=2000))
def test_no_input_raises(data: bytes) -> None:
    read(data + b"\n")


def test_a_line_without_end_is_not_kept() -> None:
    reader = FrameReader(NONCE)
    for _ in range(100):
        read(b"x" * 100_000, reader)
    assert len(reader.strays) <= 8_000
    assert len(reader._rest) <= 1 << 21
