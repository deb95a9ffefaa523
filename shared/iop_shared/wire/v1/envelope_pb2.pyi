from iop_shared.wire.v1 import link_pb2 as _link_pb2
from iop_shared.wire.v1 import run_pb2 as _run_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("challenge", "hello", "welcome", "reject", "open_runs", "run_verdicts", "heartbeat", "goodbye", "cancel_run", "event_ack", "go_away", "config_push", "config_result", "node_command_request", "node_command_response", "edge_node_event", "run_request", "run_input_part", "run_accepted", "run_refused", "runtime_event")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    OPEN_RUNS_FIELD_NUMBER: _ClassVar[int]
    RUN_VERDICTS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_RUN_FIELD_NUMBER: _ClassVar[int]
    EVENT_ACK_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    CONFIG_PUSH_FIELD_NUMBER: _ClassVar[int]
    CONFIG_RESULT_FIELD_NUMBER: _ClassVar[int]
    NODE_COMMAND_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NODE_COMMAND_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    EDGE_NODE_EVENT_FIELD_NUMBER: _ClassVar[int]
    RUN_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RUN_INPUT_PART_FIELD_NUMBER: _ClassVar[int]
    RUN_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    RUN_REFUSED_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_EVENT_FIELD_NUMBER: _ClassVar[int]
    challenge: _link_pb2.Challenge
    hello: _link_pb2.Hello
    welcome: _link_pb2.Welcome
    reject: _link_pb2.Reject
    open_runs: _run_pb2.OpenRuns
    run_verdicts: _run_pb2.RunVerdicts
    heartbeat: _link_pb2.Heartbeat
    goodbye: _link_pb2.Goodbye
    cancel_run: _run_pb2.CancelRun
    event_ack: _run_pb2.EventAck
    go_away: _link_pb2.GoAway
    config_push: _link_pb2.NodeConfigPayload
    config_result: _link_pb2.ConfigResult
    node_command_request: _link_pb2.NodeCommandRequest
    node_command_response: _link_pb2.NodeCommandResponse
    edge_node_event: _link_pb2.EdgeNodeEvent
    run_request: _run_pb2.RunRequest
    run_input_part: _run_pb2.RunInputPart
    run_accepted: _run_pb2.RunAccepted
    run_refused: _run_pb2.RunRefused
    runtime_event: _run_pb2.RuntimeEvent
    def __init__(self, challenge: _Optional[_Union[_link_pb2.Challenge, _Mapping]] = ..., hello: _Optional[_Union[_link_pb2.Hello, _Mapping]] = ..., welcome: _Optional[_Union[_link_pb2.Welcome, _Mapping]] = ..., reject: _Optional[_Union[_link_pb2.Reject, _Mapping]] = ..., open_runs: _Optional[_Union[_run_pb2.OpenRuns, _Mapping]] = ..., run_verdicts: _Optional[_Union[_run_pb2.RunVerdicts, _Mapping]] = ..., heartbeat: _Optional[_Union[_link_pb2.Heartbeat, _Mapping]] = ..., goodbye: _Optional[_Union[_link_pb2.Goodbye, _Mapping]] = ..., cancel_run: _Optional[_Union[_run_pb2.CancelRun, _Mapping]] = ..., event_ack: _Optional[_Union[_run_pb2.EventAck, _Mapping]] = ..., go_away: _Optional[_Union[_link_pb2.GoAway, _Mapping]] = ..., config_push: _Optional[_Union[_link_pb2.NodeConfigPayload, _Mapping]] = ..., config_result: _Optional[_Union[_link_pb2.ConfigResult, _Mapping]] = ..., node_command_request: _Optional[_Union[_link_pb2.NodeCommandRequest, _Mapping]] = ..., node_command_response: _Optional[_Union[_link_pb2.NodeCommandResponse, _Mapping]] = ..., edge_node_event: _Optional[_Union[_link_pb2.EdgeNodeEvent, _Mapping]] = ..., run_request: _Optional[_Union[_run_pb2.RunRequest, _Mapping]] = ..., run_input_part: _Optional[_Union[_run_pb2.RunInputPart, _Mapping]] = ..., run_accepted: _Optional[_Union[_run_pb2.RunAccepted, _Mapping]] = ..., run_refused: _Optional[_Union[_run_pb2.RunRefused, _Mapping]] = ..., runtime_event: _Optional[_Union[_run_pb2.RuntimeEvent, _Mapping]] = ...) -> None: ...
