"""A node under a test's hand: a real link to a real edge, with answers that the test chooses.

node = FakeNode(edge_address, token, on_run=echo)
await node.connect()
...
await node.aclose()
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tests.support.inbox import DEFAULT_TIMEOUT_S, Inbox, wait_for

from iop_shared.aio.connection import LinkConnection
from iop_shared.aio.link_io import dial_link
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import AdapterName, BootId, NodeId, RunId, TargetName, new_boot_id
from iop_shared.link.auth import Token
from iop_shared.link.effects import LinkEnd
from iop_shared.link.machine import LinkTimes
from iop_shared.link.messages import (
    AdapterStatus,
    CancelRun,
    CapabilitiesChanged,
    ConfigPush,
    ConfigResult,
    EdgeNodeEvent,
    EventAck,
    Gate,
    GateState,
    Message,
    NodeCommandRequest,
    NodeCommandResponse,
    NodeConfigPayload,
    OpenRun,
    RunAccepted,
    RunInputPart,
    RunRefused,
    RunSubmission,
    RunVerdicts,
    Welcome,
)
from iop_shared.link.node_side import NodeIdentity
from iop_shared.runs import Operation, RunRequest
from iop_shared.runtime_events import (
    TERMINAL_TYPES,
    Body,
    Cancelled,
    Closing,
    RuntimeEvent,
    Started,
    Succeeded,
    Text,
    output_bytes_of,
)

MOCK = AdapterStatus(
    name=AdapterName("mock"),
    type="mock",
    gate=Gate(GateState.OPEN),
    max_concurrent=4,
    operations=tuple(Operation),
    targets=(TargetName("echo"), TargetName("slow")),
)
TEST_TIMES = LinkTimes(handshake_timeout_s=5.0, close_timeout_s=0.5)


class FakeNode:
    """One node. By default it lets every run be answered by the test, applies every configuration, and ends a run
    that is cancelled."""

    def __init__(
        self,
        edge: ListenAddress,
        token: Token | None,
        *,
        node_id: str = "gpu-1",
        boot_id: BootId | None = None,
        adapters: Sequence[AdapterStatus] = (MOCK,),
        labels: Mapping[str, str] | None = None,
        software_version: str = "0-test",
        on_run: Callable[["FakeNode", RunRequest], None] | None = None,
        applies_config: bool = True,
        obeys_cancel: bool = True,
        protocol_range: tuple[int, int] = (1, 1),
        times: LinkTimes = TEST_TIMES,
    ) -> None:
        self.edge = edge
        self.identity = NodeIdentity(
            NodeId(node_id),
            boot_id if boot_id is not None else new_boot_id(),
            token,
            software_version,
            dict(labels or {}),
            protocol_min=protocol_range[0],
            protocol_max=protocol_range[1],
        )
        self.adapters = tuple(adapters)
        self.on_run = on_run
        self.applies_config = applies_config
        self.obeys_cancel = obeys_cancel
        self.reject_config_with: tuple[str, ...] = ()
        self.open_runs: tuple[OpenRun, ...] = ()
        """Reported at the next connect."""
        self.inbox = Inbox()
        self.welcomes: list[Welcome] = []
        self.verdicts: RunVerdicts | None = None
        self.ends: list[LinkEnd] = []
        self.runs: dict[RunId, RunRequest] = {}
        self.inputs: dict[RunId, bytearray] = {}
        self.acked: dict[tuple[RunId, int], int] = {}
        self.link: LinkConnection | None = None
        self._times = times
        self._next_seq: dict[tuple[RunId, int], int] = {}
        self._output: dict[tuple[RunId, int], bytearray] = {}
        self._ended: set[tuple[RunId, int]] = set()

    # --- the link -------------------------------------------------------------------------------------

    async def connect(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Dials and waits until the link is open.

        Raises:
            LinkError: the link ended first (refused, protocol ...).
        """
        ends = len(self.ends)
        await self.dial()
        await wait_for(lambda: self.is_open or len(self.ends) > ends, "open", timeout_s=timeout_s)
        if not self.is_open:
            raise self.ends[-1].to_error()

    async def dial(self) -> LinkConnection:
        """Dials and returns the connection, whatever becomes of the handshake."""
        self.link = await dial_link(self.edge, self._make_handler, self.identity, times=self._times)
        return self.link

    @property
    def is_open(self) -> bool:
        """Whether the link stands."""
        return self.link is not None and self.link.is_open

    async def wait_end(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> LinkEnd:
        """Returns how the present link ended, once its transport is closed too."""
        async with asyncio.timeout(timeout_s):
            return await self._link.wait_closed()

    async def cut(self) -> None:
        """Breaks the connection without a word, as a crash or a pulled cable would."""
        self._link.abort("cut", "cut by the test")
        await self._link.wait_closed()

    async def aclose(self) -> None:
        """Says goodbye if the link stands, and waits for the end of the transport. Safe to call twice."""
        if self.link is not None:
            self.link.close("stopped", "the test is over")
            await self.link.wait_closed()

    def send(self, message: Message) -> None:
        """Sends a message as it is."""
        assert self._link.send(message), "the link is not open"

    def send_raw(self, data: bytes) -> None:
        """Writes bytes past the machine, to misbehave with."""
        self._link._transport.write(data)

    def stop_reading(self) -> None:
        """Reads no more, so that what the edge sends piles up."""
        self._link._transport.pause_reading()

    @property
    def _link(self) -> LinkConnection:
        assert self.link is not None, "connect first"
        return self.link

    # --- what the node says ------------------------------------------------------------------------------

    def announce(self, adapters: Sequence[AdapterStatus]) -> None:
        """Tells the edge what this node offers from now on."""
        self.adapters = tuple(adapters)
        self.send(EdgeNodeEvent(1_700_000_000_000, CapabilitiesChanged(self.adapters)))

    def accept(self, run_id: RunId) -> None:
        """Accepts a run."""
        self.send(RunAccepted(run_id, self.runs[run_id].attempt))

    def refuse(self, run_id: RunId, code: str = "node_busy", message: str = "no place is free") -> None:
        """Refuses a run."""
        self.send(RunRefused(run_id, self.runs[run_id].attempt, code, message))

    def emit(self, run_id: RunId, *bodies: Body) -> list[RuntimeEvent]:
        """Sends the next events of a run, and returns them. A terminal body gets its counts and checksum."""
        request = self.runs[run_id]
        key = (run_id, request.attempt)
        sent: list[RuntimeEvent] = []
        for body in bodies:
            seq = self._next_seq.get(key, 1)
            self._next_seq[key] = seq + 1
            output = self._output.setdefault(key, bytearray())
            output += output_bytes_of(body)
            if isinstance(body, TERMINAL_TYPES):
                self._ended.add(key)
                digest = hashlib.sha256(output).digest()
                counted = replace(body.closing, events=seq - 1, output_bytes=len(output), output_sha256=digest)
                body = replace(body, closing=counted)
            event = RuntimeEvent(run_id, request.attempt, seq, body)
            self.send(event)
            sent.append(event)
        return sent

    def start(self, run_id: RunId) -> None:
        """Accepts a run and says that it has started."""
        self.accept(run_id)
        request = self.runs[run_id]
        self.emit(run_id, Started(request.adapter, request.target, self.identity.node_id, "fake"))

    def succeed(self, run_id: RunId, finish_reason: str = "stop") -> None:
        """Ends a run well."""
        self.emit(run_id, Succeeded(Closing(finish_reason=finish_reason)))

    async def wait_run(self, *, timeout_s: float = DEFAULT_TIMEOUT_S, number: int = 1) -> RunRequest:
        """Returns the `number`-th run that came over all links, whole."""
        await self.inbox.wait_until(lambda: len(self.runs) >= number, f"run {number}", timeout_s=timeout_s)
        run_id = list(self.runs)[number - 1]
        submission = next(m for m in self.inbox.of(RunSubmission) if m.request.run_id == run_id)
        await self.inbox.wait_until(
            lambda: len(self.inputs[run_id]) >= submission.input_bytes, "the whole input", timeout_s=timeout_s
        )
        return replace(self.runs[run_id], input=bytes(self.inputs[run_id]))

    # --- what the connection calls ---------------------------------------------------------------------

    def _make_handler(self, link: LinkConnection) -> "_NodeEnd":
        return _NodeEnd(self, link)

    def _on_open(self, link: LinkConnection, verdicts: RunVerdicts) -> None:
        self.verdicts = verdicts
        link.send(EdgeNodeEvent(1_700_000_000_000, CapabilitiesChanged(self.adapters)))
        self._answer_config(link, self.welcomes[-1].config)

    def _answer_config(self, link: LinkConnection, config: NodeConfigPayload) -> None:
        if self.reject_config_with:
            link.send(ConfigResult(config.revision, config.hash, False, self.reject_config_with))
        elif self.applies_config:
            link.send(ConfigResult(config.revision, config.hash, True))

    def _on_message(self, link: LinkConnection, message: Message) -> None:
        match message:
            case RunSubmission(request=request):
                self.runs[request.run_id] = request
                self.inputs[request.run_id] = bytearray(request.input)
            case RunInputPart(run_id=run_id, data=data):
                self.inputs.setdefault(run_id, bytearray()).extend(data)
            case EventAck(runs=acks):
                for ack in acks:
                    self.acked[ack.run_id, ack.attempt] = ack.seq
            case _:
                pass
        self.inbox.add(message)
        match message:
            case RunSubmission(request=request) if self.on_run is not None:
                self.on_run(self, request)
            case ConfigPush(config=config):
                self._answer_config(link, config)
            case CancelRun(run_id=run_id, reason=reason) if self.obeys_cancel and run_id in self.runs:
                if (run_id, self.runs[run_id].attempt) not in self._ended:
                    self.emit(run_id, Cancelled(reason, True, 1))
            case NodeCommandRequest(command_id=command_id, command=command):
                link.send(NodeCommandResponse(command_id, {"command": command}))
            case _:
                pass


class _NodeEnd:
    """One link of a FakeNode."""

    def __init__(self, node: FakeNode, link: LinkConnection) -> None:
        self._node = node
        self._link = link

    def on_welcome(self, welcome: Welcome) -> tuple[OpenRun, ...]:
        self._node.welcomes.append(welcome)
        return self._node.open_runs

    def on_open(self, verdicts: RunVerdicts) -> None:
        self._node._on_open(self._link, verdicts)

    def on_message(self, message: Message) -> None:
        self._node._on_message(self._link, message)

    def on_data_resumed(self) -> None:
        """Nothing waits in a fake."""

    def on_closed(self, end: LinkEnd) -> None:
        self._node.ends.append(end)


def echo(node: FakeNode, request: RunRequest) -> None:
    """An `on_run` that answers with the input's words, one event each, and succeeds."""
    node.start(request.run_id)
    for word in request.input.decode().split():
        node.emit(request.run_id, Text(word + " "))
    node.succeed(request.run_id)


def refuse_busy(node: FakeNode, request: RunRequest) -> None:
    """An `on_run` that refuses everything."""
    node.refuse(request.run_id)
