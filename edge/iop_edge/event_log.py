"""Writes the events of the bus to the log: one line per start and end of a run, one per change of a node."""

from collections.abc import Mapping
from typing import Final

from iop_edge.domain.views import EdgeEvent
from iop_shared.logs import get_logger

_log = get_logger("edge")

# What is not in here is written at debug.
LEVELS: Final[Mapping[str, str]] = {
    "edge_stopping": "info",
    "node_connected": "info",
    "node_lost": "warning",
    "node_refused": "warning",
    "node_draining_changed": "info",
    "node_notice_received": "info",
    "gate_changed": "info",
    "config_applied": "info",
    "config_rejected": "warning",
    "run_dispatched": "info",
    "run_rerouted": "warning",
    "run_detached": "warning",
    "run_reattached": "info",
    "run_finished": "info",
}
# A node that said goodbye has not been lost.
_QUIET_ENDS: Final = frozenset({"node_stopping", "join_checked", "replaced", "edge_stopping"})


def log_event(event: EdgeEvent) -> None:
    """Writes one event. Details hold no prompt and no output, by the rule of the bus."""
    level = LEVELS.get(event.kind, "debug")
    if event.kind == "node_lost" and event.detail.get("code") in _QUIET_ENDS:
        level = "info"
    fields = {key: value for key, value in event.detail.items() if value not in (None, "")}
    if event.node_id is not None:
        fields["node_id"] = event.node_id
    if event.run_id is not None:
        fields["run_id"] = event.run_id
    getattr(_log, level)(event.kind, **fields)
