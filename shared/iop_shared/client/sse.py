"""Server-sent events out of a byte stream, whatever way the bytes are cut. Pure.

The wire form is the WHATWG's, "9.2 Server-sent events"; of it only `event`, `data` and `id` matter here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
"""An event is at most one run's whole answer; more means that this is no event stream."""


class StreamBroken(Exception):
    """The bytes cannot be an event stream."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event. `name` is "" where the server gave none."""

    name: str
    data: bytes
    id: str = ""


class EventReader:
    """Takes bytes as they come and gives whole events. Lines end with LF, CR LF or CR."""

    def __init__(self) -> None:
        self._buffer = b""
        self._name, self._id = "", ""
        self._data: list[bytes] = []
        self._skip_lf = False

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """Yields the events that are complete now.

        Raises:
            StreamBroken: an event is larger than `MAX_EVENT_BYTES`.
        """
        if self._skip_lf and data[:1] == b"\n":
            data = data[1:]
        self._skip_lf = False if data else self._skip_lf
        self._buffer += data
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise StreamBroken(f"an event is larger than {MAX_EVENT_BYTES} bytes")
        # A CR at the very end may be half of a CR LF: its line counts now, a LF that follows is dropped.
        if self._buffer.endswith(b"\r"):
            self._skip_lf = True
        lines = self._buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._buffer = lines.pop()
        for line in lines:
            event = self._take_line(line)
            if event is not None:
                yield event

    def _take_line(self, line: bytes) -> ServerEvent | None:
        if not line:
            if not self._data:
                self._name = ""
                return None
            event = ServerEvent(self._name, b"\n".join(self._data), self._id)
            self._name, self._data = "", []
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
            case b"event":
                self._name = value.decode(errors="replace")
            case b"id":
                self._id = value.decode(errors="replace")
            case _:
                pass  # a comment (the server's heartbeat) or a field that says nothing to us
        return None
