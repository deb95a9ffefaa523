"""Every kind of event on the bus, with what it says. docs/events.md lists the same. Pure."""

from collections.abc import Mapping
from typing import Final

from iop_shared.runs import RunStep

EVENT_KINDS: Final[Mapping[str, str]] = {
    "edge_started": "the edge takes nodes and clients; detail: link, http",
    "edge_stopping": "the edge takes no new runs; detail: reason",
    "node_connected": "a node's link is open; detail: epoch, address, software_version, open_runs",
    "node_lost": "a node's link has ended; detail: epoch, code, message, detached_runs",
    "node_refused": "a link ended before it was open; detail: code, address, message",
    "node_join_checked": "`iop-node join` found its token good; detail: code, address, message",
    "node_draining_changed": "a node stopped or resumed taking runs; detail: draining, reason",
    "node_capabilities_changed": "a node told all of its adapters; detail: adapters",
    "node_notice_received": "a node said something worth knowing; detail: code, message",
    "gate_changed": "an adapter's gate moved; detail: adapter, state, check, reason",
    "config_pushed": "a node was told its configuration again; detail: revision",
    "config_applied": "a node runs its configuration; detail: revision",
    "config_rejected": "a node keeps its old configuration; detail: revision, reasons",
    "run_queued": "a run was taken; detail: adapter, target, operation",
    "run_dispatched": "a run was sent to a node; detail: attempt, adapter, target",
    "run_rerouted": "a run goes to another node, nothing had been produced; detail: attempt",
    "run_started": "a node has accepted a run; detail: attempt",
    "run_detached": "the link to a run's node is lost, the run goes on there; detail: attempt",
    "run_reattached": "the node of a detached run is back; detail: attempt",
    "run_cancel_requested": "a run was asked to stop; detail: reason",
    "run_finished": "a run has ended; detail: outcome, code, layer, adapter, target, total_s and counts",
}

STEP_KINDS: Final[Mapping[RunStep, str]] = {
    RunStep.DISPATCH: "run_dispatched",
    RunStep.REROUTE: "run_rerouted",
    RunStep.START: "run_started",
    RunStep.DETACH: "run_detached",
    RunStep.REATTACH: "run_reattached",
    RunStep.CANCEL: "run_cancel_requested",
}
