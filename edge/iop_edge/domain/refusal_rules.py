"""What a node's refusal means for the run: the one table. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

BUSY_RETRY_S: Final = 0.5
"""How long a node that said it is busy is left alone by that run. Chosen; change freely."""


class RefusalRule(StrEnum):
    """What to do with a run that a node refused."""

    BUSY = "busy"  # it may take it soon: wait in the queue, try others meanwhile
    ELSEWHERE = "elsewhere"  # not this node again, but another may
    FINAL = "final"  # the run itself is at fault: no node would take it


REFUSAL_RULES: Final[Mapping[str, RefusalRule]] = {
    "node_busy": RefusalRule.BUSY,
    "adapter_busy": RefusalRule.BUSY,
    "node_draining": RefusalRule.ELSEWHERE,
    "gate_closed": RefusalRule.ELSEWHERE,
    "journal_unavailable": RefusalRule.ELSEWHERE,
    "unknown_adapter": RefusalRule.ELSEWHERE,
    "unknown_target": RefusalRule.ELSEWHERE,
    "operation_unsupported": RefusalRule.ELSEWHERE,
    "cancelled": RefusalRule.ELSEWHERE,
    "bad_input": RefusalRule.FINAL,
}
UNKNOWN_RULE: Final = RefusalRule.ELSEWHERE
"""For a code of a newer node."""
