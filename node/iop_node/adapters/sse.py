"""Server-sent events: bytes in, the data of whole events out. Pure; knows no engine and no JSON.

Follows the event-stream format of the HTML Living Standard (section 9.2.6): LF, CRLF and CR end a line, a
leading byte order mark is dropped, several `data` lines join with LF, comments and other fields are read
over. The stream may be split anywhere. `[DONE]`, which OpenAI-shaped engines put at the end, is told apart.
"""

from typing import Final

MAX_EVENT_BYTES: Final = 512 * 1024
"""One event has to fit into one frame of the link (1 MiB) with room to spare. Tokens take 200 to 2,000 bytes."""
DONE: Final = b"[DONE]"
_BOM: Final = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """An event grew over the limit before it ended. `str()` names both sizes."""

    def __init__(self, event_bytes: int, max_event_bytes: int) -> None:
        super().__init__(f"an event of {event_bytes} bytes or more exceeds max_event_bytes={max_event_bytes}")
        self.event_bytes, self.max_event_bytes = event_bytes, max_event_bytes


class SseParser:
    """One event stream in progress. `feed` it what arrives, then call `finish` when the body has ended.

    Holds at most one unfinished event of `max_event_bytes`.
    """

    __slots__ = ("_after_cr", "_at_start", "_done", "_max_event_bytes", "_rest")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._rest = bytearray()  # the unfinished event, lines ended by LF
        self._at_start = True
        self._after_cr = False  # the last byte was CR: a LF that follows belongs to it
        self._done = False
        self._max_event_bytes = max_event_bytes

    @property
    def done(self) -> bool:
        """Whether `[DONE]` has come. What follows it is read over."""
        return self._done

    @property
    def rest_bytes(self) -> int:
        """Size of the unfinished event."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the data of each event that `data` completes, in order, without `[DONE]`.

        Raises:
            EventTooLarge: an event is over `max_event_bytes`; the parser is of no further use.
        """
        if self._at_start or self._after_cr or b"\r" in data:
            data = self._plain_lines(data)
        rest = self._rest
        if not rest:
            end = data.rfind(b"\n\n")
            if end < 0:
                rest += data
                self._check_size(len(rest))
                return []
            whole = data[:end]
            if end + 2 != len(data):
                rest += data[end + 2 :]
        else:
            seam = len(rest) - 1
            rest += data
            end = rest.rfind(b"\n\n", seam)
            if end < 0:
                self._check_size(len(rest))
                return []
            whole = bytes(rest[:end])
            del rest[: end + 2]
        self._check_size(len(rest))
        return self._events(whole)

    def finish(self) -> None:
        """Says that the body has ended. A last `[DONE]` without its empty line is accepted; nothing else is.

        Afterwards `rest_bytes` is the size of an event that was cut off, 0 if there was none.
        """
        rest = bytes(self._rest).strip(b"\n")
        if not self._done and rest.replace(b" ", b"") == b"data:" + DONE:
            self._done = True
            rest = b""
        self._rest[:] = rest

    def _events(self, whole: bytes) -> list[bytes]:
        events = []
        for block in whole.split(b"\n\n"):
            # The common case: one line, with a space after the colon.
            payload = block[6:] if block[:6] == b"data: " and b"\n" not in block else _data_of(block)
            if payload is None or self._done:
                continue
            if payload == DONE:
                self._done = True
                continue
            if len(payload) > self._max_event_bytes:
                raise EventTooLarge(len(payload), self._max_event_bytes)
            events.append(payload)
        return events

    def _plain_lines(self, data: bytes) -> bytes:
        """Drops a byte order mark and turns every line end into LF, over the seams of `feed` too."""
        if self._at_start:
            data = bytes(self._rest) + data
            self._rest.clear()
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest += data  # not to be told yet
                return b""
            self._at_start = False
            data = data.removeprefix(_BOM)
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _check_size(self, rest_bytes: int) -> None:
        if rest_bytes > self._max_event_bytes:
            raise EventTooLarge(rest_bytes, self._max_event_bytes)


def _data_of(block: bytes) -> bytes | None:
    """Returns the joined `data` lines of one event, or None if it has none."""
    lines = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            lines.append(value[1:] if value[:1] == b" " else value)
    return b"\n".join(lines) if lines else None
