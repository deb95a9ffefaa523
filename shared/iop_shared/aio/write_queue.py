"""What a connection still has to write: two lanes, both bounded, control ahead of data. No IO in here.

Data is held back while the transport's own buffer is over its high-water mark; control is not. So however
much data waits, a heartbeat or a cancel stands behind no more than one flush of it.
"""

from typing import Final

FLUSH_DATA_BYTES: Final = 256 * 1024
"""Data given to the transport at once: what a control frame may have to wait behind. Chosen; change freely."""
MAX_CONTROL_BYTES: Final = 1024 * 1024
"""Chosen: some ten thousand acks; a peer that reads none of them is not reading at all."""
MAX_DATA_BYTES: Final = 32 * 1024 * 1024
"""Far over where senders pause: only one that ignores `data_paused` gets here."""
PAUSE_DATA_BYTES: Final = 1024 * 1024
RESUME_DATA_BYTES: Final = 256 * 1024


class WriteQueue:
    """Frames in two lanes. `paused`: the transport asked to wait."""

    def __init__(
        self, *, max_control_bytes: int = MAX_CONTROL_BYTES, max_data_bytes: int = MAX_DATA_BYTES
    ) -> None:
        self._max_control_bytes = max_control_bytes
        self._max_data_bytes = max_data_bytes
        self._control: list[bytes] = []
        self._data: list[bytes] = []
        self._data_start = 0
        self.control_bytes = 0
        self.data_bytes = 0
        self.paused = False

    def add_control(self, prefix: bytes, payload: bytes) -> str | None:
        """Queues a frame ahead of all data. Returns a sentence when that is over the bound (nothing is queued)."""
        size = len(prefix) + len(payload)
        if self.control_bytes + size > self._max_control_bytes:
            return (
                f"{self.control_bytes} bytes of control frames wait to be written, "
                f"limit {self._max_control_bytes}: the peer does not read"
            )
        self._control += (prefix, payload)
        self.control_bytes += size
        return None

    def add_data(self, prefix: bytes, payload: bytes) -> str | None:
        """Queues a frame behind all that waits. Returns a sentence when that is over the bound."""
        size = len(prefix) + len(payload)
        if self.data_bytes + size > self._max_data_bytes:
            return f"{self.data_bytes} bytes of data wait to be written, limit {self._max_data_bytes}"
        self._data += (prefix, payload)
        self.data_bytes += size
        return None

    def add_last(self, prefix: bytes, payload: bytes) -> None:
        """Queues the frame that ends the link, behind all that waits; no bound keeps it out."""
        if self.data_bytes:
            self._data += (prefix, payload)
            self.data_bytes += len(prefix) + len(payload)
        else:
            self._control += (prefix, payload)
            self.control_bytes += len(prefix) + len(payload)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self.control_bytes and not self.data_bytes

    def take(self) -> bytes:
        """Returns what to write now, as one piece; empty if nothing may be written."""
        data = self._data
        if self.paused or not self.data_bytes:
            taken = self._control
            self._control = []
            self.control_bytes = 0
        elif self.data_bytes <= FLUSH_DATA_BYTES:
            taken = self._control + data[self._data_start :] if self._control or self._data_start else data
            self._control, self._data, self._data_start = [], [], 0
            self.control_bytes = self.data_bytes = 0
        else:
            taken = self._control + self._take_some_data()
            self._control = []
            self.control_bytes = 0
        return b"".join(taken)

    def drop(self) -> None:
        """Forgets everything that waits."""
        self._control, self._data, self._data_start = [], [], 0
        self.control_bytes = self.data_bytes = 0

    def drop_data(self) -> None:
        """Forgets the data that waits."""
        self._data, self._data_start, self.data_bytes = [], 0, 0

    def _take_some_data(self) -> list[bytes]:
        start = stop = self._data_start
        size = 0
        while size < FLUSH_DATA_BYTES:
            size += len(self._data[stop]) + len(self._data[stop + 1])
            stop += 2
        taken = self._data[start:stop]
        self.data_bytes -= size
        self._data_start = stop
        if stop > len(self._data) // 2:  # so that the front is not moved for each flush
            del self._data[:stop]
            self._data_start = 0
        return taken
