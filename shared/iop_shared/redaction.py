"""What must not be shown: which keys name secrets, and how secrets are cut out of text. Pure."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

MASK: Final = "***"

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS: Final = frozenset(
    {"secret", "password", "passwd", "passphrase", "authorization", "cookie", "credential", "credentials", "proof"}
)
_SECRET_ENDS: Final = frozenset({("token",), ("token", "hash")})
_SECRET_KEYS: Final = frozenset({"api", "private", "stored", "client", "server", "session", "access", "signing"})
# What runs are asked and what they answer: only its size may be told.
_CONTENT_KEYS: Final = frozenset(
    {"prompt", "messages", "content", "completion", "reasoning", "arguments", "input"}
)

# Tuples: a union as `isinstance` takes it too is made anew at each call, and each field of each line comes here.
_NUMBERS: Final = (bool, int, float)
_BYTES: Final = (bytes, bytearray, memoryview)
_LISTS: Final = (list, tuple, set, frozenset)

_PATTERNS: Final = (
    # Our own tokens. The id in the middle is public and tells the operator which one it was.
    (re.compile(r"iopn_([a-z0-9]{12})_[A-Za-z0-9_-]+"), rf"iopn_\1_{MASK}"),
    (re.compile(r"iopn_(?![a-z0-9]{12}_\*\*\*)[A-Za-z0-9_-]+"), f"iopn_{MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+(?!\*\*\*)[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {MASK}"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"), f"sk-{MASK}"),
    (re.compile(r"(://[^/\s:@]*:)[^/\s@]+@"), rf"\1{MASK}@"),
    (
        re.compile(
            r"""(?ix)((?<![a-z])(?:token|secret|password|passwd|api[_-]?key|authorization|client_key|stored_key)
            ["']?\s*(?:=|:(?=\s*["']))\s*["']?)(?!\*\*\*)[^\s"',;&)}\]]+"""
        ),
        rf"\1{MASK}",
    ),
)
# Each pattern needs one of these (in lower case). Most text has none, and one look is five times cheaper
# than six substitutions; two log lines a run pass through here.
_MARKERS: Final = re.compile("iopn_|sk-|://|bearer|basic|token|secret|passw|key|authorization")


@lru_cache(maxsize=1024)  # keys are field names of ours: few, and the same ones in every line
def is_secret_key(key: str) -> bool:
    """Whether a key of this name holds a secret (`token`, `api_key` ...; not `token_id`, `max_tokens`)."""
    words = tuple(w.lower() for w in _WORDS.findall(key))
    if not words:
        return False
    if any(w in _SECRET_WORDS or w == "apikey" for w in words):
        return True
    if words[-1:] in _SECRET_ENDS or words[-2:] in _SECRET_ENDS:
        return True
    return len(words) >= 2 and words[-1] == "key" and words[-2] in _SECRET_KEYS


def redact_text(text: str) -> str:
    """Returns `text` with everything that looks like a secret masked."""
    if _MARKERS.search(text.lower()) is None:
        return text
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


@lru_cache(maxsize=1024)
def is_content_key(key: str) -> bool:
    """Whether a key of this name holds what a run is asked or answers."""
    return key.lower() in _CONTENT_KEYS


def redact(key: str, value: Any) -> Any:
    """Returns what may be shown of `value` under `key`: secrets masked, contents of runs as their size.

    Goes into mappings, lists and tuples; other objects that are neither number, bool nor None are shown by
    their masked `str`.
    """
    if value is None or isinstance(value, _NUMBERS):
        return MASK if is_secret_key(key) and value is not None and not isinstance(value, bool) else value
    if is_secret_key(key):
        return MASK
    if isinstance(value, _BYTES):
        return f"<{len(value)} bytes>"
    if is_content_key(key) and not isinstance(value, BaseException):
        return f"<{len(value)} characters>" if isinstance(value, str) else "<not shown>"
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {redact_text(str(k)): redact(str(k), v) for k, v in value.items()}
    if isinstance(value, _LISTS):
        return [redact("", v) for v in value]
    return redact_text(str(value))
