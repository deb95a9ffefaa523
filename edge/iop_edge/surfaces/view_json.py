"""The JSON forms of the views: runs, nodes, models, events of the edge. Field names are the views'. Pure."""

from typing import Any

from iop_edge.domain.views import EdgeEvent, ModelView, NodeView, RunView
from iop_edge.surfaces.event_json import usage_json
from iop_shared.link.messages import AdapterStatus


def run_json(run: RunView) -> dict[str, Any]:
    """Returns a run. Never prompt or output."""
    return {
        "run_id": run.run_id,
        "attempt": run.attempt,
        "state": run.state.value,
        "adapter": run.adapter,
        "target": run.target,
        "operation": run.operation.value,
        "created_at_ms": run.created_at_ms,
        "node_id": run.node_id,
        "profile": run.profile,
        "session": run.session,
        "source": run.source,
        "ended_at_ms": run.ended_at_ms,
        "code": run.code,
        "layer": run.layer,
        "message": run.message,
        "finish_reason": run.finish_reason,
        "usage": None if run.usage is None else usage_json(run.usage),
        "queued_s": run.queued_s,
        "first_token_s": run.first_token_s,
        "total_s": run.total_s,
        "input_bytes": run.input_bytes,
        "output_bytes": run.output_bytes,
        "events": run.events,
        "cancel_reason": run.cancel_reason,
        "cancel_confirmed": run.cancel_confirmed,
        "cancel_took_ms": run.cancel_took_ms,
        "refusals": [
            {"node_id": refusal.node_id, "code": refusal.code, "message": refusal.message}
            for refusal in run.refusals
        ],
    }


def node_json(node: NodeView) -> dict[str, Any]:
    """Returns a node with its adapters."""
    return {
        "node_id": node.node_id,
        "state": node.state,
        "epoch": node.epoch,
        "boot_id": node.boot_id,
        "software_version": node.software_version,
        "address": node.address,
        "labels": dict(node.labels),
        "connected_at_ms": node.connected_at_ms,
        "last_heard_s": node.last_heard_s,
        "config_revision": node.config_revision,
        "config_state": node.config_state,
        "config_reasons": list(node.config_reasons),
        "adapters": [adapter_json(adapter) for adapter in node.adapters],
        "in_flight": dict(node.in_flight),
        "round_trip_s": node.round_trip_s,
    }


def adapter_json(adapter: AdapterStatus) -> dict[str, Any]:
    """Returns what a node says of one of its adapters."""
    return {
        "name": adapter.name,
        "type": adapter.type,
        "gate": {
            "state": adapter.gate.state.value,
            "check": adapter.gate.check,
            "reason": adapter.gate.reason,
        },
        "max_concurrent": adapter.max_concurrent,
        "operations": [operation.value for operation in adapter.operations],
        "targets": list(adapter.targets),
        "any_target": adapter.any_target,
    }


def model_json(model: ModelView) -> dict[str, Any]:
    """Returns a model name with what stands behind it and the nodes that offer it now."""
    return {
        "name": model.name,
        "adapter": model.adapter,
        "target": model.target,
        "nodes": list(model.nodes),
        "is_profile": model.is_profile,
    }


def edge_event_json(event: EdgeEvent) -> dict[str, Any]:
    """Returns an event of the bus."""
    return {
        "event_id": event.event_id,
        "at_ms": event.at_ms,
        "kind": event.kind,
        "node_id": event.node_id,
        "run_id": event.run_id,
        "detail": dict(event.detail),
    }
