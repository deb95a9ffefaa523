"""Rows of edge.db to values and back: runs and their lifecycle events."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from iop_edge.domain.views import Refusal, RunEventView, RunView
from iop_shared.errors import Layer
from iop_shared.ids import AdapterName, NodeId, ProfileName, RunId, SessionId, TargetName
from iop_shared.runs import Operation, RunState
from iop_shared.runtime_events import (
    Body,
    Cancelled,
    Closing,
    Failed,
    Gap,
    Interrupted,
    Notice,
    Started,
    Succeeded,
    Timings,
    Usage,
)

RUN_COLUMNS: Final = (
    "run_id", "attempt", "state", "adapter", "target", "operation", "created_at_ms", "node_id", "profile",
    "session", "source", "ended_at_ms", "code", "layer", "message", "finish_reason", "usage", "queued_s",
    "first_token_s", "total_s", "input_bytes", "output_bytes", "events", "cancel_reason", "cancel_confirmed",
    "cancel_took_ms", "refusals",
)  # fmt: skip
Row = tuple[Any, ...]


def run_to_row(view: RunView) -> Row:
    """Returns the row of a run, in the order of `RUN_COLUMNS`."""
    values = {name: getattr(view, name) for name in RUN_COLUMNS}
    values["state"], values["operation"] = view.state.value, view.operation.value
    values["usage"] = None if view.usage is None else _dump(_fields_of(view.usage))
    values["refusals"] = _dump([[r.node_id, r.code, r.message] for r in view.refusals]) if view.refusals else "[]"
    return tuple(values.values())


def run_from_row(row: Row) -> RunView:
    """Returns the run in a row that has the columns of `RUN_COLUMNS`."""
    values = dict(zip(RUN_COLUMNS, row, strict=True))
    confirmed = values["cancel_confirmed"]
    return RunView(
        **values
        | {
            "run_id": RunId(values["run_id"]),
            "state": RunState(values["state"]),
            "adapter": AdapterName(values["adapter"]),
            "target": TargetName(values["target"]),
            "operation": Operation(values["operation"]),
            "node_id": _or_none(NodeId, values["node_id"]),
            "profile": _or_none(ProfileName, values["profile"]),
            "session": _or_none(SessionId, values["session"]),
            "usage": None if values["usage"] is None else Usage(**orjson.loads(values["usage"])),
            "cancel_confirmed": None if confirmed is None else bool(confirmed),
            "refusals": tuple(
                Refusal(NodeId(n), code, text) for n, code, text in orjson.loads(values["refusals"])
            ),
        }
    )


def _or_none(make: Callable[[str], str], value: str | None) -> str | None:
    return None if value is None else make(value)


def _fields_of(value: Any) -> dict[str, Any]:
    # Not `asdict`: that copies deeply, at several times the cost, and this runs for every run.
    return {name: getattr(value, name) for name in value.__slots__}


def _dump(value: Any) -> str:
    return orjson.dumps(value).decode()


# --- events ----------------------------------------------------------------------------------------------
# Only what says how a run went; bodies with output, and whatever may quote one, are not kept.

LIFECYCLE_TYPES: Final[Mapping[type, str]] = {
    Started: "started",
    Usage: "usage",
    Notice: "notice",
    Gap: "gap",
    Succeeded: "succeeded",
    Failed: "failed",
    Cancelled: "cancelled",
    Interrupted: "interrupted",
}


def event_to_row(run_id: RunId, event: RunEventView) -> Row:
    """Returns (run_id, attempt, seq, at_ms, type, body). The body must be one of `LIFECYCLE_TYPES`."""
    body = event.body
    fields = _fields_of(body)
    # An engine's own error may quote the prompt.
    fields.pop("engine_body", None)
    closing: Closing | None = fields.get("closing")
    if closing is not None:
        usage = closing.usage
        fields["closing"] = _fields_of(closing) | {
            "output_sha256": closing.output_sha256.hex(),
            "timings": _fields_of(closing.timings),
            "usage": None if usage is None else _fields_of(usage),
        }
    return run_id, event.attempt, event.seq, event.at_ms, LIFECYCLE_TYPES[type(body)], _dump(fields)


def event_from_row(attempt: int, seq: int, at_ms: int, kind: str, body: str) -> RunEventView:
    """Returns the event that `event_to_row` made a row of."""
    return RunEventView(seq, attempt, at_ms, _MAKERS[kind](orjson.loads(body)))


def _closing(fields: dict[str, Any]) -> Closing:
    usage = fields["usage"]
    return Closing(
        **fields
        | {
            "output_sha256": bytes.fromhex(fields["output_sha256"]),
            "timings": Timings(**fields["timings"]),
            "usage": None if usage is None else Usage(**usage),
        }
    )


def _with_closing(kind: type[Succeeded | Cancelled | Interrupted]) -> Callable[[dict[str, Any]], Body]:
    return lambda fields: kind(**fields | {"closing": _closing(fields["closing"])})


_MAKERS: Final[Mapping[str, Callable[[dict[str, Any]], Body]]] = {
    "started": lambda fields: Started(**fields),
    "usage": lambda fields: Usage(**fields),
    "notice": lambda fields: Notice(**fields),
    "gap": lambda fields: Gap(**fields),
    "succeeded": _with_closing(Succeeded),
    "cancelled": _with_closing(Cancelled),
    "interrupted": _with_closing(Interrupted),
    "failed": lambda fields: Failed(
        **fields | {"layer": Layer(fields["layer"]), "closing": _closing(fields["closing"])}
    ),
}
