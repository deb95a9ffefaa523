"""Frames split anywhere, limits before memory, and what is no link."""

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_shared.errors import ProtocolError
from iop_shared.framing import UNKNOWN_NOISE, FrameDecoder, classify_noise, encode_frame, encode_prefix

frames = st.lists(st.binary(max_size=60), max_size=8)


def feed_in_pieces(decoder: FrameDecoder, stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(c % (len(stream) + 1) for c in cuts), len(stream)]
    out: list[bytes] = []
    for start, stop in itertools.pairwise(edges):
        out += decoder.feed(stream[start:stop])
    return out


@given(sent=frames, cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_come_back_wherever_the_stream_is_split(sent: list[bytes], cuts: list[int]) -> None:
    decoder = FrameDecoder(64)

    out = feed_in_pieces(decoder, b"".join(map(encode_frame, sent)), cuts)

    assert out == sent
    assert decoder.frames == len(sent)
    assert decoder.finish() is None


@given(sent=st.lists(st.binary(max_size=20), max_size=3), cut=st.integers(1, 30))
def test_stream_that_ends_within_a_frame_says_so(sent: list[bytes], cut: int) -> None:
    last = encode_frame(b"\x00" * 26)
    decoder = FrameDecoder(64)
    decoder.feed(b"".join(map(encode_frame, sent)) + last[: min(cut, len(last) - 1)])

    error = decoder.finish()

    assert error is not None
    assert error.code == "frame_truncated"


def test_byte_by_byte() -> None:
    decoder = FrameDecoder(64)
    stream = encode_frame(b"one") + encode_frame(b"") + encode_frame(b"three")

    assert [f for b in stream for f in decoder.feed(bytes([b]))] == [b"one", b"", b"three"]


def test_limit_holds_exactly_and_can_be_raised() -> None:
    decoder = FrameDecoder(10)
    assert decoder.feed(encode_frame(b"x" * 10)) == [b"x" * 10]

    decoder.max_frame_bytes = 11
    assert decoder.feed(encode_frame(b"x" * 11)) == [b"x" * 11]
    assert decoder.error is None

    assert decoder.feed(encode_frame(b"x" * 12)) == []
    assert str(decoder.error) == "a frame of 12 bytes exceeds max_frame_bytes=11; closing the link"
    assert decoder.error is not None
    assert decoder.error.code == "frame_too_large"


def test_frames_before_the_one_at_fault_are_returned_and_none_after() -> None:
    decoder = FrameDecoder(10)

    assert decoder.feed(encode_frame(b"good") + encode_prefix(11)) == [b"good"]
    assert decoder.error is not None
    assert decoder.feed(encode_frame(b"late")) == []
    assert decoder.finish() is decoder.error


def test_nothing_is_kept_for_a_length_over_the_limit() -> None:
    decoder = FrameDecoder(16 * 1024)
    tracemalloc.start()
    try:
        decoder.feed(encode_prefix(1 << 30))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert decoder.error is not None
    assert peak < 10_000


def test_trickle_keeps_no_more_than_the_frame() -> None:
    decoder = FrameDecoder(1 << 20)
    decoder.feed(encode_prefix(200_000))
    piece = b"x"
    tracemalloc.start()
    try:
        for _ in range(100_000):
            decoder.feed(piece)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 2 * 100_000


@pytest.mark.parametrize(
    ("begin", "sentence"),
    [
        (b"\x00\x00", "the stream ended after 2 of the 4 bytes of a frame's length"),
        (b"\x00\x00\x00\x09abcd", "the stream ended after 4 of the 9 bytes of a frame"),
    ],
)
def test_truncated_stream_names_both_numbers(begin: bytes, sentence: str) -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(b"whole") + begin)

    error = decoder.finish()

    assert isinstance(error, ProtocolError)
    assert (str(error), error.code) == (sentence, "frame_truncated")


NOISE = [
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "an HTTP request", "HTTP clients belong on the [http] port"),
    (b"POST /v1/chat/completions HTTP/1.1\r\n", "an HTTP request", "HTTP clients belong on the [http] port"),
    (b"HTTP/1.1 400 Bad Request\r\n", "an HTTP response", "that is an HTTP server; dial the edge's [link] port"),
    (b"\x16\x03\x01\x02\x00\x01\x00", "a TLS client hello", "this port speaks plain TCP; dial it without TLS"),
    (b"SSH-2.0-OpenSSH_9.6\r\n", "an SSH banner", "that is an SSH server; dial the edge's [link] port"),
    (b"hello?\r\n", "text", "only iop nodes and edges speak on a link port"),
]


@pytest.mark.parametrize(("begin", "what", "advice"), NOISE)
def test_what_is_no_link_is_named(begin: bytes, what: str, advice: str) -> None:
    decoder = FrameDecoder()

    assert decoder.feed(begin) == []

    assert decoder.error is not None
    assert (str(decoder.error), decoder.error.code) == (f"this is {what}, not an iop link: {advice}", "not_iop")
    assert classify_noise(begin) == what


def test_binary_noise_is_a_frame_over_the_limit() -> None:
    decoder = FrameDecoder()
    decoder.feed(b"\x80\x81\x82\x83\x84")

    assert classify_noise(b"\x80\x81\x82\x83\x84") == UNKNOWN_NOISE
    assert str(decoder.error) == "a frame of 2155971203 bytes exceeds max_frame_bytes=16384; closing the link"


def test_text_too_short_for_a_length_is_named_at_its_end() -> None:
    decoder = FrameDecoder()
    decoder.feed(b"hi\n")

    assert str(decoder.finish()) == "this is text, not an iop link: only iop nodes and edges speak on a link port"


def test_text_after_a_frame_is_no_other_protocol() -> None:
    decoder = FrameDecoder()

    assert decoder.feed(encode_frame(b"x") + b"GET / HTTP/1.1\r\n") == [b"x"]
    assert decoder.error is not None
    assert decoder.error.code == "frame_too_large"
