"""LinkConnection: the asyncio shell of a link. Bytes come in, the machine decides, bytes go out.

    data_received -> FrameDecoder -> decode_message -> machine -> effects -> handler
                                          |                                    ^
                                          +---- RuntimeEvents of an open link -+   (no effects on the hot path)
    send -> encode_message -> WriteQueue -> one transport.write per loop turn, control ahead of data

Reading never waits for writing: while the peer does not read, data waits in the bounded queue, `data_paused`
tells, and control frames still go out. One timer a connection, set to the machine's next deadline.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from iop_shared.aio.write_queue import MAX_CONTROL_BYTES, PAUSE_DATA_BYTES, RESUME_DATA_BYTES, WriteQueue
from iop_shared.codec import decode_message, encode_message
from iop_shared.errors import InternalError, ProtocolError, TooLarge
from iop_shared.framing import FrameDecoder, encode_prefix
from iop_shared.http_listen import ListenAddress
from iop_shared.link import edge_side, node_side
from iop_shared.link.edge_side import EdgeSide
from iop_shared.link.effects import (
    AllowFrames,
    CloseTransport,
    Deliver,
    Effect,
    Ended,
    JudgeOpenRuns,
    LinkEnd,
    NeedVerdict,
    Opened,
    ReportOpenRuns,
    Send,
)
from iop_shared.link.handlers import EdgeLinkHandler, NodeLinkHandler
from iop_shared.link.machine import LinkState
from iop_shared.link.messages import (
    CONTROL_TYPES,
    HANDSHAKE_MAX_FRAME_BYTES,
    HANDSHAKE_TYPES,
    Goodbye,
    Heartbeat,
    Message,
    OpenRuns,
    Reject,
    RunVerdicts,
    UnreadableRun,
    Welcome,
)
from iop_shared.link.node_side import NodeSide
from iop_shared.runtime_events import RuntimeEvent

HIGH_WATER_BYTES: Final = 256 * 1024
LOW_WATER_BYTES: Final = 64 * 1024
"""Of the transport's own buffer: what a control frame may have to wait behind. Chosen; change freely."""

# The handshake's frames keep their order among the control frames: a cancel must not overtake the verdicts.
_CONTROL: Final = frozenset((*CONTROL_TYPES, *HANDSHAKE_TYPES))
_OWN_TYPES: Final = {Heartbeat, Goodbye, UnreadableRun}
_EDGE_MAY_SEND: Final = node_side.RECEIVES[LinkState.OPEN] - _OWN_TYPES
_NODE_MAY_SEND: Final = edge_side.RECEIVES[LinkState.OPEN] - _OWN_TYPES

Handler = EdgeLinkHandler | NodeLinkHandler


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """Counts of one connection since it was made. `round_trip_s`: None until the first heartbeat's answer."""

    frames_in: int
    frames_out: int
    bytes_in: int
    bytes_out: int
    queued_bytes: int
    unknown_frames: int
    round_trip_s: float | None


