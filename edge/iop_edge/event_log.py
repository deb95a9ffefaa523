"""Writes the events of the bus to the log: one line per run, at its end, and one per change of a node.

The start of a run is written at debug: its line cost more CPU than routing the run (bench/relay.py), and the
line of its end says when it began. What runs now is shown by `iop runs`.
"""

import logging
from collections.abc import Mapping
from typing import Final

from iop_edge.domain.views import EdgeEvent
from iop_shared.logs import get_logger

# What is not in here is written at debug.
LEVELS: Final[Mapping[str, str]] = {
    "edge_stopping": "info",
    "node_connected": "info",
    "node_lost": "warning",
    "node_refused": "warning",
    "node_join_checked": "info",
    "node_draining_changed": "info",
    "node_notice_received": "info",
    "gate_changed": "info",
    "config_applied": "info",
    "config_rejected": "warning",
    "run_rerouted": "warning",
    "run_detached": "warning",
    "run_reattached": "info",
    "run_finished": "info",
}
# A node that said goodbye has not been lost.
_QUIET_ENDS: Final = frozenset({"node_stopping", "replaced", "edge_stopping"})


class EventLog:
    """Listens to the bus. Make it after `setup_logging`: it binds its logger once, since runs end often."""

    def __init__(self) -> None:
        self._log = get_logger("edge").bind()
        self._is_debug = self._log.is_enabled_for(logging.DEBUG)

    def on_event(self, event: EdgeEvent) -> None:
        """Writes one event. Details hold no prompt and no output, by the rule of the bus."""
        level = LEVELS.get(event.kind, "debug")
        if level == "debug" and not self._is_debug:
            return
        if event.kind == "node_lost" and event.detail.get("code") in _QUIET_ENDS:
            level = "info"
        fields = {key: value for key, value in event.detail.items() if value not in (None, "")}
        if event.node_id is not None:
            fields["node_id"] = event.node_id
        if event.run_id is not None:
            fields["run_id"] = event.run_id
        getattr(self._log, level)(event.kind, **fields)
