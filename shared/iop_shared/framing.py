"""Frames in a byte stream: u32 big-endian length, then that many bytes. No IO, split anywhere. Pure.

A length over the limit is refused from the four bytes alone, before anything is kept for it. What is no
link at all shows in the same place: the first four letters of an HTTP request or a text read as a length
are a number of hundreds of millions.
"""

import struct
from typing import Final

from iop_shared.errors import ProtocolError
from iop_shared.link.messages import HANDSHAKE_MAX_FRAME_BYTES

PREFIX_BYTES: Final = 4
_FIRST_BYTES_KEPT: Final = 64

_unpack_size: Final = struct.Struct(">I").unpack_from


class FrameDecoder:
    """Splits what comes into frames. Keeps at most one frame, so at most `max_frame_bytes` + 4 bytes."""

    def __init__(self, max_frame_bytes: int = HANDSHAKE_MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        """May be changed at any time; holds for every length that is read from then on."""
        self.error: ProtocolError | None = None
        """Set once the stream cannot be followed any more; nothing is decoded after it."""
        self.frames = 0
        # The beginning of a frame that is not complete. One buffer, not a list of pieces: a peer that sends
        # byte by byte would make a list many times the frame's size.
        self._partial = bytearray()
        self._need = PREFIX_BYTES

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the frames that `data` completes, without their prefixes. Look at `error` after it.

        Frames that stand before the one at fault are returned all the same.
        """
        if self.error is not None:
            return []
        partial = self._partial
        if partial:
            if len(partial) + len(data) < self._need:
                partial += data
                return []
            data = b"".join((partial, data))
            partial.clear()
        return self._split(data)

    def finish(self) -> ProtocolError | None:
        """Returns what is wrong with the stream ending here: None at the border between two frames."""
        have = len(self._partial)
        if self.error is not None or not have:
            return self.error
        if not self.frames and _classify_text(self._partial) is not None:
            return _not_iop(self._partial)
        if have < PREFIX_BYTES:
            message = f"the stream ended after {have} of the {PREFIX_BYTES} bytes of a frame's length"
        else:
            size = self._need - PREFIX_BYTES
            message = f"the stream ended after {have - PREFIX_BYTES} of the {size} bytes of a frame"
        return ProtocolError(message, code="frame_truncated")

    def _split(self, data: bytes) -> list[bytes]:
        frames: list[bytes] = []
        start, end = 0, len(data)
        limit = self.max_frame_bytes
        need = PREFIX_BYTES
        while end - start >= PREFIX_BYTES:
            body = start + PREFIX_BYTES
            size: int = _unpack_size(data, start)[0]
            if size > limit:
                self.error = self._describe_oversize(size, data[start : start + _FIRST_BYTES_KEPT], len(frames))
                self.frames += len(frames)
                return frames
            stop = body + size
            if stop > end:
                need = PREFIX_BYTES + size
                break
            frames.append(data[body:stop])
            start = stop
        if start < end:
            self._partial += data[start:] if start else data
            self._need = need
        self.frames += len(frames)
        return frames

    def _describe_oversize(self, size: int, begin: bytes, frames_before: int) -> ProtocolError:
        if not self.frames and not frames_before and classify_noise(begin) != UNKNOWN_NOISE:
            return _not_iop(begin)
        return ProtocolError(
            f"a frame of {size} bytes exceeds max_frame_bytes={self.max_frame_bytes}; closing the link",
            code="frame_too_large",
        )


def encode_prefix(size: int) -> bytes:
    """Returns the length prefix of a frame of `size` bytes."""
    return size.to_bytes(PREFIX_BYTES, "big")


def encode_frame(payload: bytes) -> bytes:
    """Returns `payload` with its length before it."""
    return len(payload).to_bytes(PREFIX_BYTES, "big") + payload


# --- what is no link ------------------------------------------------------------------------------------

UNKNOWN_NOISE: Final = "binary noise"
_METHODS: Final = (b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT", b"TRACE", b"PRI")
_STARTS: Final[tuple[tuple[bytes, str], ...]] = (
    *((method + b" ", "an HTTP request") for method in _METHODS),
    (b"HTTP/", "an HTTP response"),
    (b"SSH-", "an SSH banner"),
)
_ADVICE: Final = {
    "an HTTP request": "HTTP clients belong on the [http] port",
    "an HTTP response": "that is an HTTP server; dial the edge's [link] port",
    "a TLS client hello": "this port speaks plain TCP; dial it without TLS",
    "an SSH banner": "that is an SSH server; dial the edge's [link] port",
    "text": "only iop nodes and edges speak on a link port",
}


def classify_noise(first_bytes: bytes | bytearray) -> str:
    """Returns what a stream is that begins with `first_bytes` and is no link: a phrase for a log line.

    One of "an HTTP request", "an HTTP response", "a TLS client hello", "an SSH banner", "text" and
    `UNKNOWN_NOISE`. Four bytes are enough for most; fewer than two are never told apart from noise.
    """
    # RFC 8446, section 5.1: a handshake record (22), whose legacy version begins with 3.
    if first_bytes[:2] == b"\x16\x03":
        return "a TLS client hello"
    return _classify_text(first_bytes) or UNKNOWN_NOISE


def _classify_text(first_bytes: bytes | bytearray) -> str | None:
    if len(first_bytes) < 2:
        return None
    for start, what in _STARTS:
        if first_bytes.startswith(start) or (len(first_bytes) >= PREFIX_BYTES and start.startswith(first_bytes)):
            return what
    is_text = all(0x20 <= byte < 0x7F or byte in b"\r\n\t" for byte in first_bytes[:_FIRST_BYTES_KEPT])
    return "text" if is_text else None


def _not_iop(first_bytes: bytes | bytearray) -> ProtocolError:
    what = classify_noise(first_bytes)
    return ProtocolError(f"this is {what}, not an iop link: {_ADVICE[what]}", code="not_iop")
