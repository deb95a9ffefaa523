"""NodeLink: one link to one node, between its connection and the service.

        on_hello        on_open_runs                on_message
----------------> judged ----------> open ------------------------> NodeLinks, Dispatcher
 token, then the name    |  verdicts        <------------------------
 (an old link is probed) |                   send, send_run, ack, close
"""

import asyncio
from typing import TYPE_CHECKING, Final, TypeGuard

from iop_edge.domain.effects import LinkKey
from iop_edge.domain.registry import NO_CONFIG, Newcomer
from iop_edge.transport.input_parts import InputParts
from iop_shared.aio.connection import LinkConnection
from iop_shared.errors import Unavailable
from iop_shared.ids import Epoch, NodeId, RunId, TokenId
from iop_shared.link import rejects
from iop_shared.link.effects import LinkEnd
from iop_shared.link.messages import (
    CancelRun,
    EventAck,
    Hello,
    Message,
    OpenRuns,
    Reject,
    RunAck,
    RunRefused,
    Welcome,
)
from iop_shared.logs import get_logger
from iop_shared.runs import RunRequest
from iop_shared.runtime_events import RuntimeEvent

if TYPE_CHECKING:
    from iop_edge.transport.listener import LinkDoor

PROBE_S: Final = 2.0
"""How long the present holder of a name has to answer when another process asks for it (architecture)."""
ACK_INTERVAL_S: Final = 0.1
ACK_EVENTS: Final = 1024
ACK_BYTES: Final = 128 * 1024
"""An EventAck goes out when one of the three is reached. Chosen: a node's window must not wait for the timer, and
with many runs at once an ack should still speak for several events of each: of 64 runs, one every 64 events cost
each end 2 us a token."""

_log = get_logger("link")


