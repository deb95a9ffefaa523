"""An edge under a test's hand: listens on a real port, judges as told, sends runs and collects what comes.

async with FakeEdge.listening(token) as edge:
    ... start a node against edge.address ...
    session = await edge.wait_session()
    session.submit(request)
    events = await session.wait_terminal(request.run_id)
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from tests.support.fake_node import TEST_TIMES
from tests.support.inbox import DEFAULT_TIMEOUT_S, Inbox, wait_for

from iop_shared.aio.connection import LinkConnection
from iop_shared.aio.link_io import LinkListener, listen_links
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import Epoch, RunId, new_command_id
from iop_shared.link import auth, rejects
from iop_shared.link.auth import Token
from iop_shared.link.effects import LinkEnd
from iop_shared.link.machine import LinkTimes
from iop_shared.link.messages import (
    AdapterConfig,
    AdapterStatus,
    CancelRun,
    CapabilitiesChanged,
    ConfigPush,
    ConfigResult,
    EdgeNodeEvent,
    EventAck,
    Hello,
    LinkLimits,
    Message,
    NodeCommandRequest,
    NodeCommandResponse,
    NodeConfigPayload,
    OpenRuns,
    Reject,
    RunAccepted,
    RunAck,
    RunRefused,
    RunSubmission,
    RunVerdict,
    RunVerdicts,
    Verdict,
    Welcome,
)
from iop_shared.node_config import make_node_config
from iop_shared.runs import RunRequest
from iop_shared.runtime_events import RuntimeEvent

TEST_LIMITS = LinkLimits(heartbeat_interval_s=15.0, dead_after_s=40.0, disconnect_grace_s=60.0)
ANY_PORT = ListenAddress("127.0.0.1", 0)


class FakeEdge:
    """One edge. Admits every node that holds `token`; `reject` refuses everyone instead."""

    def __init__(self, token: Token | None, *, adapters: Sequence[AdapterConfig] = (), revision: int = 1) -> None:
        self.token = token
        self.config: NodeConfigPayload = make_node_config(revision, adapters)
        self.limits = TEST_LIMITS
        self.reject: Reject | None = None
        self.is_mute = False
        """Never answers a Hello."""
        self.acks = True
        """Acknowledges every event at once."""
        self.verdicts: dict[RunId, tuple[int, Verdict]] = {}
        """What to say of an open run: acked sequence and verdict. Others are kept from the start."""
        self.sessions: list[FakeSession] = []
        self.ends: list[LinkEnd] = []
        self._listener: LinkListener | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def listening(
        cls,
        token: Token | None = None,
        *,
        adapters: Sequence[AdapterConfig] = (),
        address: ListenAddress = ANY_PORT,
    ) -> AsyncIterator["FakeEdge"]:
        """An edge that listens, and has closed everything afterwards."""
        edge = cls(token, adapters=adapters)
        await edge.start(address)
        try:
            yield edge
        finally:
            await edge.aclose()

    async def start(
        self,
        address: ListenAddress = ANY_PORT,
        *,
        times: LinkTimes = TEST_TIMES,
        max_handshakes: int = 256,
        protocol_range: tuple[int, int] = (1, 1),
    ) -> None:
        """Listens; port 0 is resolved in `address`. May be started again after `aclose`."""
        self._listener = await listen_links(
            address,
            self._make_handler,
            edge_id="edge-test",
            software_version="0-test",
            times=times,
            max_handshakes=max_handshakes,
            protocol_range=protocol_range,
        )

    @property
    def address(self) -> ListenAddress:
        """Where to dial."""
        assert self._listener is not None, "start it first"
        return self._listener.address

    async def aclose(self, *, cut: bool = False) -> None:
        """Stops listening and ends every link: with a goodbye, or (`cut`) without a word."""
        if self._listener is None:
            return
        await self._listener.stop()
        links = self._listener.links
        for link in links:
            if cut:
                link.abort("cut", "cut by the test")
            else:
                link.close("edge_stopping", "the test is over")
        for link in links:
            await link.wait_closed()

    async def wait_session(self, number: int = 1, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> "FakeSession":
        """Returns the `number`-th link that opened since the start."""
        await wait_for(
            lambda: len(self.sessions) >= number, f"link {number} of {len(self.sessions)}", timeout_s=timeout_s
        )
        return self.sessions[number - 1]

    async def wait_ended(self, number: int = 1, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> LinkEnd:
        """Returns the `number`-th end of a link, open before or not."""
        await wait_for(lambda: len(self.ends) >= number, f"end {number} of {len(self.ends)}", timeout_s=timeout_s)
        return self.ends[number - 1]

    def _make_handler(self, link: LinkConnection) -> "FakeSession":
        return FakeSession(self, link)


class FakeSession:
    """The edge's end of one link."""

    def __init__(self, edge: FakeEdge, link: LinkConnection) -> None:
        self.edge = edge
        self.link = link
        self.inbox = Inbox()
        self.hello: Hello | None = None
        self.open_runs: OpenRuns | None = None
        self.end: LinkEnd | None = None
        self.cancels: tuple[RunId, ...] = ()
        """Repeated in heartbeats."""

    # --- what a test does -----------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Sends a message as it is."""
        assert self.link.send(message), "the link is not open"

    def send_raw(self, data: bytes) -> None:
        """Writes bytes past the machine, to misbehave with."""
        self.link._transport.write(data)

    def submit(self, request: RunRequest) -> None:
        """Sends a run whose input fits one frame."""
        self.send(RunSubmission(request, len(request.input)))

    def cancel(self, run_id: RunId, reason: str = "asked by the test") -> None:
        """Sends a cancel."""
        self.send(CancelRun(run_id, reason))

    def push_config(self, adapters: Sequence[AdapterConfig]) -> NodeConfigPayload:
        """Sends the next revision and returns it."""
        self.edge.config = make_node_config(self.edge.config.revision + 1, adapters)
        self.send(ConfigPush(self.edge.config))
        return self.edge.config

    def ack(self, run_id: RunId, attempt: int, seq: int) -> None:
        """Acknowledges everything up to `seq`."""
        self.send(EventAck((RunAck(run_id, attempt, seq),)))

    async def cut(self) -> None:
        """Breaks the connection without a word."""
        self.link.abort("cut", "cut by the test")
        await self.link.wait_closed()

    async def wait_config_result(self, revision: int) -> ConfigResult:
        """Returns the node's answer to a revision."""
        return await self.inbox.wait(ConfigResult, lambda m: m.revision == revision)

    async def wait_answer(self, run_id: RunId) -> RunAccepted | RunRefused:
        """Returns how the node answered a run."""
        found: list[RunAccepted | RunRefused] = []

        def look() -> bool:
            found[:] = [
                m for m in self.inbox.messages if isinstance(m, RunAccepted | RunRefused) and m.run_id == run_id
            ]
            return bool(found)

        await self.inbox.wait_until(look, "an answer to the run")
        return found[0]

    async def wait_terminal(self, run_id: RunId, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[RuntimeEvent]:
        """Returns the events of a run once the terminal one has come."""
        await self.inbox.wait(RuntimeEvent, lambda m: m.run_id == run_id and m.is_terminal, timeout_s=timeout_s)
        return self.events(run_id)

    def events(self, run_id: RunId) -> list[RuntimeEvent]:
        """Returns the events of a run that came over this link so far, in order of arrival."""
        return [m for m in self.inbox.of(RuntimeEvent) if m.run_id == run_id]

    async def wait_adapters(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> tuple[AdapterStatus, ...]:
        """Returns what the node offers, as it said last; waits for the first time."""
        await self.inbox.wait(
            EdgeNodeEvent, lambda m: isinstance(m.body, CapabilitiesChanged), timeout_s=timeout_s
        )
        bodies = [m.body for m in self.inbox.of(EdgeNodeEvent) if isinstance(m.body, CapabilitiesChanged)]
        return bodies[-1].adapters

    async def command(self, command: str, arguments: Mapping[str, Any] | None = None) -> NodeCommandResponse:
        """Sends a command and returns its answer."""
        command_id = new_command_id()
        self.send(NodeCommandRequest(command_id, command, dict(arguments or {})))
        return await self.inbox.wait(NodeCommandResponse, lambda m: m.command_id == command_id)

    async def wait_closed(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> LinkEnd:
        """Returns how the link ended."""
        async with asyncio.timeout(timeout_s):
            return await self.link.wait_closed()

    # --- what the connection calls ---------------------------------------------------------------------

    def on_hello(self, hello: Hello, auth_message: bytes) -> None:
        edge = self.edge
        self.hello = hello
        if edge.is_mute:
            return
        key = auth.stored_key(edge.token.secret) if edge.token and hello.token_id == edge.token.token_id else None
        if edge.reject is not None:
            self.link.reject(edge.reject)
        elif edge.token is not None and not auth.verify_proof(key, auth_message, hello.proof):
            self.link.reject(rejects.token_invalid(hello.node_id))
        else:
            self.link.admit(Welcome(Epoch(len(edge.sessions) + 1), edge.limits, 1_700_000_000_000, edge.config))

    def on_open_runs(self, open_runs: OpenRuns) -> None:
        self.open_runs = open_runs
        self.link.answer_open_runs(
            RunVerdicts(
                tuple(
                    RunVerdict(run.run_id, run.attempt, *self.edge.verdicts.get(run.run_id, (0, Verdict.KEEP)))
                    for run in open_runs.runs
                )
            )
        )

    def on_open(self) -> None:
        self.edge.sessions.append(self)

    def on_message(self, message: Message) -> None:
        self.inbox.add(message)
        if isinstance(message, RuntimeEvent) and self.edge.acks:
            self.ack(message.run_id, message.attempt, message.seq)

    def on_data_resumed(self) -> None:
        """Nothing waits in a fake."""

    def on_closed(self, end: LinkEnd) -> None:
        self.end = end
        self.edge.ends.append(end)

    def unsettled_cancels(self) -> tuple[RunId, ...]:
        return self.cancels
