"""The captured answers of real engines (tests/captures), taken apart."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "captures"


@dataclass(frozen=True, slots=True)
class Capture:
    """One captured answer. `body`: without chunked framing."""

    name: str
    status: int
    body: bytes


def load(name: str) -> Capture:
    """Returns the answer in `name`, for example "vllm/chat_stream.sse"."""
    head, separator, body = (FOLDER / name).read_bytes().partition(b"\r\n\r\n")
    assert separator, f"{name} has no empty line after its headers"
    return Capture(name, int(head.split(b" ")[1]), body)


def names(pattern: str) -> list[str]:
    """Returns the names that match, for example "*/err_*.http"."""
    return sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob(pattern))
