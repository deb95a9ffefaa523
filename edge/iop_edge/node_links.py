"""NodeLinks: what nodes say through their links, outside the stream of a run, and what they are told.

The transport reports here; the registry holds what is known. Everything happens at once, on the loop; only
`command` waits.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from iop_edge.dispatch import Dispatcher
from iop_edge.domain.bus import EventBus
from iop_edge.domain.effects import LinkKey
from iop_edge.domain.node_configs import NodeConfigs
from iop_edge.domain.ports import NodeLinkPort
from iop_edge.domain.registry import ConfigState, Newcomer, NodeRegistry
from iop_edge.domain.views import NodeView
from iop_shared.clock import Clock
from iop_shared.errors import BadRequest, Unavailable
from iop_shared.ids import CommandId, NodeId, RunId, new_command_id
from iop_shared.link.messages import (
    CapabilitiesChanged,
    ConfigPush,
    ConfigResult,
    DrainingChanged,
    EdgeNodeEvent,
    GateChanged,
    GoAway,
    Hello,
    Message,
    NodeCommandRequest,
    NodeCommandResponse,
    NodeConfigPayload,
    NodeNotice,
    OpenRun,
    RunAccepted,
    RunRefused,
    RunVerdicts,
)
from iop_shared.runtime_events import RuntimeEvent

CONFIG_REPEAT_S: Final = 10.0
"""A configuration that was not answered is sent again this often. Chosen; change freely."""
MAX_COMMANDS: Final = 64
"""Commands under way at once, over all nodes. Chosen; change freely."""


@dataclass(slots=True)
class _Command:
    link: LinkKey
    answer: "asyncio.Future[NodeCommandResponse]"


class NodeLinks:
    """The open links by node, and the registry behind them."""

    def __init__(
        self,
        *,
        clock: Clock,
        registry: NodeRegistry,
        configs: NodeConfigs,
        bus: EventBus,
        silent_after_s: float,
    ) -> None:
        self.by_node: dict[NodeId, NodeLinkPort] = {}
        self._clock, self._registry, self._configs, self._bus = clock, registry, configs, bus
        self._silent_after_s = silent_after_s
        self._commands: dict[CommandId, _Command] = {}
        self._pushed_at_s: dict[NodeId, float] = {}
        self._dispatcher: Dispatcher | None = None
        self._handlers: Mapping[type, Callable[[NodeLinkPort, Any], None]] = {
            RunAccepted: self._on_accepted,
            RunRefused: self._on_refused,
            ConfigResult: self._on_config_result,
            NodeCommandResponse: self._on_command_response,
            EdgeNodeEvent: self._on_node_event,
            GoAway: self._on_go_away,
        }
        self._node_event_handlers: Mapping[type, Callable[[LinkKey, Any], None]] = {
            CapabilitiesChanged: self._on_capabilities,
            GateChanged: self._on_gate,
            DrainingChanged: self._on_draining,
            NodeNotice: self._on_notice,
        }

    def connect_dispatcher(self, dispatcher: Dispatcher) -> None:
        """Says who takes what nodes say of runs. Once, by `EdgeService`."""
        self._dispatcher = dispatcher

    @property
    def _runs(self) -> Dispatcher:
        assert self._dispatcher is not None, "connect_dispatcher comes first"
        return self._dispatcher

    # --- a link comes and goes ----------------------------------------------------------------------

    def judge(self, hello: Hello, *, silent_after_s: float | None = None) -> Newcomer:
        """Says whether a node that proved its token may have the name.

        `silent_after_s`: how long the present link must have been silent to lose the name to another process;
        None: two heartbeat intervals.
        """
        link = self.by_node.get(hello.node_id)
        heard_ago_s = None if link is None else link.heard_ago_s()
        after_s = self._silent_after_s if silent_after_s is None else silent_after_s
        return self._registry.judge(hello.node_id, hello.boot_id, heard_ago_s, after_s)

    def config_for(self, hello: Hello) -> NodeConfigPayload:
        """Returns what the node should run."""
        return self._configs.payload_for(hello.node_id, (hello.config_revision, hello.config_hash))

    def refuse(self, node_id: NodeId | None, code: str, address: str, message: str) -> None:
        """Tells that a link ended before it was open: a node turned away, or something that is no node.

        Or, with code `join_checked`, a node that only wanted to know whether it would be let in.
        """
        kind = "node_join_checked" if code == "join_checked" else "node_refused"
        detail = {"code": code, "address": address, "message": message}
        self._bus.publish(kind, node_id=node_id, detail=detail)

    def open(
        self,
        link: NodeLinkPort,
        hello: Hello,
        wanted: NodeConfigPayload,
        address: str,
        open_runs: Sequence[OpenRun],
    ) -> tuple[RunVerdicts, Callable[[], None]] | None:
        """Gives the node's name to `link` and judges the runs that the node still holds.

        Returns the verdicts and what to call once they were sent; None: a newer link has the name already.
        """
        key = link.key
        if key.node_id in self._registry and self._registry.get(key.node_id).epoch >= key.epoch:
            return None
        old = self.by_node.get(key.node_id)
        if old is not None:
            old.close("replaced", f"node {key.node_id} opened a new link")
            self.lost(old.key, "replaced", "the node opened a new link")
        same_boot = self._registry.connect(
            key,
            boot_id=hello.boot_id,
            software_version=hello.software_version,
            address=address,
            labels=hello.labels,
            wanted=wanted,
            at_ms=self._clock.wall_ms(),
        )
        self.by_node[key.node_id] = link
        self._pushed_at_s[key.node_id] = self._clock.monotonic()
        verdicts, effects = self._runs.ledger.link_opened(key, open_runs, same_boot=same_boot)
        detail = {
            "epoch": key.epoch,
            "address": address,
            "software_version": hello.software_version,
            "open_runs": len(open_runs),
        }

        def after_answer() -> None:
            self._bus.publish("node_connected", node_id=key.node_id, detail=detail)
            self._runs.apply(effects)
            self._runs.drain_queue()

        return RunVerdicts(verdicts), after_answer

    def lost(self, key: LinkKey, code: str, message: str) -> None:
        """A link has ended; does nothing for one that does not have the node's name any more."""
        if not self._registry.disconnect(key):
            return
        del self.by_node[key.node_id]
        for command_id, command in tuple(self._commands.items()):
            if command.link == key:
                self._settle(command_id, NodeCommandResponse(command_id, None, "link_lost", message))
        effects = self._runs.ledger.link_lost(key)
        detached = sum(self._runs.ledger.in_flight_of(key.node_id).values())
        self._bus.publish(
            "node_lost",
            node_id=key.node_id,
            detail={"epoch": key.epoch, "code": code, "message": message, "detached_runs": detached},
        )
        self._runs.apply(effects)

    def unsettled_cancels(self, node_id: NodeId) -> tuple[RunId, ...]:
        """The runs whose cancel each heartbeat repeats."""
        return self._runs.ledger.cancelling_on(node_id)

    def close_all(self, code: str, message: str) -> None:
        """Says goodbye to every node."""
        for link in tuple(self.by_node.values()):
            link.close(code, message)

    # --- messages -----------------------------------------------------------------------------------

    def on_message(self, link: NodeLinkPort, message: Message) -> None:
        """Takes one message of an open link. Events of runs come first: they come once per token."""
        if type(message) is RuntimeEvent:
            self._runs.take_event(link, message)
            return
        if not self._registry.is_current(link.key):
            return  # an old epoch: dropped, and counted there
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(link, message)

    def _on_accepted(self, link: NodeLinkPort, message: RunAccepted) -> None:
        self._runs.apply(self._runs.ledger.accepted(link.key, message.run_id, message.attempt))

    def _on_refused(self, link: NodeLinkPort, message: RunRefused) -> None:
        self._runs.apply(self._runs.ledger.refused(link.key, message))

    def _on_config_result(self, link: NodeLinkPort, result: ConfigResult) -> None:
        if not self._registry.take_config_result(link.key, result):
            return  # about a configuration that is not wanted any more
        detail: dict[str, Any] = {"revision": result.revision}
        if not result.applied:
            detail["reasons"] = list(result.reasons)
        kind = "config_applied" if result.applied else "config_rejected"
        self._bus.publish(kind, node_id=link.key.node_id, detail=detail)
        self._runs.drain_queue()

    def _on_command_response(self, link: NodeLinkPort, response: NodeCommandResponse) -> None:
        command = self._commands.get(response.command_id)
        if command is not None and command.link == link.key:
            self._settle(response.command_id, response)

    def _on_node_event(self, link: NodeLinkPort, event: EdgeNodeEvent) -> None:
        self._node_event_handlers[type(event.body)](link.key, event.body)

    def _on_go_away(self, link: NodeLinkPort, message: GoAway) -> None:
        self._on_draining(link.key, DrainingChanged(True, message.reason))

    def _on_capabilities(self, key: LinkKey, body: CapabilitiesChanged) -> None:
        self._registry.take_capabilities(key, body)
        adapters = [
            {"name": s.name, "type": s.type, "gate": s.gate.state.value, "targets": len(s.targets)}
            for s in body.adapters
        ]
        self._bus.publish("node_capabilities_changed", node_id=key.node_id, detail={"adapters": adapters})
        self._runs.drain_queue()

    def _on_gate(self, key: LinkKey, body: GateChanged) -> None:
        if not self._registry.take_gate(key, body):
            return
        detail = {
            "adapter": body.adapter,
            "state": body.gate.state.value,
            "check": body.gate.check,
            "reason": body.gate.reason,
        }
        self._bus.publish("gate_changed", node_id=key.node_id, detail=detail)
        self._runs.drain_queue()

    def _on_draining(self, key: LinkKey, body: DrainingChanged) -> None:
        if not self._registry.take_draining(key, body):
            return
        detail = {"draining": body.draining, "reason": body.reason}
        self._bus.publish("node_draining_changed", node_id=key.node_id, detail=detail)
        self._runs.drain_queue()

    def _on_notice(self, key: LinkKey, body: NodeNotice) -> None:
        detail = {"code": body.code, "message": body.message}
        self._bus.publish("node_notice_received", node_id=key.node_id, detail=detail)

    # --- what nodes are told ------------------------------------------------------------------------

    def tick(self) -> None:
        """Repeats configurations that were not answered."""
        now_s = self._clock.monotonic()
        for node_id, link in tuple(self.by_node.items()):
            entry = self._registry.get(node_id)
            if entry.config_state is not ConfigState.PENDING:
                continue
            if now_s - self._pushed_at_s[node_id] >= CONFIG_REPEAT_S:
                self._pushed_at_s[node_id] = now_s
                link.send(ConfigPush(entry.wanted))
                self._bus.publish("config_pushed", node_id=node_id, detail={"revision": entry.wanted.revision})

    async def command(self, node_id: NodeId, command: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        """Runs a command on a node; see `EdgeService.node_command`."""
        self._registry.get(node_id)
        link = self.by_node.get(node_id)
        if link is None:
            raise Unavailable(
                f"node {node_id} is not connected; it can be asked when it is back", code="node_lost"
            )
        if len(self._commands) >= MAX_COMMANDS:
            raise Unavailable(f"{MAX_COMMANDS} commands are under way; try again later", code="busy")
        command_id = new_command_id()
        pending = _Command(link.key, asyncio.get_running_loop().create_future())
        self._commands[command_id] = pending
        try:
            link.send(NodeCommandRequest(command_id, command, arguments))
            async with asyncio.timeout(timeout_s):
                response = await pending.answer
        except TimeoutError:
            raise Unavailable(
                f"node {node_id} did not answer the command {command!r} within {timeout_s:g} s",
                code="node_silent",
            ) from None
        finally:
            self._commands.pop(command_id, None)
        if response.error_code == "link_lost":
            raise Unavailable(
                f"the link to node {node_id} ended while it was asked: {response.error_message}", code="node_lost"
            )
        if response.error_code:
            raise BadRequest(
                f"node {node_id} refused the command {command!r}: {response.error_message}",
                param="command",
                code=response.error_code,
            )
        return response.result

    def view(self, node_id: NodeId) -> NodeView:
        """Returns a node as surfaces show it.

        Raises:
            UnknownName: no such node.
        """
        link = self.by_node.get(node_id)
        return self._registry.view(
            node_id,
            in_flight=self._runs.ledger.in_flight_of(node_id),
            last_heard_s=None if link is None else link.heard_ago_s(),
            round_trip_s=None if link is None else link.round_trip_s(),
        )

    def _settle(self, command_id: CommandId, response: NodeCommandResponse) -> None:
        command = self._commands.pop(command_id, None)
        if command is not None and not command.answer.done():
            command.answer.set_result(response)