class LinkConnection(asyncio.Protocol):
    """One end of one link over one TCP connection. Made by `link_io.listen_links` and `link_io.dial_link`.

    `make_side(peer, now)` makes the machine when the connection stands; `make_handler(self)` makes what
    stands behind the link. `on_settled(self)` is called when the link opens and when it ends.
    """

    def __init__(
        self,
        make_side: Callable[[str, float], EdgeSide | NodeSide],
        make_handler: Callable[["LinkConnection"], Handler],
        *,
        peer: str = "",
        on_settled: Callable[["LinkConnection"], None] | None = None,
        on_lost: Callable[["LinkConnection"], None] | None = None,
    ) -> None:
        self._make_side = make_side
        self._make_handler = make_handler
        self._peer = peer
        self._on_settled = on_settled
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[LinkEnd] = self._loop.create_future()
        self._end: LinkEnd | None = None
        self._decoder = FrameDecoder(HANDSHAKE_MAX_FRAME_BYTES)
        self._queue = WriteQueue()
        self._send_max_bytes = HANDSHAKE_MAX_FRAME_BYTES
        self._flush_scheduled = False
        self._finish_after_flush = False
        self._data_paused = False
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._frames_out = self._bytes_in = self._bytes_out = 0
        # Set in connection_made, before anything else can happen.
        self._transport: asyncio.Transport
        self._machine: EdgeSide | NodeSide
        self._handler: Handler
        self._may_send: frozenset[type]
        self._takes_events: bool

    # --- for the daemon -------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """Returns "host:port" of the other end."""
        return self._peer

    @property
    def is_open(self) -> bool:
        """Whether `send` takes messages."""
        return self._machine.state is LinkState.OPEN

    @property
    def end(self) -> LinkEnd | None:
        """How the link ended; None while it lives. The transport may still be closing."""
        return self._end

    @property
    def data_paused(self) -> bool:
        """Whether data waits for the transport: send no more of it until `on_data_resumed`. Control may go on."""
        return self._data_paused

    @property
    def heard_at(self) -> float:
        """When the last byte came, on the loop's clock."""
        return self._machine.heard_at

    def send(self, message: Message) -> bool:
        """Queues `message`; it is written at the end of this loop turn, control ahead of data.

        Returns False, and does nothing, when the link is not open. More than 32 MiB of waiting data (only a
        sender that ignores `data_paused` gets there), or 1 MiB of waiting control frames, ends the link with code
        `send_overflow`: nothing is ever left out in silence.

        Raises:
            TooLarge: the frame would exceed the link's max_frame_bytes; nothing was sent, the link goes on.
            InternalError: only the other side may send this type, or a value that the wire cannot carry.
        """
        if self._machine.state is not LinkState.OPEN:
            return False
        kind = type(message)
        if kind not in self._may_send:
            raise InternalError(f"{kind.__name__} may not be sent by this side of a link")
        return self._queue_message(message, kind in _CONTROL)

    def admit(self, welcome: Welcome) -> bool:
        """Edge: lets the node in. False: the link has ended meanwhile. The protocol field is filled in here."""
        return self._run(self._edge_side.admit(welcome, self._loop.time()))

    def reject(self, reject: Reject) -> bool:
        """Edge: refuses the node and closes. False: the link has ended meanwhile."""
        return self._run(self._edge_side.reject(reject, self._loop.time()))

    def answer_open_runs(self, verdicts: RunVerdicts) -> bool:
        """Edge: judges the open runs; calls `on_open`. False: the link has ended meanwhile."""
        return self._run(self._edge_side.answer_open_runs(verdicts, self._loop.time()))

    def probe(self) -> None:
        """Asks for a sign of life; a live peer answers at once, so look at `heard_at` afterwards."""
        self._step(self._machine.probe)

    def close(self, code: str, message: str = "") -> None:
        """Ends the link: queued data and a Goodbye go out; aborts after `close_timeout_s`. Safe to call twice."""
        self._run(self._machine.close(code, message, self._loop.time()))

    def abort(self, code: str, message: str = "") -> None:
        """Ends the link at once, without a word. Safe to call twice."""
        self._run(self._machine.abort(code, message, self._loop.time()))

    async def wait_closed(self) -> LinkEnd:
        """Waits until the transport is closed and returns how the link ended. Cancelling leaves the link alone."""
        return await asyncio.shield(self._closed)

    def statistics(self) -> LinkStatistics:
        """Returns the counts so far."""
        return LinkStatistics(
            frames_in=self._decoder.frames,
            frames_out=self._frames_out,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            queued_bytes=self._queue.control_bytes + self._queue.data_bytes,
            unknown_frames=self._machine.unknown_messages,
            round_trip_s=self._machine.round_trip_s,
        )

    @property
    def _edge_side(self) -> EdgeSide:
        if not isinstance(self._machine, EdgeSide):
            raise InternalError("only the edge's end of a link judges")
        return self._machine

    # --- for the loop ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The loop: the connection stands."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        if not self._peer:
            # None when the peer has gone already.
            name = transport.get_extra_info("peername")
            self._peer = str(ListenAddress(name[0], name[1])) if name else "a peer that is gone"
        self._machine = self._make_side(self._peer, self._loop.time())
        self._may_send = _EDGE_MAY_SEND if isinstance(self._machine, EdgeSide) else _NODE_MAY_SEND
        self._takes_events = RuntimeEvent in self._machine.receives[LinkState.OPEN]
        try:
            self._handler = self._make_handler(self)
        except Exception as error:
            self._report(error)
            self._transport.abort()
            return
        self._run(self._machine.start(self._loop.time()))

    def data_received(self, data: bytes) -> None:
        """The loop: bytes came. Never raises, never waits."""
        self._bytes_in += len(data)
        machine = self._machine
        machine.heard_at = self._loop.time()
        if self._end is not None:
            return  # read and dropped, so that the close is not turned into a reset
        decoder = self._decoder
        try:
            for payload in decoder.feed(data):
                message = decode_message(payload)
                if type(message) is RuntimeEvent and machine.state is LinkState.OPEN and self._takes_events:
                    self._handler.on_message(message)
                else:
                    self._run(machine.receive(message, machine.heard_at))
                if self._end is not None:
                    return
            if decoder.error is not None:
                self._run(machine.fault(decoder.error, machine.heard_at))
        except ProtocolError as error:
            self._run(machine.fault(error, machine.heard_at))
        except Exception as error:
            self._fail(error)

    def eof_received(self) -> bool:
        """The loop: the peer sends no more. The transport is closed, after our last word."""
        if self._end is None:
            error = self._decoder.finish()
            now = self._loop.time()
            if error is not None:
                self._run(self._machine.fault(error, now))
                self._flush()
            else:
                self._run(self._machine.transport_ended("the peer closed it", now))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The loop: the connection is gone."""
        detail = (getattr(exc, "strerror", None) or str(exc) or type(exc).__name__) if exc else "closed"
        self._run(self._machine.transport_ended(detail, self._loop.time()))
        self._queue.drop()
        self._set_timer(None)
        if not self._closed.done() and self._end is not None:
            self._closed.set_result(self._end)
        if self._on_lost is not None:
            self._on_lost(self)

    def pause_writing(self) -> None:
        """The loop: the transport's buffer is over its high-water mark."""
        self._queue.paused = True
        self._data_paused = True

    def resume_writing(self) -> None:
        """The loop: the transport's buffer is below its low-water mark."""
        self._queue.paused = False
        self._schedule_flush()

    # --- inside ---------------------------------------------------------------------------------------

    def _run(self, effects: list[Effect]) -> bool:
        """Performs `effects`; returns whether there were any. A handler that raises ends the link."""
        try:
            self._perform(effects)
            self._set_timer(self._machine.next_deadline())
        except Exception as error:
            self._fail(error)
        return bool(effects)

    def _step(self, step: Callable[[float], list[Effect]]) -> None:
        """Performs a step of the machine that may ask the handler for its unsettled cancels."""
        try:
            effects = step(self._loop.time())
        except Exception as error:
            self._fail(error)
        else:
            self._run(effects)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            # The link may end in the middle, by a frame too large or by the handler: nothing is told after that.
            if self._end is None or type(effect) is CloseTransport:
                _PERFORM[type(effect)](self, effect)

    def _perform_send(self, effect: Send) -> None:
        message = effect.message
        try:
            self._queue_message(message, type(message) in _CONTROL)
        except TooLarge as error:
            # The peer would end the link over it; better that the reason is known here.
            self._perform(self._machine.close("internal", str(error), self._loop.time(), flush_data=False))

    def _perform_allow_frames(self, effect: AllowFrames) -> None:
        self._decoder.max_frame_bytes = effect.receive_max_bytes
        self._send_max_bytes = effect.send_max_bytes

    def _perform_need_verdict(self, effect: NeedVerdict) -> None:
        cast("EdgeLinkHandler", self._handler).on_hello(effect.hello, effect.auth_message)

    def _perform_judge_open_runs(self, effect: JudgeOpenRuns) -> None:
        cast("EdgeLinkHandler", self._handler).on_open_runs(effect.open_runs)

    def _perform_report_open_runs(self, effect: ReportOpenRuns) -> None:
        runs = cast("NodeLinkHandler", self._handler).on_welcome(effect.welcome)
        self._perform(cast("NodeSide", self._machine).report(OpenRuns(runs), self._loop.time()))

    def _perform_opened(self, effect: Opened) -> None:
        if self._on_settled is not None:
            self._on_settled(self)
        if effect.verdicts is None:
            cast("EdgeLinkHandler", self._handler).on_open()
        else:
            cast("NodeLinkHandler", self._handler).on_open(effect.verdicts)

    def _perform_deliver(self, effect: Deliver) -> None:
        self._handler.on_message(effect.message)

    def _perform_ended(self, effect: Ended) -> None:
        self._end = effect.end
        queue = self._queue
        if not effect.flush_data:
            queue.drop_data()
        if effect.farewell is not None:
            payload = encode_message(effect.farewell)
            queue.add_last(encode_prefix(len(payload)), payload)
            self._frames_out += 1
            self._finish_after_flush = True
            self._schedule_flush()
        if self._on_settled is not None:
            self._on_settled(self)
        try:
            self._handler.on_closed(effect.end)
        except Exception as error:  # the transport must be closed all the same
            self._report(error)

    def _perform_close_transport(self, effect: CloseTransport) -> None:
        self._queue.drop()
        if effect.abort:
            self._transport.abort()
        else:
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        """Our bug: report it and end the link. The details stay in our log."""
        self._report(error)
        now = self._loop.time()
        self._perform(self._machine.close("internal", "an internal error", now, flush_data=False))
        self._set_timer(self._machine.next_deadline())

    def _report(self, error: Exception) -> None:
        """Our bug, told to the loop's exception handler, which logs it."""
        self._loop.call_exception_handler(
            {"message": f"link with {self._peer}: its handler failed", "exception": error, "protocol": self}
        )

    def _queue_message(self, message: Message, is_control: bool) -> bool:
        payload = encode_message(message)
        size = len(payload)
        if size > self._send_max_bytes:
            raise TooLarge(
                f"{type(message).__name__} of {size} bytes exceeds max_frame_bytes={self._send_max_bytes} "
                f"of the link with {self._peer}"
            )
        add = self._queue.add_control if is_control else self._queue.add_data
        problem = add(encode_prefix(size), payload)
        if problem is not None:
            return self._overflow(problem)
        self._frames_out += 1
        if self._queue.data_bytes > PAUSE_DATA_BYTES:
            self._data_paused = True
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        return True

    def _overflow(self, problem: str) -> bool:
        self._run(self._machine.abort("send_overflow", f"{self._peer}: {problem}", self._loop.time()))
        return False

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        transport, queue = self._transport, self._queue
        if transport.is_closing():
            queue.drop()
            return
        data = queue.take()
        if data:
            self._bytes_out += len(data)
            transport.write(data)
            self._machine.note_sent(self._loop.time())
        if queue.paused:
            waiting = transport.get_write_buffer_size()
            if waiting > HIGH_WATER_BYTES + LOW_WATER_BYTES + MAX_CONTROL_BYTES:
                self._overflow(f"{waiting} bytes wait in the transport: the peer does not read")
            return
        if queue.data_bytes:
            self._schedule_flush()
        elif self._finish_after_flush:
            self._finish_writing()
        if self._data_paused and queue.data_bytes <= RESUME_DATA_BYTES:
            self._data_paused = False
            if self._end is None:
                try:
                    self._handler.on_data_resumed()
                except Exception as error:
                    self._fail(error)

    def _finish_writing(self) -> None:
        """The farewell is out: say that nothing follows, and let the peer close (or the close deadline abort)."""
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
        except (OSError, RuntimeError):
            self._transport.close()  # the peer was faster

    def _set_timer(self, deadline: float | None) -> None:
        timer = self._timer
        if deadline is None:
            if timer is not None:
                timer.cancel()
                self._timer = None
            return
        # Deadlines mostly move away: a timer that comes too early looks again, and costs less than a new
        # one for each frame.
        if timer is not None:
            if self._timer_at <= deadline:
                return
            timer.cancel()
        # The time is kept here: uvloop's handle for what is due at once does not tell it.
        self._timer, self._timer_at = self._loop.call_at(deadline, self._on_timer), deadline

    def _on_timer(self) -> None:
        self._timer = None
        self._step(self._machine.on_tick)


_PERFORM: Final[dict[type, Callable[[LinkConnection, Any], None]]] = {
    Send: LinkConnection._perform_send,
    AllowFrames: LinkConnection._perform_allow_frames,
    NeedVerdict: LinkConnection._perform_need_verdict,
    JudgeOpenRuns: LinkConnection._perform_judge_open_runs,
    ReportOpenRuns: LinkConnection._perform_report_open_runs,
    Opened: LinkConnection._perform_opened,
    Deliver: LinkConnection._perform_deliver,
    Ended: LinkConnection._perform_ended,
    CloseTransport: LinkConnection._perform_close_transport,
}
