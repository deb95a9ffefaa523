"""Seconds, operations and JSON as the wire has them."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from iop_shared.errors import ProtocolError
from iop_shared.runs import Operation

OPERATIONS: Final = {operation.value: operation for operation in Operation}
_MAX_UINT32: Final = 2**32 - 1


def to_ms(seconds: float) -> int:
    """Returns milliseconds: 0 stays 0 (it means "the default" in places), more is never rounded down to it."""
    return 0 if seconds <= 0 else min(max(1, round(seconds * 1000)), _MAX_UINT32)


def to_json(value: Mapping[str, Any]) -> bytes:
    """Returns the JSON object; nothing at all for an empty one."""
    return orjson.dumps(dict(value)) if value else b""


def from_json(data: bytes, where: str) -> dict[str, Any]:
    """Returns the JSON object in `data`; empty for no bytes.

    Raises:
        ProtocolError: it is no JSON, or no object; says `where`.
    """
    if not data:
        return {}
    value = from_any_json(data, where)
    if not isinstance(value, dict):
        raise ProtocolError(f"{where} holds a JSON {type(value).__name__}, expected an object")
    return value


def from_any_json(data: bytes, where: str) -> Any:
    """Returns the JSON value in `data`.

    Raises:
        ProtocolError: it is no JSON; says `where`.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ProtocolError(f"{where} ({len(data)} bytes) is not JSON") from None
