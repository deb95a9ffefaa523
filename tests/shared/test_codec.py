"""Every message both ways, what a newer peer may say, and what no version says."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.link_messages import BY_TYPE, bodies

from iop_shared.codec import decode_message, encode_message
from iop_shared.errors import InternalError, Layer, ProtocolError
from iop_shared.ids import AdapterName, CommandId, NodeId, RunId, TargetName
from iop_shared.link.messages import (
    AdapterConfig,
    ConfigPush,
    EdgeNodeEvent,
    Gate,
    GateChanged,
    GateState,
    GoAway,
    Message,
    NodeCommandResponse,
    NodeConfigPayload,
    Reject,
    RejectClass,
    RunSubmission,
    RunVerdict,
    RunVerdicts,
    UnknownMessage,
    UnreadableRun,
    Verdict,
)
from iop_shared.runs import Operation, RunLimits, RunRequest
from iop_shared.runtime_events import (
    Body,
    Closing,
    EngineJson,
    Failed,
    Notice,
    RuntimeEvent,
    Started,
    Succeeded,
    Text,
    Timings,
    Usage,
)
from iop_shared.wire.v1.envelope_pb2 import Frame

RUN = RunId("0199aaaa-bbbb-7ccc-8ddd-eeeeeeeeeeee")
RUN_HEX = RUN.encode().hex()


def make_request(**changes: object) -> RunRequest:
    fields: dict[str, object] = {
        "run_id": RUN,
        "adapter": AdapterName("mock"),
        "target": TargetName("echo"),
        "operation": Operation.CHAT,
        "input": b"{}",
    }
    return RunRequest(**{**fields, **changes})  # type: ignore[arg-type]


def test_strategies_cover_every_message() -> None:
    assert set(BY_TYPE) == set(get_args(Message))


@pytest.mark.parametrize("kind", BY_TYPE, ids=lambda k: k.__name__)
@given(choice=st.data())
def test_every_message_survives_the_wire(kind: type, choice: st.DataObject) -> None:
    message = choice.draw(BY_TYPE[kind])

    assert decode_message(encode_message(message)) == message


@given(body=bodies)
def test_every_body_survives_the_wire(body: Body) -> None:
    event = RuntimeEvent(RUN, 1, 1, body)

    assert decode_message(encode_message(event)) == event


@pytest.mark.parametrize(
    "body",
    [Text(""), EngineJson(()), EngineJson((b"",)), Usage(), Started(AdapterName(""), TargetName(""), NodeId("")),
     Succeeded(), Succeeded(Closing(usage=Usage()))],
    ids=repr,
)  # fmt: skip
def test_body_of_defaults_alone_is_still_there(body: Body) -> None:
    event = RuntimeEvent(RUN, 1, 1, body)

    assert decode_message(encode_message(event)) == event


def test_frame_has_a_reader_and_a_writer_for_every_member() -> None:
    from iop_shared import codec

    members = {field.name for field in Frame.DESCRIPTOR.oneofs_by_name["body"].fields}

    assert set(codec._READ) | {"runtime_event"} == members
    assert set(codec._FILL) | {RuntimeEvent} == set(get_args(Message))


def test_first_token_within_a_microsecond_is_not_taken_for_none() -> None:
    closing = Closing(timings=Timings(first_token_s=0.0))

    back = decode_message(encode_message(RuntimeEvent(RUN, 1, 1, Succeeded(closing))))

    assert isinstance(back, RuntimeEvent)
    assert isinstance(back.body, Succeeded)
    assert back.body.closing.timings.first_token_s == 1e-6


def test_tiny_time_limit_does_not_become_the_default_and_huge_one_is_cut() -> None:
    request = make_request(limits=RunLimits(idle_timeout_s=0.0001, total_timeout_s=1e12))

    back = decode_message(encode_message(RunSubmission(request, 2)))

    assert isinstance(back, RunSubmission)
    assert back.request.limits == RunLimits(idle_timeout_s=0.001, total_timeout_s=(2**32 - 1) / 1000)
    assert decode_message(encode_message(GoAway("update"))) == GoAway("update")


# --- a newer peer ---------------------------------------------------------------------------------------


def test_unknown_frame_is_told_apart_with_its_size() -> None:
    payload = b"\xfa\x3f\x03abc"  # field 1023, a string

    assert decode_message(payload) == UnknownMessage(6)


def test_unknown_body_of_an_event_keeps_its_number() -> None:
    frame = Frame()
    frame.runtime_event.run_id = RUN
    frame.runtime_event.attempt = 1
    frame.runtime_event.seq = 9
    payload = frame.SerializeToString()

    assert decode_message(payload) == RuntimeEvent(
        RUN, 1, 9, Notice("unknown_event", "an event that this version does not know; update this end")
    )


def test_unknown_node_event_is_an_unknown_message() -> None:
    frame = Frame()
    frame.edge_node_event.at_ms = 5

    assert decode_message(frame.SerializeToString()) == UnknownMessage(2)


def test_unknown_operation_can_be_refused_and_is_left_out_of_a_status() -> None:
    frame = Frame()
    frame.ParseFromString(encode_message(RunSubmission(make_request(), 2)))
    frame.run_request.operation = "paint"

    assert decode_message(frame.SerializeToString()) == UnreadableRun(RUN, 1, "paint")


def test_unknown_enum_values_are_read_as_the_proto_says() -> None:
    frame = Frame()
    frame.ParseFromString(encode_message(Reject("x", RejectClass.FATAL, "")))
    frame.reject.reject_class = 99  # type: ignore[assignment]
    assert decode_message(frame.SerializeToString()) == Reject("x", RejectClass.RETRY, "")

    frame.ParseFromString(encode_message(RunVerdicts((RunVerdict(RUN, 1, 3, Verdict.KEEP),))))
    frame.run_verdicts.runs[0].verdict = 99  # type: ignore[assignment]
    assert decode_message(frame.SerializeToString()) == RunVerdicts((RunVerdict(RUN, 1, 3, Verdict.CANCEL),))

    changed = GateChanged(AdapterName("mock"), Gate(GateState.OPEN))
    frame.ParseFromString(encode_message(EdgeNodeEvent(1, changed)))
    frame.edge_node_event.gate_changed.gate.state = 99  # type: ignore[assignment]
    unknown = GateChanged(AdapterName("mock"), Gate(GateState.UNKNOWN))
    assert decode_message(frame.SerializeToString()) == EdgeNodeEvent(1, unknown)


def test_unknown_layer_is_read_as_the_node() -> None:
    frame = Frame()
    frame.ParseFromString(encode_message(RuntimeEvent(RUN, 1, 1, Failed("x", Layer.SERVING, "m"))))
    frame.runtime_event.failed.layer = "fabric"

    back = decode_message(frame.SerializeToString())

    assert isinstance(back, RuntimeEvent)
    assert back.body == Failed("x", Layer.NODE, "m")


# --- what no version says ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (b"", "a frame of 0 bytes came; every frame carries a message"),
        (b"\xff\xff\xff\xff", "a frame of 4 bytes is not a protobuf Frame of package iop.v1"),
        # A Goodbye that stands by itself, not in a Frame: its text is read as a Challenge and does not parse.
        (b"\x0a\x05hello", "a frame of 7 bytes is not a protobuf Frame of package iop.v1"),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 18 bytes is not a protobuf Frame of package iop.v1"),
    ],
)
def test_bytes_that_are_no_frame(payload: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_message(payload)

    assert str(caught.value) == sentence
    assert caught.value.code == "protocol_error"


def test_settings_that_are_no_json_object() -> None:
    config = NodeConfigPayload(1, "h", (AdapterConfig(AdapterName("mock"), "mock", 1, {"a": 1}),))
    frame = Frame()
    frame.ParseFromString(encode_message(ConfigPush(config)))
    frame.config_push.adapters[0].settings_json = b"{secret"
    with pytest.raises(ProtocolError) as caught:
        decode_message(frame.SerializeToString())
    assert str(caught.value) == "settings_json of adapter 'mock' (7 bytes) is not JSON"

    frame.config_push.adapters[0].settings_json = b"[1]"
    with pytest.raises(ProtocolError) as caught:
        decode_message(frame.SerializeToString())
    assert str(caught.value) == "settings_json of adapter 'mock' holds a JSON list, expected an object"


@pytest.mark.parametrize(
    "message",
    [
        RuntimeEvent(RUN, 1, 1, Text("half a pair: \ud83d")),
        RuntimeEvent(RUN, 1, -1, Text("x")),
        RuntimeEvent(RUN, 1, 1, "no body"),  # type: ignore[arg-type]
        NodeCommandResponse(CommandId("c"), result={"not": object()}),
    ],
    ids=["surrogate", "negative", "no body", "no json"],
)
def test_value_that_the_wire_cannot_carry_is_our_bug_and_shows_no_content(message: Message) -> None:
    with pytest.raises(InternalError) as caught:
        encode_message(message)

    assert str(caught.value).startswith(f"{type(message).__name__} holds a value that the wire cannot carry (")
    assert "pair" not in str(caught.value)


@given(payload=st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_protocol_error(payload: bytes) -> None:
    try:
        decode_message(payload)
    except ProtocolError:
        pass


# --- the bytes themselves -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "hex_bytes"),
    [
        (RuntimeEvent(RUN, 2, 300, Text("hi", 1)), "9202330a24" + RUN_HEX + "100218ac025a060a0268691001"),
        (
            RuntimeEvent(RUN, 1, 1, EngineJson((b"{}", b"[]"))),
            "9202350a24" + RUN_HEX + "10011801aa01080a027b7d0a025b5d",
        ),
        (GoAway("update", 1.5, 30.0), "720f0a0675706461746510dc0b18b0ea01"),
    ],
    ids=["text", "engine_json", "go_away"],
)
def test_bytes_on_the_wire_stay_what_they_are(message: Message, hex_bytes: str) -> None:
    """A change here breaks links between two versions."""
    assert encode_message(message).hex() == hex_bytes
    assert decode_message(bytes.fromhex(hex_bytes)) == message
