"""What the mock adapter can be told to do: its settings, its targets and the script of one run. Pure."""

from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from iop_node.core.spec import ExecutionSpec
from iop_shared.errors import InvalidConfig, Layer, RunFailed, nearest
from iop_shared.ids import AdapterName
from iop_shared.link.messages import GateState
from iop_shared.runs import Operation

_Seconds = Annotated[float, Field(ge=0, le=86_400)]
_Count = Annotated[int, Field(ge=0, le=10_000_000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class MockSettings(_Strict):
    """The settings of one mock adapter. `seed` and the delays are defaults for every script."""

    seed: int = 0
    delay_s: _Seconds = 0.0
    first_delay_s: _Seconds = 0.0
    gate: Literal["open", "closed", "unknown", "not_applicable"] = "not_applicable"
    gate_reason: str = ""

    @property
    def gate_state(self) -> GateState:
        """The gate that its probe tells."""
        return GateState(self.gate)


class ScriptedToolCall(_Strict):
    """A tool call that the run makes instead of further text."""

    name: str
    arguments: str = Field(default="{}", repr=False)
    id: str = "call_mock_0"


class ScriptedUsage(_Strict):
    """Token counts to tell instead of the real ones."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Script(_Strict):
    """What one run does, step by step. A step is one token; `*_at` counts the tokens said before it happens.

    `tokens`: how many; None: as many as the text has, or 20. `text`: what to say instead. `jitter_s`: added to
    each delay, drawn from `seed`. `fail_at`: fails with `fail_code`. `crash_at`: raises what an adapter must
    not. `hang_at`: says nothing more (the run's own timeouts end it). `ignore_cancel`: goes on for up to
    `ignore_cancel_s`. `cancel_delay_s`: takes so long to stop. `wait_ready`: False ignores back-pressure.
    `token_bytes`: pads each token. `usage`: False tells none. `notice`: says so first.
    """

    tokens: _Count | None = None
    text: str | None = Field(default=None, repr=False)
    reasoning: str = Field(default="", repr=False)
    tool_call: ScriptedToolCall | None = None
    logprobs: bool = False
    notice: str = ""
    first_delay_s: _Seconds | None = None
    delay_s: _Seconds | None = None
    jitter_s: _Seconds = 0.0
    seed: int | None = None
    fail_at: _Count | None = None
    fail_code: str = "mock_failure"
    fail_layer: Literal["host", "accelerator", "serving", "target", "node"] = "serving"
    fail_message: str = "the script of this run says that it fails here"
    fail_retryable: bool = False
    fail_status: int = 0
    crash_at: _Count | None = None
    hang_at: _Count | None = None
    ignore_cancel: bool = False
    ignore_cancel_s: _Seconds = 10.0
    cancel_delay_s: _Seconds = 0.0
    confirm_cancel: bool = True
    wait_ready: bool = True
    token_bytes: Annotated[int, Field(ge=0, le=16 * 1024 * 1024)] = 0
    usage: bool | ScriptedUsage = True
    finish_reason: str | None = None
    dimensions: Annotated[int, Field(ge=1, le=65_536)] = 8


TARGETS: Final[dict[str, dict[str, Any]]] = {
    "echo": {},
    "lorem": {},
    "tokens": {},
    "fail": {"fail_at": 3},
    "hang": {"hang_at": 0},
    "slow": {"first_delay_s": 1.0, "delay_s": 0.5},
    "ignore-cancel": {"tokens": 1000, "delay_s": 0.05, "ignore_cancel": True},
    "embed": {},
}
"""Each target is a script; what a run says in `mock` is put over it."""


def read_settings(name: AdapterName, settings: dict[str, Any]) -> MockSettings:
    """Returns the checked settings.

    Raises:
        InvalidConfig: every problem in a sentence.
    """
    try:
        return MockSettings.model_validate(settings)
    except ValidationError as error:
        raise InvalidConfig(f"adapter {name}", _sentences(error, MockSettings)) from None


def read_body(spec: ExecutionSpec) -> dict[str, Any]:
    """Returns the JSON object in the input; plain text counts as {"prompt": text}.

    Raises:
        RunFailed: code `engine_rejected`: the input is not what the operation needs.
    """
    if not spec.content_type.startswith("application/json"):
        try:
            return {"prompt": spec.input.decode()}
        except UnicodeDecodeError:
            raise _rejected(
                f"the input ({len(spec.input)} bytes, {spec.content_type}) is not UTF-8 text"
            ) from None
    try:
        body = orjson.loads(spec.input)
    except orjson.JSONDecodeError:
        raise _rejected(f"the input ({len(spec.input)} bytes) is not JSON") from None
    if isinstance(body, str) and spec.operation is Operation.GENERATE:
        return {"prompt": body}
    if not isinstance(body, dict):
        raise _rejected(f"the input is a JSON {type(body).__name__}; {spec.operation.value} needs an object")
    return body


def read_script(spec: ExecutionSpec, body: dict[str, Any], settings: MockSettings) -> Script:
    """Returns the script of a run: the target's, under the options' `mock`, under the input's `mock`.

    Raises:
        RunFailed: code `target_not_found` or `engine_rejected`, with what is wrong.
    """
    if spec.target not in TARGETS:
        raise RunFailed(
            f"the mock has no target {spec.target!r}: {nearest(spec.target, list(TARGETS))}",
            code="target_not_found",
            layer=Layer.TARGET,
        )
    defaults = {"seed": settings.seed, "delay_s": settings.delay_s, "first_delay_s": settings.first_delay_s}
    layers = [defaults, TARGETS[spec.target]]
    for source in (spec.options.get("mock"), body.get("mock")):
        if source is None:
            continue
        if not isinstance(source, dict):
            raise _rejected(f"mock is a {type(source).__name__}; write a table of script keys")
        layers.append(source)
    merged = {key: value for layer in layers for key, value in layer.items()}
    try:
        return Script.model_validate(merged)
    except ValidationError as error:
        raise _rejected("; ".join(_sentences(error, Script, prefix="mock."))) from None


def _rejected(message: str) -> RunFailed:
    return RunFailed(message, code="engine_rejected", layer=Layer.TARGET, engine_status=400)


def _sentences(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[str]:
    sentences = []
    for problem in error.errors(include_url=False):
        key = prefix + ".".join(str(step) for step in problem["loc"])
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
            name = str(problem["loc"][0])
            sentences.append(f"unknown key {prefix}{name}: {nearest(name, list(model.model_fields))}")
        else:
            shown = repr(problem["input"])
            sentences.append(f"{key} = {shown[:60]}: {problem['msg'][:1].lower()}{problem['msg'][1:]}")
    return sentences