class NodeLink:
    """The handler behind one connection; once open, the service's way to the node."""

    def __init__(self, connection: LinkConnection, door: "LinkDoor") -> None:
        self._connection, self._door = connection, door
        self._loop = asyncio.get_running_loop()
        self._key = LinkKey(NodeId(""), Epoch(0))
        self._hello: Hello | None = None
        self._wanted = NO_CONFIG
        self._is_open = False
        self._parts = InputParts(connection, door.service.runs.fail_unsendable)
        self._acks: dict[tuple[RunId, int], int] = {}
        self._acked_events = self._acked_bytes = 0
        self._ack_timer: asyncio.TimerHandle | None = None

    # --- handshake ----------------------------------------------------------------------------------

    def on_hello(self, hello: Hello, auth_message: bytes) -> None:
        """Judges the token: at once when it is known, after a look into the store otherwise."""
        self._hello = hello
        if self._door.tokens.find(hello.token_id) is not None:
            self._judge_token(hello, auth_message)
        else:
            self._door.tasks.spawn(self._look_up_token(hello, auth_message), name=f"token of {hello.node_id}")

    async def _look_up_token(self, hello: Hello, auth_message: bytes) -> None:
        try:
            await self._door.tokens.refresh()
        except Unavailable as error:
            _log.error("tokens_unreadable", node_id=hello.node_id, reason=str(error))
        self._judge_token(hello, auth_message)

    def _judge_token(self, hello: Hello, auth_message: bytes) -> None:
        refusal = self._door.tokens.judge(hello, auth_message)
        if refusal is None and self._door.service.is_stopping:
            refusal = rejects.edge_draining()
        if refusal is not None:
            self._connection.reject(refusal)
            return
        if self._door.service.links.judge(hello) is Newcomer.DUPLICATE:
            self._door.tasks.spawn(self._probe_and_judge(hello), name=f"probe of {hello.node_id}")
        else:
            self._admit(hello)

    async def _probe_and_judge(self, hello: Hello) -> None:
        asked_at = self._loop.time()
        self._door.probe(hello.node_id)
        await asyncio.sleep(self._door.probe_s)
        # Whoever has the name and is alive has answered since.
        verdict = self._door.service.links.judge(hello, silent_after_s=self._loop.time() - asked_at)
        if verdict is Newcomer.DUPLICATE:
            self._connection.reject(rejects.duplicate_node(hello.node_id))
        else:
            self._admit(hello)

    def _admit(self, hello: Hello) -> None:
        self._key = LinkKey(hello.node_id, self._door.epochs.take())
        self._wanted = self._door.service.links.config_for(hello)
        welcome = Welcome(self._key.epoch, self._door.limits, self._door.clock.wall_ms(), self._wanted)
        self._connection.admit(welcome)

    def on_open_runs(self, open_runs: OpenRuns) -> None:
        """Gives the node its name and its verdicts; the link is open from here."""
        assert self._hello is not None, "a node that was admitted has said who it is"
        opened = self._door.service.links.open(
            self, self._hello, self._wanted, self._connection.peer, open_runs.runs
        )
        if opened is None:
            self._connection.close("replaced", f"node {self._key.node_id} opened a newer link")
            return
        verdicts, after_answer = opened
        self._is_open = True
        if not self._connection.answer_open_runs(verdicts):
            return  # it ended in between; `on_closed` has told, or tells
        after_answer()
        self._door.tasks.spawn(
            self._door.tokens.note_used(self._hello.token_id), name=f"token use of {self._key.node_id}"
        )

    def on_open(self) -> None:
        """Nothing to do: `on_open_runs` goes on when it has the answer out."""

    # --- the open link ------------------------------------------------------------------------------

    def on_message(self, message: Message) -> None:
        """Hands a message to the service."""
        if len(self._parts) and (
            type(message) is RunRefused or (type(message) is RuntimeEvent and message.is_terminal)
        ):
            self._parts.drop(message.run_id)  # nobody will read the rest of its input
        self._door.service.links.on_message(self, message)

    def on_data_resumed(self) -> None:
        """Goes on with large inputs."""
        self._parts.pump()

    def unsettled_cancels(self) -> tuple[RunId, ...]:
        """The runs whose cancel each heartbeat repeats."""
        return self._door.service.links.unsettled_cancels(self._key.node_id) if self._is_open else ()

    def on_closed(self, end: LinkEnd) -> None:
        """Tells the service, once."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        self._door.forget(self)
        if self._is_open:
            self._is_open = False
            self._door.service.links.lost(self._key, end.code, end.message)
        else:
            node_id = None if self._hello is None else self._hello.node_id
            self._door.service.links.refuse(node_id, end.code, self._connection.peer, end.message)

    # --- NodeLinkPort -------------------------------------------------------------------------------

    @property
    def key(self) -> LinkKey:
        """The node and the epoch."""
        return self._key

    @property
    def token_id(self) -> TokenId | None:
        """The token that opened this link; None before the Hello."""
        return None if self._hello is None else self._hello.token_id

    def send(self, message: Message) -> None:
        """Sends a message by its lane; does nothing when the link has ended."""
        if type(message) is CancelRun:
            self._parts.drop(message.run_id)
        self._connection.send(message)

    def send_run(self, request: RunRequest) -> None:
        """Sends a run, a large input in parts."""
        self._parts.send_run(request)

    def ack(self, run_id: RunId, attempt: int, seq: int, payload_bytes: int) -> None:
        """Acknowledges up to `seq`, together with what else comes within 100 ms."""
        self._acks[run_id, attempt] = seq
        self._acked_events += 1
        self._acked_bytes += payload_bytes
        if self._acked_events >= ACK_EVENTS or self._acked_bytes >= ACK_BYTES:
            self._send_acks()
        elif self._ack_timer is None:
            self._ack_timer = self._loop.call_later(ACK_INTERVAL_S, self._send_acks)

    def close(self, code: str, message: str) -> None:
        """Says goodbye and closes. Safe to call twice."""
        self._connection.close(code, message)

    def reject(self, reject: Reject) -> None:
        """Refuses a node that has not been let in."""
        self._connection.reject(reject)

    def probe(self) -> None:
        """Asks the node for a sign of life."""
        self._connection.probe()

    def heard_ago_s(self) -> float | None:
        """Seconds since anything was heard; None once the link has ended."""
        return self._loop.time() - self._connection.heard_at if self._connection.is_open else None

    def round_trip_s(self) -> float | None:
        """The last measured round trip; None before the first."""
        return self._connection.statistics().round_trip_s

    def _send_acks(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        runs = tuple(RunAck(run_id, attempt, seq) for (run_id, attempt), seq in self._acks.items())
        self._acks.clear()
        self._acked_events = self._acked_bytes = 0
        self._connection.send(EventAck(runs))


def _ends_run(message: Message) -> TypeGuard[RunRefused | RuntimeEvent]:
    return type(message) is RunRefused or (type(message) is RuntimeEvent and message.is_terminal)
