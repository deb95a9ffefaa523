"""The answers to the edge's commands, as JSON values. Read-only views of the node."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from iop_node.core.live_run import LiveRun
from iop_node.core.outbox import OutboxStatistics
from iop_node.core.roster import Roster
from iop_shared.ids import BootId, NodeId
from iop_shared.link.messages import AdapterStatus


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """Counts of one moment. `live_runs` includes abandoned ones, which still hold their places."""

    live_runs: int
    abandoned_runs: int
    held_runs: int
    max_runs: int
    draining: bool
    pending_records: int
    outbox: OutboxStatistics
    uptime_s: float


def status_result(
    node_id: NodeId,
    boot_id: BootId,
    version: str,
    roster: Roster,
    live: Iterable[LiveRun],
    stats: NodeStatistics,
    now: float,
) -> dict[str, Any]:
    """What the command `status` gives. Durations in seconds, sizes in bytes."""
    return {
        "node_id": node_id,
        "boot_id": boot_id,
        "software_version": version,
        "uptime_s": round(stats.uptime_s, 3),
        "draining": stats.draining,
        "config": {"revision": roster.revision, "hash": roster.hash},
        "runs": {"live": stats.live_runs, "abandoned": stats.abandoned_runs, "max": stats.max_runs},
        "pending_records": stats.pending_records,
        "outbox": asdict(stats.outbox),
        "adapters": [
            {
                "name": slot.config.name,
                "type": slot.config.type,
                "gate": _gate(slot.status()),
                "engine": slot.probe.engine if slot.probe is not None else "",
                "in_flight": len(slot.live),
                "max_concurrent": slot.config.max_concurrent,
                "retired": slot.is_retired,
            }
            for slot in roster.all_slots()
        ],
        "live_runs": [
            {
                "run_id": run.key[0],
                "attempt": run.key[1],
                "adapter": run.slot.config.name,
                "target": run.record.target,
                "state": run.state,
                "age_s": round(now - run.accepted_at, 3),
                "events": run.outbox.emitted,
                "output_bytes": run.outbox.output_bytes,
                "held_bytes": run.outbox.held_bytes,
            }
            for run in live
        ],
    }


def capabilities_result(statuses: Iterable[AdapterStatus]) -> dict[str, Any]:
    """What the command `capabilities` gives."""
    return {
        "adapters": [
            {
                "name": status.name,
                "type": status.type,
                "gate": _gate(status),
                "max_concurrent": status.max_concurrent,
                "operations": [operation.value for operation in status.operations],
                "targets": list(status.targets),
                "any_target": status.any_target,
            }
            for status in statuses
        ]
    }


def _gate(status: AdapterStatus) -> dict[str, str]:
    gate = status.gate
    return {"state": gate.state.value, "check": gate.check, "reason": gate.reason}
