import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_shared.client.sse import MAX_EVENT_BYTES, EventReader, ServerEvent, StreamBroken

STREAM = (
    b': waiting\n\nid: 1.1\nevent: text\ndata: {"text": "a\xe2\x80\xa8b"}\n\n'
    b"data:one\r\ndata: two\r\n\r\nevent: lone\n\nid: 9\rdata: last\r\rdata: never ended"
)
EVENTS = [
    ServerEvent("text", b'{"text": "a\xe2\x80\xa8b"}', "1.1"),
    ServerEvent("", b"one\ntwo", "1.1"),
    ServerEvent("", b"last", "9"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    places = sorted({0, len(STREAM), *cuts})
    reader = EventReader()

    found = [event for start, end in itertools.pairwise(places) for event in reader.feed(STREAM[start:end])]

    assert found == EVENTS


def test_events_come_byte_by_byte_too() -> None:
    reader = EventReader()

    assert [event for i in range(len(STREAM)) for event in reader.feed(STREAM[i : i + 1])] == EVENTS


def test_an_endless_line_is_refused() -> None:
    reader = EventReader()
    list(reader.feed(b"data: "))

    with pytest.raises(StreamBroken, match=f"^an event is larger than {MAX_EVENT_BYTES} bytes$"):
        list(reader.feed(bytes(MAX_EVENT_BYTES)))
