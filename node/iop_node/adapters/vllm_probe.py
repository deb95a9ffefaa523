"""Asks an OpenAI-compatible engine, cheaply, whether it is ready and which models it has.

Two GETs: the health path (llama.cpp lists its model while it still loads it) and /v1/models. Never a completion:
a single-model llama.cpp answers any model's name.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from iop_node.adapters import openai_errors
from iop_node.adapters.openai_client import EngineClient
from iop_node.adapters.openai_errors import EngineAt
from iop_node.adapters.openai_json import parse_json
from iop_node.adapters.vllm_settings import VllmSettings
from iop_node.core.ports import ProbeResult
from iop_shared.errors import InvalidName, RunFailed
from iop_shared.ids import TargetName, check_target
from iop_shared.link.messages import Gate, GateState

_MAX_BODY_BYTES: Final = 1024 * 1024  # vLLM's list takes 500 bytes a model
_VERSION: Final = re.compile(r"[\w.+-]{1,40}")
_OWNERS: Final[Mapping[str, str]] = {"vllm": "vLLM", "llamacpp": "llama.cpp", "sglang": "SGLang"}
"""Flavours by the `owned_by` of their models."""

REACHABLE: Final = "engine_reachable"
READY: Final = "engine_ready"
ALLOWS: Final = "engine_key"
LISTS: Final = "engine_models"
"""The checks that decide this gate."""

_CHECK_OF: Final[Mapping[str, str]] = {
    "engine_unreachable": REACHABLE,
    "engine_stream_truncated": REACHABLE,
    "engine_loading": READY,
    "engine_overloaded": READY,
    "engine_auth_failed": ALLOWS,
}


class EngineProbe:
    """Probes one engine; remembers its flavour and version while it answers."""

    def __init__(self, adapter: str, settings: VllmSettings, client: EngineClient) -> None:
        self._settings = settings
        self._client = client
        self._at = EngineAt(adapter, settings.base_url)
        self._engine = ""

    @property
    def engine(self) -> str:
        """Flavour and version, for example "vLLM 0.32.0"; "" if not known."""
        return self._engine

    async def probe(self) -> ProbeResult:
        """Returns the gate, the targets offered now, and the engine. Within `probe_timeout_s`; never raises."""
        limit_s = self._settings.probe_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._check_health()
                targets = await self._list_targets()
        except RunFailed as failure:
            self._engine = ""  # another one may be there when it answers again
            return ProbeResult(Gate(GateState.CLOSED, _CHECK_OF.get(failure.code, LISTS), str(failure)))
        except TimeoutError:
            self._engine = ""
            reason = f"{self._at} did not answer within probe_timeout_s={limit_s:g}"
            return ProbeResult(Gate(GateState.CLOSED, REACHABLE, reason))
        return ProbeResult(Gate(GateState.OPEN, LISTS, f"targets: {len(targets)}"), targets, self._engine)

    async def _check_health(self) -> None:
        if not self._settings.health_path:
            return
        status, body, _ = await self._get(self._settings.health_path)
        if status == 503:  # everything else is for the list of models to say; many engines have no such path
            raise openai_errors.engine_answered(self._at, status, body)

    async def _list_targets(self) -> tuple[TargetName, ...]:
        status, body, server = await self._get("/v1/models")
        if status != 200:
            raise openai_errors.engine_answered(self._at, status, body)
        answer = parse_json(body)
        models = answer.get("data") if isinstance(answer, dict) else None
        if models is None and isinstance(answer, dict) and answer.get("object") == "list" and "data" in answer:
            models = []  # how Ollama says that it has none
        if not isinstance(models, list):
            raise openai_errors.bad_response(
                self._at, "answered /v1/models with something that is no list of models"
            )
        listed = [model for model in models if isinstance(model, dict)]
        if not self._engine:
            self._engine = await self._identify(server, listed)
        return offered_targets([str(model.get("id", "")) for model in listed], self._settings)

    async def _identify(self, server: str, models: Sequence[Mapping[str, Any]]) -> str:
        owner = str(models[0].get("owned_by", "")) if models else ""
        flavour = "llama.cpp" if server.startswith("llama.cpp") else _OWNERS.get(owner, "")
        match flavour:
            case "vLLM":
                version = (await self._ask("/version")).get("version")
            case "llama.cpp":
                version = (await self._ask("/props")).get("build_info")
            case _:
                version = None
        # Some packages build llama.cpp without a version and say b0-unknown.
        is_version = isinstance(version, str) and _VERSION.fullmatch(version) and not version.startswith("b0-")
        return f"{flavour} {version}" if flavour and is_version else flavour

    async def _ask(self, path: str) -> dict[str, Any]:
        status, body, _ = await self._get(path)
        answer = parse_json(body) if status == 200 else None
        return answer if isinstance(answer, dict) else {}

    async def _get(self, path: str) -> tuple[int, bytes, str]:
        answer = await self._client.get(self._at, path)
        try:
            body, _ = await answer.read(_MAX_BODY_BYTES)
        finally:
            await answer.aclose()
        return answer.status, body, answer.headers.get("server", "")


def offered_targets(models: Sequence[str], settings: VllmSettings) -> tuple[TargetName, ...]:
    """Returns what is offered of `models`: the allowed ones, then the aliases whose model is there."""
    known = set(models)
    names = [name for name in models if settings.targets is None or name in settings.targets]
    names += [alias for alias, model in settings.aliases.items() if model in known]
    offered: dict[TargetName, None] = {}
    for name in names:
        try:
            offered[check_target(name)] = None
        except InvalidName:
            continue  # could not be named in a request
    return tuple(offered)
