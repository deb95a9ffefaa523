"""What a peer wrote, made safe to log and to show: anybody may send it, before any token is seen. Pure."""

import re
from typing import Final

MAX_SENTENCE_CHARS: Final = 500
"""Chosen: twice our longest own sentence."""
MAX_WORD_CHARS: Final = 64
MAX_LABEL_CHARS: Final = 128
_CODE: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")


def safe_sentence(text: str, limit: int = MAX_SENTENCE_CHARS) -> str:
    """Returns `text` on one line, without control characters, cut to `limit` with a note of what is missing."""
    cut = text[:limit]
    shown = cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)
    return shown if len(text) <= limit else f"{shown}... ({len(text) - limit} more characters)"


def safe_code(text: str, otherwise: str) -> str:
    """Returns `text` if it has the form of a code (it may become a metric's label), else `otherwise`."""
    return text if _CODE.fullmatch(text) is not None else otherwise


def is_word(text: str, limit: int = MAX_WORD_CHARS) -> bool:
    """Whether `text` is printable and has at most `limit` characters, as versions and labels have."""
    return len(text) <= limit and text.isprintable()
