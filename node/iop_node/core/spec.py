"""What an adapter is told to execute and what it says about itself. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from iop_shared.ids import AdapterName, RunId, SessionId, TargetName
from iop_shared.runs import Operation, RunLimits


@dataclass(frozen=True, slots=True)
class ExecutionSpec:
    """One resolved run: everything an adapter needs, nothing it must look up.

    `input`, `engine_json`, `stream`, `requested_model` and `options` mean what they mean in
    `iop_shared.runs.RunRequest`. `options` stand under the client's own: a key that the input has wins.
    """

    run_id: RunId
    adapter: AdapterName
    target: TargetName
    operation: Operation
    input: bytes = field(repr=False)
    content_type: str = "application/json"
    limits: RunLimits = RunLimits()
    session: SessionId | None = None
    engine_json: bool = False
    stream: bool = True
    requested_model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an adapter can do, whatever its engine's state is.

    `any_target`: it takes targets that `list_targets` does not name.
    """

    operations: tuple[Operation, ...]
    any_target: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """What an adapter returns when a run is complete. `finish_reason`: the engine's word, "" if none."""

    finish_reason: str = ""
