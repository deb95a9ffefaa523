"""Sizes agree with the bytes that the checksum covers."""

from hypothesis import given
from hypothesis import strategies as st

from iop_edge.domain.event_size import output_size_of, payload_size_of
from iop_shared.errors import Layer
from iop_shared.runtime_events import (
    OUTPUT_TYPES,
    Artifact,
    Body,
    Embeddings,
    EngineJson,
    Failed,
    Logprobs,
    Output,
    Reasoning,
    Started,
    Step,
    Text,
    ToolCall,
    Usage,
    output_bytes_of,
)

chunks = st.lists(st.binary(max_size=20), max_size=4).map(tuple)
outputs = st.one_of(
    st.builds(Text, st.text()),
    st.builds(Reasoning, st.text()),
    st.builds(ToolCall, st.just(0), st.text(), st.text(), st.text()),
    st.builds(Logprobs, st.binary()),
    st.builds(Embeddings, st.binary()),
    st.builds(Output, st.just("stdout"), st.binary()),
    st.builds(EngineJson, chunks),
)


@given(outputs)
def test_the_size_of_output_is_the_length_of_its_bytes(body: Body) -> None:
    assert isinstance(body, OUTPUT_TYPES)
    assert output_size_of(body) == len(output_bytes_of(body))


def test_what_is_no_output_has_no_output_size() -> None:
    for body in (Usage(), Step("tool", b"{}"), Artifact("a", "text/plain", b"abc")):
        assert output_size_of(body) is None
    assert payload_size_of(Artifact("a", "text/plain", b"abc")) == 3
    assert payload_size_of(Step("tool", b"{}")) == 2
    assert payload_size_of(Failed("engine_error", Layer.SERVING, "no", engine_body=b"12345")) == 5
    assert payload_size_of(Usage()) == 0


def test_every_output_type_has_a_size() -> None:
    made: dict[type, Body] = {
        Text: Text("a"),
        Reasoning: Reasoning("a"),
        ToolCall: ToolCall(0),
        Logprobs: Logprobs(b""),
        Output: Output("stdout", b""),
        Embeddings: Embeddings(b""),
        EngineJson: EngineJson((b"",)),
    }
    assert set(made) == set(OUTPUT_TYPES)
    assert all(output_size_of(body) is not None for body in made.values())
    assert Started not in made
