"""Two lanes, their bounds and their order."""

from hypothesis import given
from hypothesis import strategies as st

from iop_shared.aio.write_queue import FLUSH_DATA_BYTES, WriteQueue
from iop_shared.framing import encode_prefix


def frame(payload: bytes) -> tuple[bytes, bytes]:
    return encode_prefix(len(payload)), payload


def test_control_is_taken_before_data() -> None:
    queue = WriteQueue()
    queue.add_data(*frame(b"data"))
    queue.add_control(*frame(b"control"))

    assert queue.take() == b"".join(frame(b"control") + frame(b"data"))
    assert queue.is_empty
    assert queue.take() == b""


def test_paused_queue_gives_control_alone() -> None:
    queue = WriteQueue()
    queue.paused = True
    queue.add_data(*frame(b"data"))
    queue.add_control(*frame(b"control"))

    assert queue.take() == b"".join(frame(b"control"))
    assert queue.data_bytes == 8
    queue.paused = False
    assert queue.take() == b"".join(frame(b"data"))


def test_over_the_bound_nothing_is_queued_and_both_numbers_are_told() -> None:
    queue = WriteQueue(max_control_bytes=20, max_data_bytes=30)
    assert queue.add_control(*frame(b"x" * 16)) is None
    assert queue.add_data(*frame(b"x" * 26)) is None

    assert queue.add_control(*frame(b"")) == (
        "20 bytes of control frames wait to be written, limit 20: the peer does not read"
    )
    assert queue.add_data(*frame(b"")) == "30 bytes of data wait to be written, limit 30"
    assert (queue.control_bytes, queue.data_bytes) == (20, 30)


def test_last_frame_comes_after_everything_and_always_fits() -> None:
    queue = WriteQueue(max_data_bytes=8)
    queue.add_data(*frame(b"data"))
    queue.add_last(*frame(b"bye"))
    queue.add_control(*frame(b"ctl"))

    assert queue.take() == b"".join(frame(b"ctl") + frame(b"data") + frame(b"bye"))


def test_dropped_data_leaves_control() -> None:
    queue = WriteQueue()
    queue.add_data(*frame(b"data"))
    queue.add_control(*frame(b"ctl"))
    queue.drop_data()
    queue.add_last(*frame(b"bye"))

    assert queue.take() == b"".join(frame(b"ctl") + frame(b"bye"))


@given(
    sizes=st.lists(st.integers(0, FLUSH_DATA_BYTES // 2), max_size=30),
    takes=st.lists(st.booleans(), max_size=30),
)
def test_large_data_comes_out_in_bounded_pieces_whole_and_in_order(sizes: list[int], takes: list[bool]) -> None:
    queue = WriteQueue()
    expected = bytearray()
    out = bytearray()
    for number, size in enumerate(sizes):
        payload = bytes([number]) * size
        expected += b"".join(frame(payload))
        assert queue.add_data(*frame(payload)) is None
        if number < len(takes) and takes[number]:
            out += queue.take()
    while not queue.is_empty:
        piece = queue.take()
        assert len(piece) <= FLUSH_DATA_BYTES + FLUSH_DATA_BYTES // 2 + 4
        out += piece

    assert out == expected
    assert (queue.control_bytes, queue.data_bytes) == (0, 0)
