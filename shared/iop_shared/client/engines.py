"""Engines that already listen on this machine: looked for on their usual loopback ports, by GET /v1/models alone.

Never a completion: that could load a model or wake a sleeping card.
"""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import httpx

USUAL_PORTS: Final[dict[int, str]] = {11434: "ollama", 8000: "vllm", 8080: "llamacpp", 1234: "lmstudio"}
"""Where each engine listens unless it is told otherwise, by its own documentation."""
PROBE_TIMEOUT_S: Final = 1.0
"""An engine lists its models within milliseconds; a port that is silent this long is no engine."""
MAX_ANSWER_BYTES: Final = 1024 * 1024
_OWNERS: Final = {"vllm": "vllm", "llamacpp": "llamacpp", "library": "ollama", "sglang": "sglang"}
"""What engines call themselves in `owned_by`; it wins over the port."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An OpenAI-compatible engine that answered. `base_url` is without `/v1`."""

    kind: str
    base_url: str
    models: tuple[str, ...]


def find_engines(
    ports: Sequence[int] = tuple(USUAL_PORTS), *, skip: Collection[int] = (), timeout_s: float = PROBE_TIMEOUT_S
) -> list[Engine]:
    """Returns the engines that answer on 127.0.0.1, in the order of `ports`, within about `timeout_s`.

    `skip`: ports that are known to be something else (our own edge).
    """
    wanted = [port for port in ports if port not in skip]
    if not wanted:
        return []
    with ThreadPoolExecutor(len(wanted), thread_name_prefix="probe") as pool:
        found = list(pool.map(lambda port: probe_engine(f"http://127.0.0.1:{port}", timeout_s), wanted))
    return [engine for engine in found if engine is not None]


def probe_engine(base_url: str, timeout_s: float = PROBE_TIMEOUT_S) -> Engine | None:
    """Returns the engine at `base_url`, or None if nothing there answers like one.

    An IOP edge answers the same route; it is recognised by `owned_by` and is no engine.
    """
    try:
        # No proxy, credentials or certificates of the machine: this is plain HTTP that never leaves it.
        with (
            httpx.Client(trust_env=False, verify=False, timeout=timeout_s) as client,
            client.stream("GET", f"{base_url}/v1/models") as response,
        ):
            if response.status_code != httpx.codes.OK:
                return None
            body = b""
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    return None
            answer = httpx.Response(200, content=body).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None
    entries = _entries_of(answer)
    if entries is None or any(str(entry.get("owned_by", "")).startswith("iop") for entry in entries):
        return None
    owner = next((str(entry["owned_by"]) for entry in entries if entry.get("owned_by")), "")
    port = httpx.URL(base_url).port or 80
    kind = _OWNERS.get(owner) or USUAL_PORTS.get(port, "engine")
    return Engine(kind, base_url, tuple(str(entry["id"]) for entry in entries))


def _entries_of(answer: Any) -> list[dict[str, Any]] | None:
    """Returns the models of an OpenAI-shaped list, or None if `answer` is not one."""
    entries = answer.get("data") if isinstance(answer, dict) else None
    # Ollama without a model says null.
    if entries is None and isinstance(answer, dict) and answer.get("object") == "list" and "data" in answer:
        entries = []
    if not isinstance(entries, list):
        return None
    if not all(isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in entries):
        return None
    return entries
