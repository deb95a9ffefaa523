"""The checker of the bench: it must notice every way in which a relay can harm a stream."""

import pytest
from bench.engine import TOKEN_TEXT
from bench.token_check import TokenCheck, percentile


def event(number: int, sent_ns: int = 1_000) -> bytes:
    return f'data: {{"choices":[{{"delta":{{"content":"{TOKEN_TEXT % (number, sent_ns)}"}}}}]}}\n\n'.encode()


DONE = b"data: [DONE]\n\n"


def check(data: bytes, expected: int = 3, size: int = 1_000_000) -> TokenCheck:
    found = TokenCheck("stream 1", expected, streamed=True)
    for start in range(0, len(data), size):
        found.feed(data[start : start + size], 5_000)
    found.finish(9_000)
    return found


@pytest.mark.parametrize("size", [1, 7, 50, 1_000_000])
def test_whole_stream_is_right_however_it_is_cut(size: int) -> None:
    found = check(event(0) + event(1) + event(2) + DONE, size=size)

    assert found.problems == []
    assert found.seen == 3
    assert found.latencies_ns == [4_000, 4_000, 4_000]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (event(0) + event(2) + DONE, "stream 1: token 2 came where 1 was due"),
        (event(0) + event(1) + DONE, "stream 1: 2 of 3 tokens arrived"),
        (event(0) + event(0) + event(1) + event(2) + DONE, "stream 1: token 0 came where 1 was due"),
        (event(1) + event(0) + event(2) + DONE, "stream 1: token 1 came where 0 was due"),
        (event(0) + event(1) + event(2), "stream 1: the stream ended without [DONE]"),
        (b"", "stream 1: 0 of 3 tokens arrived"),
    ],
)
def test_harmed_stream_is_noticed(data: bytes, problem: str) -> None:
    assert problem in check(data).problems


def test_plain_answer_is_read_when_it_is_whole() -> None:
    answer = b'{"choices":[{"message":{"content":"' + b"".join(
        (TOKEN_TEXT % (number, 1_000)).encode() for number in range(3)
    )
    found = TokenCheck("request", 3, streamed=False)

    found.feed(answer[:50], 4_000)
    found.feed(answer[50:], 5_000)
    found.finish(6_000)

    assert found.problems == []
    assert found.latencies_ns == [5_000, 5_000, 5_000]


def test_percentile_takes_a_value_that_was_there() -> None:
    assert percentile([30, 10, 20], 0.5) == 20
    assert percentile([30, 10, 20], 0.99) == 30
    assert percentile([], 0.5) is None
