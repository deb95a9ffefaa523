"""What a run says: the bodies of a RuntimeEvent and what a terminal one carries. Pure.

A run emits any number of bodies and then exactly one terminal body. The node numbers them from 1 without
holes per (run_id, attempt). Text-like bodies (`Text`, `Reasoning`, `ToolCall`, `Logprobs`, `Output`,
`EngineJson`, `Embeddings`) are output: they count as the run having produced something, and their bytes
(`output_bytes_of`) enter the checksum of the terminal event.
"""

from dataclasses import dataclass, field
from typing import Final, TypeVar, dataclass_transform

from iop_shared.errors import Layer
from iop_shared.ids import AdapterName, NodeId, RunId, TargetName
from iop_shared.runs import RunState, RunStep

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def hot_value(cls: type[T]) -> type[T]:
    """A frozen slotted dataclass, but frozen to the type checker only. For what is made for every token or run.

    The guard at run time triples the cost of making a value (0.84 against 0.27 us for an event with its body).
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


@hot_value
class Started:
    """Execution began; what was resolved. `engine`: flavour and version where known."""

    adapter: AdapterName
    target: TargetName
    node_id: NodeId
    engine: str = ""


@hot_value
class Text:
    """A piece of the answer. `index`: which choice."""

    text: str = field(repr=False)
    index: int = 0


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's thinking."""

    text: str = field(repr=False)
    index: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call, whole or in pieces: `id` and `name` come with the first piece, `arguments` add up."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = field(default="", repr=False)
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The engine's logprobs of the last piece, as JSON."""

    json: bytes = field(repr=False)
    index: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes of a command's `stream`: stdout or stderr."""

    stream: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an agent: tool use, file change, message ... as JSON."""

    kind: str
    json: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a run produced."""

    name: str
    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The answer to `embed`: a JSON list of vectors. A large one comes in several events: join their bytes."""

    json: bytes = field(repr=False)


@hot_value
class Usage:
    """Token counts as the engine gave them; None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth knowing that is no failure."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Events are missing here: how many, and why.

    A Gap takes a number like any event, and those it stands for have none. The one exception: after an edge
    lost what it had acknowledged, the Gap (reason `acknowledged_before`) has the number of the last event
    missing. So a receiver lets a Gap jump ahead, and nothing else.
    """

    events: int
    bytes: int
    reason: str


@hot_value
class EngineJson:
    """The engine's own JSON, untouched but for the model's name.

    `whole`: the one answer to a plain request; a large one comes in several such events: join all chunks.
    """

    chunks: tuple[bytes, ...] = field(repr=False)
    whole: bool = False


@hot_value
class Timings:
    """Seconds of one attempt on the node. `first_token_s`: from its start; None: nothing came."""

    accepted_to_start_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0


@hot_value
class Closing:
    """What every terminal body says. `output_sha256` is over all output bytes, in order."""

    events: int = 0
    output_bytes: int = 0
    output_sha256: bytes = b""
    timings: Timings = Timings()
    usage: Usage | None = None
    finish_reason: str = ""


@hot_value
class Succeeded:
    """The run is complete."""

    closing: Closing = Closing()


@dataclass(frozen=True, slots=True)
class Failed:
    """The run could not be completed: a stable code, the layer it belongs to, a safe sentence."""

    code: str
    layer: Layer
    message: str
    closing: Closing = Closing()
    retryable: bool = False
    engine_status: int = 0
    engine_body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The run was cancelled. `confirmed`: the engine said that it stopped."""

    reason: str
    confirmed: bool
    took_ms: int
    closing: Closing = Closing()


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The run was lost: its node ended, or could not be reached within the grace. `code`: docs/errors.md."""

    code: str
    message: str
    closing: Closing = Closing()


OutputBody = Text | Reasoning | ToolCall | Logprobs | Output | Embeddings | EngineJson
Terminal = Succeeded | Failed | Cancelled | Interrupted
Body = Started | OutputBody | Step | Artifact | Usage | Notice | Gap | Terminal

OUTPUT_TYPES: Final = (Text, Reasoning, ToolCall, Logprobs, Output, Embeddings, EngineJson)
TERMINAL_TYPES: Final = (Succeeded, Failed, Cancelled, Interrupted)
TERMINAL_STEP: Final[dict[type, RunStep]] = {
    Succeeded: RunStep.SUCCEED,
    Failed: RunStep.FAIL,
    Cancelled: RunStep.END_CANCELLED,
    Interrupted: RunStep.INTERRUPT,
}
TERMINAL_STATE: Final[dict[type, RunState]] = {
    Succeeded: RunState.SUCCEEDED,
    Failed: RunState.FAILED,
    Cancelled: RunState.CANCELLED,
    Interrupted: RunState.INTERRUPTED,
}


@hot_value
class RuntimeEvent:
    """One numbered thing that a run said."""

    run_id: RunId
    attempt: int
    seq: int
    body: Body

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows."""
        return isinstance(self.body, TERMINAL_TYPES)


def output_bytes_of(body: Body) -> bytes:
    """Returns the output bytes of `body` (empty for bodies that are no output), as the checksum takes them."""
    match body:
        case EngineJson(chunks=chunks):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        case Text(text=text) | Reasoning(text=text):
            return text.encode()
        case ToolCall(id=id_, name=name, arguments=arguments):
            return (id_ + name + arguments).encode()
        case Logprobs(json=json) | Embeddings(json=json):
            return json
        case Output(data=data):
            return data
        case _:
            return b""
