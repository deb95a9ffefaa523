"""Identifiers: their types, how they are made and what they may look like. Pure."""

import os
import re
import time
from typing import Final, NewType

from iop_shared.errors import InvalidName

NodeId = NewType("NodeId", str)
"""Chosen by the operator, stable over restarts. `check_name` rules."""
BootId = NewType("BootId", str)
"""One per process start of a node: 32 hex digits."""
RunId = NewType("RunId", str)
"""UUIDv7 in its canonical 36-character text form; unique across edges, sorts by time of birth."""
SessionId = NewType("SessionId", str)
"""Chosen by a client; groups runs."""
AdapterName = NewType("AdapterName", str)
TargetName = NewType("TargetName", str)
"""A model name or a command profile: the adapter's own spelling, so nearly anything printable."""
ProfileName = NewType("ProfileName", str)
TokenId = NewType("TokenId", str)
"""The public half of a node's token."""
CommandId = NewType("CommandId", str)
Epoch = NewType("Epoch", int)
"""Grows with each link of a node, over restarts of the edge too."""

# Fits a DNS label, a file name and a metric label. 63: the length of a DNS label (RFC 1035).
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_RUN_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
MAX_TARGET_CHARS: Final = 256


def new_run_id(now_ms: int | None = None) -> RunId:
    """Returns a fresh UUIDv7 (RFC 9562, section 5.7). `now_ms`: wall clock, for tests."""
    ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    value = (ms & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return RunId(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")


def new_boot_id() -> BootId:
    """Returns a fresh boot id."""
    return BootId(os.urandom(16).hex())


def new_command_id() -> CommandId:
    """Returns a fresh command id."""
    return CommandId(os.urandom(8).hex())


def is_run_id(text: str) -> bool:
    """Whether `text` has the form of a run id."""
    return _RUN_ID.fullmatch(text) is not None


def check_name(kind: str, text: str) -> str:
    """Returns `text` if it may name a node, adapter or profile.

    Raises:
        InvalidName: with the kind, the value and the rule.
    """
    if _NAME.fullmatch(text) is None:
        raise InvalidName(
            f"{kind} {text!r} is not a valid name: use 1 to 63 of a-z 0-9 . _ - "
            "and begin and end with a letter or digit"
        )
    return text


def check_target(text: str) -> TargetName:
    """Returns `text` as a target name if it is printable and of at most `MAX_TARGET_CHARS` characters.

    Raises:
        InvalidName: with the value (cut) and the rule.
    """
    if not 1 <= len(text) <= MAX_TARGET_CHARS or not text.isprintable():
        raise InvalidName(
            f"target {text[:40]!r} ({len(text)} characters) is not valid: "
            f"use 1 to {MAX_TARGET_CHARS} printable characters"
        )
    return TargetName(text)
