"""Hypothesis strategies: every message of a link, with values that the wire carries exactly."""

from hypothesis import strategies as st

from iop_shared.errors import Layer
from iop_shared.link import messages as m
from iop_shared.runs import Operation, RunLimits, RunRequest
from iop_shared.runtime_events import (
    Artifact,
    Cancelled,
    Closing,
    Embeddings,
    EngineJson,
    Failed,
    Gap,
    Interrupted,
    Logprobs,
    Notice,
    Output,
    Reasoning,
    RuntimeEvent,
    Started,
    Step,
    Succeeded,
    Text,
    Timings,
    ToolCall,
    Usage,
)

texts = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True)
data = st.binary(max_size=40)
uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
# Whole milli- and microseconds: what the wire keeps.
seconds_ms = st.integers(0, 10**6).map(lambda ms: ms / 1000)
seconds_us = st.integers(0, 10**9).map(lambda us: us / 1_000_000)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e6, 1e6) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)

gates = st.builds(m.Gate, st.sampled_from(m.GateState), texts, texts)
adapter_statuses = st.builds(
    m.AdapterStatus,
    name=names,
    type=names,
    gate=gates,
    max_concurrent=uint32,
    operations=st.lists(st.sampled_from(Operation), max_size=3).map(tuple),
    targets=st.lists(texts, max_size=3).map(tuple),
    any_target=st.booleans(),
)
adapter_configs = st.builds(m.AdapterConfig, names, names, uint32, json_objects)
node_configs = st.builds(m.NodeConfigPayload, uint64, texts, st.lists(adapter_configs, max_size=3).map(tuple))
link_limits = st.builds(m.LinkLimits, uint32, seconds_ms, seconds_ms, seconds_ms)
run_requests = st.builds(
    RunRequest,
    run_id=names,
    adapter=names,
    target=texts,
    operation=st.sampled_from(Operation),
    input=data,
    attempt=uint32,
    content_type=texts,
    limits=st.builds(RunLimits, seconds_ms, seconds_ms, seconds_ms, uint64),
    session=st.none() | names,
    traceparent=texts,
    source=texts,
    profile=st.none() | names,
    engine_json=st.booleans(),
    stream=st.booleans(),
    requested_model=texts,
    options=json_objects,
)
tuple_of_names = st.lists(names, max_size=3).map(tuple)
tuple_of_texts = st.lists(texts, max_size=3).map(tuple)
run_verdicts = st.builds(m.RunVerdict, names, uint32, uint64, st.sampled_from(m.Verdict))
run_acks = st.builds(m.RunAck, names, uint32, uint64)

usages = st.builds(Usage, *[st.none() | uint64] * 4)
timings = st.builds(Timings, seconds_us, st.none() | seconds_us.filter(bool), seconds_us)
closings = st.builds(Closing, uint64, uint64, data, timings, st.none() | usages, texts)
terminal_bodies = st.one_of(
    st.builds(Succeeded, closings),
    st.builds(Failed, texts, st.sampled_from(Layer), texts, closings, st.booleans(), uint32, data),
    st.builds(Cancelled, texts, st.booleans(), uint64, closings),
    st.builds(Interrupted, texts, texts, closings),
)
bodies = st.one_of(
    st.builds(Started, names, texts, names, texts),
    st.builds(Text, texts, uint32),
    st.builds(Reasoning, texts, uint32),
    st.builds(ToolCall, uint32, texts, texts, texts, uint32),
    st.builds(Logprobs, data, uint32),
    st.builds(Output, texts, data),
    st.builds(Step, texts, data),
    st.builds(Artifact, texts, texts, data),
    st.builds(Embeddings, data),
    usages,
    st.builds(Notice, texts, texts),
    st.builds(Gap, uint64, uint64, texts),
    st.builds(EngineJson, st.lists(data, max_size=3).map(tuple), st.booleans()),
    terminal_bodies,
)
runtime_events = st.builds(RuntimeEvent, names, uint32, uint64, bodies)

BY_TYPE: dict[type, st.SearchStrategy[m.Message]] = {
    m.Challenge: st.builds(m.Challenge, data, texts, texts, uint32, uint32),
    m.Hello: st.builds(
        m.Hello,
        node_id=names,
        boot_id=names,
        token_id=names,
        node_nonce=data,
        proof=data,
        software_version=texts,
        labels=st.dictionaries(texts, texts, max_size=3),
        config_revision=uint64,
        config_hash=texts,
        protocol_min=uint32,
        protocol_max=uint32,
    ),
    m.Welcome: st.builds(m.Welcome, uint64, link_limits, int64, node_configs, uint32),
    m.Reject: st.builds(m.Reject, texts, st.sampled_from(m.RejectClass), texts),
    m.OpenRuns: st.builds(
        m.OpenRuns, st.lists(st.builds(m.OpenRun, names, uint32, uint64, texts), max_size=3).map(tuple)
    ),
    m.RunVerdicts: st.builds(
        m.RunVerdicts,
        st.lists(st.builds(m.RunVerdict, names, uint32, uint64, st.sampled_from(m.Verdict)), max_size=3).map(
            tuple
        ),
    ),
    m.Heartbeat: st.builds(m.Heartbeat, uint64, uint64, tuple_of_names),
    m.Goodbye: st.builds(m.Goodbye, texts, texts),
    m.GoAway: st.builds(m.GoAway, texts, seconds_ms, seconds_ms),
    m.CancelRun: st.builds(m.CancelRun, names, texts),
    m.EventAck: st.builds(m.EventAck, st.lists(run_acks, max_size=3).map(tuple)),
    m.ConfigPush: st.builds(m.ConfigPush, node_configs),
    m.ConfigResult: st.builds(
        m.ConfigResult, uint64, texts, st.booleans(), st.lists(texts, max_size=3).map(tuple)
    ),
    m.NodeCommandRequest: st.builds(m.NodeCommandRequest, names, names, json_objects),
    m.NodeCommandResponse: st.builds(m.NodeCommandResponse, names, json_values, texts, texts),
    m.EdgeNodeEvent: st.builds(
        m.EdgeNodeEvent,
        int64,
        st.one_of(
            st.builds(m.CapabilitiesChanged, st.lists(adapter_statuses, max_size=3).map(tuple)),
            st.builds(m.GateChanged, names, gates),
            st.builds(m.DrainingChanged, st.booleans(), texts),
            st.builds(m.NodeNotice, texts, texts),
        ),
    ),
    m.RunSubmission: st.builds(
        lambda request, more: m.RunSubmission(request, len(request.input) + more), run_requests, uint32
    ),
    m.RunInputPart: st.builds(m.RunInputPart, names, uint32, uint64, data),
    m.RunAccepted: st.builds(m.RunAccepted, names, uint32),
    m.RunRefused: st.builds(m.RunRefused, names, uint32, texts, texts, st.none() | gates),
    RuntimeEvent: runtime_events,
}
messages = st.one_of(*BY_TYPE.values())
