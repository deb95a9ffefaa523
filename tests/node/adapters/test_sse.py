"""The event-stream parser: what is an event, wherever the bytes are split."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import captures

from iop_node.adapters.sse import EventTooLarge, SseParser

WITHOUT_DONE = {
    "llama-server/messages_stream.sse",
    "llama-server/stream_sigkill.sse",
    "llama-server/stream_sigterm.sse",
    "vllm/messages_stream.sse",
}


def parse(*pieces: bytes, max_event_bytes: int = 512 * 1024) -> tuple[list[bytes], bool, int]:
    """Returns the events, whether [DONE] came, and the bytes of a cut-off event."""
    parser = SseParser(max_event_bytes)
    events = [event for piece in pieces for event in parser.feed(piece)]
    parser.finish()
    return events, parser.done, parser.rest_bytes


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: \xef\xbb\xbfa\n\n", [b"\xef\xbb\xbfa"]),
        (b": comment\n\ndata: a\n\n", [b"a"]),
        (b": comment\ndata: a\n: another\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b"data:\ndata:\n\n", [b"\n"]),
        (b"event: message\ndata: a\nid: 7\nretry: 10\n\n", [b"a"]),
        (b"event: nothing\n\ndata: a\n\n", [b"a"]),
        (b"database: x\n\ndata: a\n\n", [b"a"]),
        (b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"", []),
    ],
)
def test_events_are_the_same_wherever_the_stream_is_split(stream: bytes, events: list[bytes]) -> None:
    assert parse(stream) == (events, False, 0)
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == (events, False, 0)
    for at in range(len(stream)):
        assert parse(stream[:at], stream[at:]) == (events, False, 0)
        assert parse(stream[:at], b"", stream[at:]) == (events, False, 0)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_done_is_told_apart_and_what_follows_it_is_read_over(line_end: bytes) -> None:
    stream = b"data: a\n\ndata: [DONE]\n\ndata: late\n\n".replace(b"\n", line_end)

    for at in range(len(stream)):
        assert parse(stream[:at], stream[at:]) == ([b"a"], True, 0)


@pytest.mark.parametrize("tail", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r\n", b"data:[DONE]\r"])
def test_a_last_done_may_lack_its_empty_line(tail: bytes) -> None:
    assert parse(b"data: a\n\n" + tail) == ([b"a"], True, 0)


@pytest.mark.parametrize("tail", [b"data: {", b"data: {}", b"data: {}\n", b"d", b": comment", b"data: [DONE"])
def test_an_event_that_was_cut_off_is_no_event_and_is_counted(tail: bytes) -> None:
    events, done, rest_bytes = parse(b"data: a\n\n" + tail)

    assert (events, done) == ([b"a"], False)
    assert rest_bytes == len(tail.rstrip(b"\n"))


def test_an_event_over_the_limit_is_refused_whether_it_has_ended_or_not() -> None:
    assert parse(b"data: " + b"x" * 94 + b"\n\n", max_event_bytes=100)[0] == [b"x" * 94]
    sentence = "an event of 101 bytes or more exceeds max_event_bytes=100"
    with pytest.raises(EventTooLarge, match=f"^{sentence}$"):
        parse(b"data: " + b"x" * 95, max_event_bytes=100)
    with pytest.raises(EventTooLarge, match=f"^{sentence}$"):
        parse(b"data: " + b"x" * 101 + b"\n\n", max_event_bytes=100)
    with pytest.raises(EventTooLarge, match=f"^{sentence}$"):
        parse(*[b"x"] * 101, max_event_bytes=100)
    # Many events in one read may be more than one event may be.
    assert len(parse(b"data: 12345\n\n" * 100, max_event_bytes=100)[0]) == 100


lines = st.one_of(
    st.binary(max_size=20).map(lambda text: b"data: " + text.translate(None, b"\r\n")),
    st.sampled_from([b"data:", b"data", b": ping", b"event: x", b"id: 1", b"data: [DONE", b"data: \xc3\xa9"]),
)


@given(
    st.lists(st.lists(lines, min_size=1, max_size=3), max_size=6),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.booleans(),
    st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=5),
)
def test_any_stream_split_anyhow_gives_the_same_events(
    blocks: list[list[bytes]], line_end: bytes, bom: bool, sizes: list[int]
) -> None:
    stream = b"\xef\xbb\xbf" * bom + b"".join(line_end.join(block) + line_end * 2 for block in blocks)
    pieces = []
    at = turn = 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        pieces.append(stream[at : at + size])
        at, turn = at + size, turn + 1

    assert parse(*pieces) == parse(stream)
    expected = []
    for block in blocks:
        data = [line[5:].removeprefix(b" ") for line in block if line.partition(b":")[0] == b"data"]
        if data:
            expected.append(b"\n".join(data))
    assert parse(stream)[0] == expected


@pytest.mark.parametrize("name", captures.names("*/*.sse"))
def test_captured_streams_split_at_every_position(name: str) -> None:
    body = captures.load(name).body
    expected = parse(body)

    assert len(expected[0]) > 3
    assert (
        expected[1] is ("kill" not in name and "sigterm" not in name and "messages" not in name) or "vllm" in name
    )
    assert parse(*(body[i : i + 1] for i in range(len(body)))) == expected
    for at in range(len(body)):
        assert parse(body[:at], body[at:]) == expected
    chance = random.Random(name)
    for _ in range(100):
        cuts = sorted(chance.sample(range(len(body)), chance.randrange(2, 40)))
        assert parse(*(body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True))) == expected
