"""What stands behind one link: the edge's messages become calls of the core, the core's words become messages.

One Session per connection; it dies with it. Nothing in here waits: what takes time runs in an owned task.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from iop_node.core.ports import NodeHandler
from iop_node.transport.input_parts import InputParts
from iop_shared.aio.connection import LinkConnection
from iop_shared.aio.tasks import TaskOwner
from iop_shared.clock import Clock
from iop_shared.errors import TooLarge
from iop_shared.ids import RunId
from iop_shared.link.effects import LinkEnd
from iop_shared.link.messages import (
    MAX_FRAME_BYTES,
    CancelRun,
    ConfigPush,
    EdgeNodeEvent,
    EdgeNodeEventBody,
    EventAck,
    GoAway,
    LinkLimits,
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
from iop_shared.logs import get_logger
from iop_shared.runs import RunRequest
from iop_shared.runtime_events import RuntimeEvent

log = get_logger("node")

MAX_COMMANDS: Final = 16
"""Commands under way at once; more are answered busy. Chosen."""


class Session:
    """The NodeLinkHandler of one connection, and the EdgePort that the core gets while it is open."""

    def __init__(
        self,
        connection: LinkConnection,
        node: NodeHandler,
        tasks: TaskOwner,
        clock: Clock,
        *,
        max_input_bytes: int,
        on_settled: Callable[["Session"], None],
    ) -> None:
        self._connection, self._node, self._tasks, self._clock = connection, node, tasks, clock
        self._on_settled = on_settled
        self._inputs = InputParts(max_input_bytes)
        self._input_timer: asyncio.TimerHandle | None = None
        self._config: NodeConfigPayload | None = None
        self._is_applying = False
        self._commands = 0
        self.limits = LinkLimits()
        self.epoch = 0
        self.is_open = False
        self.end: LinkEnd | None = None
        self._on: Final[dict[type, Callable[[Any], None]]] = {
            EventAck: self._on_ack,
            RunSubmission: self._on_submission,
            RunInputPart: self._on_part,
            CancelRun: self._on_cancel,
            ConfigPush: self._on_config_push,
            NodeCommandRequest: self._on_command,
            GoAway: self._on_go_away,
        }

    # --- NodeLinkHandler -----------------------------------------------------------------------------

    def on_welcome(self, welcome: Welcome) -> tuple[OpenRun, ...]:
        """See NodeLinkHandler."""
        if welcome.limits.max_frame_bytes < MAX_FRAME_BYTES:
            # What runs say is cut for this size before it is numbered, so it cannot be cut again for a link.
            self._connection.close(
                "frame_limit_too_small",
                f"the edge allows frames of {welcome.limits.max_frame_bytes} bytes, "
                f"this node needs {MAX_FRAME_BYTES}",
            )
            return ()
        self.limits, self.epoch = welcome.limits, welcome.epoch
        self._config = welcome.config
        return self._node.open_runs()

    def on_open(self, verdicts: RunVerdicts) -> None:
        """See NodeLinkHandler."""
        self.is_open = True
        self._node.on_link_open(self, verdicts.runs)
        self._apply_config()
        self._on_settled(self)

    def on_message(self, message: Message) -> None:
        """See NodeLinkHandler."""
        take = self._on.get(type(message))
        if take is None:
            log.warning("message_unexpected", kind=type(message).__name__)
        else:
            take(message)

    def on_data_resumed(self) -> None:
        """See NodeLinkHandler."""
        self._node.on_link_resumed()

    def on_closed(self, end: LinkEnd) -> None:
        """See NodeLinkHandler."""
        self.end = end
        if self._input_timer is not None:
            self._input_timer.cancel()
        if self.is_open:
            self.is_open = False
            self._node.on_link_lost(self.limits.disconnect_grace_s)
        self._on_settled(self)

    # --- EdgePort ------------------------------------------------------------------------------------

    def run_accepted(self, run_id: RunId, attempt: int) -> None:
        """See EdgePort."""
        self._send(RunAccepted(run_id, attempt))

    def run_refused(self, refused: RunRefused) -> None:
        """See EdgePort."""
        self._send(refused)

    def runtime_event(self, event: RuntimeEvent) -> None:
        """See EdgePort. The hot path."""
        connection = self._connection
        connection.send(event)
        if connection.data_paused:
            self._node.on_link_paused()

    def node_event(self, body: EdgeNodeEventBody) -> None:
        """See EdgePort."""
        self._send(EdgeNodeEvent(self._clock.wall_ms(), body))

    def go_away(self, reason: str, deadline_s: float) -> None:
        """Asks the edge for no new runs; the open ones may end until the deadline."""
        self._send(GoAway(reason, deadline_s=deadline_s))

    def _send(self, message: Message) -> None:
        try:
            self._connection.send(message)
        except TooLarge as error:
            # An adapter with tens of thousands of targets, for example. The link goes on without this message.
            log.error("message_too_large", kind=type(message).__name__, error=str(error))

    # --- runs ----------------------------------------------------------------------------------------

    def _on_ack(self, ack: EventAck) -> None:
        for run in ack.runs:
            self._node.on_ack(run.run_id, run.attempt, run.seq)

    def _on_submission(self, submission: RunSubmission) -> None:
        request = submission.request
        if submission.input_bytes > len(request.input) and not self._node.wants_input(request):
            # Refused (or answered again) at once, instead of after megabytes; the parts are dropped as they come.
            self._node.on_run_request(request)
            return
        self._take_input(self._inputs.begin(submission, self._clock.monotonic()))

    def _on_part(self, part: RunInputPart) -> None:
        self._take_input(self._inputs.add(part, self._clock.monotonic()))

    def _take_input(self, outcome: RunRequest | RunRefused | None) -> None:
        if isinstance(outcome, RunRequest):
            self._node.on_run_request(outcome)
        elif isinstance(outcome, RunRefused):
            self.run_refused(outcome)
        self._watch_inputs()

    def _on_cancel(self, cancel: CancelRun) -> None:
        self._node.on_cancel(cancel.run_id, cancel.reason)
        # Cancelled while its input was on the way: the core refuses it now, the rest is dropped as it comes.
        for request in self._inputs.drop(cancel.run_id):
            self._node.on_run_request(request)

    def _watch_inputs(self) -> None:
        deadline = self._inputs.next_deadline()
        if deadline is not None and self._input_timer is None:
            delay_s = max(0.0, deadline - self._clock.monotonic())
            self._input_timer = asyncio.get_running_loop().call_later(delay_s, self._expire_inputs)

    def _expire_inputs(self) -> None:
        self._input_timer = None
        for refused in self._inputs.expire(self._clock.monotonic()):
            self.run_refused(refused)
        self._watch_inputs()

    # --- configuration and commands ------------------------------------------------------------------

    def _on_config_push(self, push: ConfigPush) -> None:
        self._config = push.config
        self._apply_config()

    def _apply_config(self) -> None:
        """Applies what was pushed last; what is pushed meanwhile follows, and only the last of it."""
        if not self._is_applying:
            self._is_applying = True
            self._tasks.spawn(self._apply_configs(), name="apply configuration")

    async def _apply_configs(self) -> None:
        try:
            while self._config is not None and self.is_open:
                config, self._config = self._config, None
                self._send(await self._node.on_config(config))
        finally:
            self._is_applying = False

    def _on_command(self, request: NodeCommandRequest) -> None:
        if self._commands >= MAX_COMMANDS:
            message = f"{self._commands} commands are under way (limit {MAX_COMMANDS}); try again"
            self._send(NodeCommandResponse(request.command_id, error_code="busy", error_message=message))
            return
        self._commands += 1
        self._tasks.spawn(self._answer(request), name=f"command {request.command}")

    async def _answer(self, request: NodeCommandRequest) -> None:
        try:
            response = await self._node.on_command(request)
            try:
                self._connection.send(response)
            except TooLarge as error:
                self._send(
                    NodeCommandResponse(request.command_id, error_code="too_large", error_message=str(error))
                )
        finally:
            self._commands -= 1

    def _on_go_away(self, go_away: GoAway) -> None:
        # The edge sends nothing new by itself; its hint for the next dial comes with the end of the link.
        log.info("edge_draining", reason=go_away.reason, deadline_s=go_away.deadline_s)
