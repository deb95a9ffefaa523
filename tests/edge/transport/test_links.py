"""Nodes on real sockets: who comes in, who has a name, tokens, acks, large inputs, bad peers."""

import asyncio
from dataclasses import replace

import pytest
from tests.edge.conftest import ORDER, RunningEdge, read_all
from tests.support.fake_node import MOCK, FakeNode, echo
from tests.support.inbox import wait_for

from iop_edge.domain.views import EdgeEvent
from iop_shared.codec import encode_message
from iop_shared.errors import LinkError, LinkRefused
from iop_shared.framing import encode_frame, encode_prefix
from iop_shared.ids import NodeId, RunId, new_boot_id
from iop_shared.link.auth import new_token
from iop_shared.link.messages import (
    CancelRun,
    ConfigPush,
    EventAck,
    OpenRuns,
    RejectClass,
    RunInputPart,
    RunSubmission,
)
from iop_shared.runs import RunRequest
from iop_shared.runtime_events import EngineJson, Failed, Started, Succeeded, Text

pytestmark = pytest.mark.both_loops


async def refused(node: FakeNode) -> LinkRefused:
    with pytest.raises(LinkRefused) as caught:
        await node.connect()
    return caught.value


async def events_of_kind(edge: RunningEdge, kind: str) -> list[EdgeEvent]:
    with edge.service.subscribe(after_event_id=0) as stream:
        return [event for event in (await stream.next_batch()).events if event.kind == kind]


async def test_a_node_with_a_token_comes_in_and_shows_what_it_said(edge: RunningEdge) -> None:
    await edge.connect(labels={"gpu": "h200"})

    view = edge.service.get_node(NodeId("gpu-1"))
    assert (view.state, view.epoch, view.config_revision) == ("connected", 1, 1)
    assert view.labels == {"gpu": "h200"}
    assert view.last_heard_s is not None
    assert view.last_heard_s < 1
    assert [status.name for status in view.adapters] == ["mock"]
    assert [model.name for model in edge.service.list_models()] == ["mock/echo", "mock/slow"]


async def test_wrong_unknown_revoked_and_missing_tokens_are_refused(edge: RunningEdge) -> None:
    good = await edge.add_token("gpu-1")
    elsewhere = await edge.add_token("gpu-2")
    gone = await edge.add_token("gpu-1")
    await edge.revoke(gone)

    answers = [
        await refused(edge.make_node(token))
        for token in (None, new_token(), type(good)(good.token_id, b"x" * 32), gone, elsewhere)
    ]

    assert [answer.code for answer in answers] == [
        "token_missing",
        "token_invalid",
        "token_invalid",
        "token_revoked",
        "node_unknown",
    ]
    assert {answer.reject_class for answer in answers} == {RejectClass.FATAL}
    invalid = (
        "the token of node 'gpu-1' is not valid on this edge: make one with `iop-edge token add gpu-1` "
        "and give it to `iop-node join EDGE --token TOKEN`"
    )
    assert edge.addresses is not None
    said = f"{edge.addresses.link}: the edge refused this node"
    assert [str(answer) for answer in answers] == [
        f"{said} (token_missing): node 'gpu-1' sent no token: make one with `iop-edge token add gpu-1` "
        "on the edge and give it to `iop-node join EDGE --token TOKEN`",
        f"{said} (token_invalid): {invalid}",
        f"{said} (token_invalid): {invalid}",
        f"{said} (token_revoked): token {gone.token_id} of node 'gpu-1' has been revoked: make a new one with "
        "`iop-edge token add gpu-1` and give it to `iop-node join EDGE --token TOKEN`",
        f"{said} (node_unknown): this token belongs to node 'gpu-2', but the node calls itself 'gpu-1': join with "
        "`--name gpu-2`, or make a token with `iop-edge token add gpu-1`",
    ]
    assert edge.service.list_nodes() == []
    told = [event.detail["code"] for event in await events_of_kind(edge, "node_refused")]
    assert told == [answer.code for answer in answers]


async def test_a_token_added_while_the_edge_runs_works_at_once(edge: RunningEdge) -> None:
    node = edge.make_node(await edge.add_token())

    await node.connect()

    assert node.is_open


async def test_a_revoked_token_closes_its_live_link(edge: RunningEdge) -> None:
    token = await edge.add_token()
    node = edge.make_node(token)
    await node.connect()

    await edge.revoke(token)
    end = await node.wait_end()

    assert end.code == "token_revoked"
    assert "has been revoked: make a new one with `iop-edge token add gpu-1`" in end.message
    assert edge.service.get_node(NodeId("gpu-1")).state == "lost"


async def test_the_same_process_replaces_its_own_link_at_once(edge: RunningEdge) -> None:
    token = await edge.add_token()
    boot_id = new_boot_id()
    first = edge.make_node(token, boot_id=boot_id)
    await first.connect()

    second = edge.make_node(token, boot_id=boot_id)
    await second.connect()

    assert (await first.wait_end()).code == "replaced"
    assert edge.service.get_node(NodeId("gpu-1")).epoch == 2
    assert second.is_open


async def test_another_process_of_that_name_is_refused_while_the_first_answers(edge: RunningEdge) -> None:
    token = await edge.add_token()
    first = edge.make_node(token)
    await first.connect()
    door = edge.app._door  # type: ignore[union-attr]
    assert door is not None
    door.probe_s = 0.1

    answer = await refused(edge.make_node(token))

    assert (answer.code, answer.reject_class) == ("duplicate_node", RejectClass.RETRY_SLOW)
    assert first.is_open


async def test_another_process_gets_the_name_of_one_that_does_not_answer(edge: RunningEdge) -> None:
    token = await edge.add_token()
    first = edge.make_node(token)
    await first.connect()
    door = edge.app._door  # type: ignore[union-attr]
    assert door is not None
    door.probe_s = 0.1
    first.stop_reading()  # and so it does not answer
    await asyncio.sleep(0.05)

    second = edge.make_node(token)
    await second.connect()

    assert edge.service.get_node(NodeId("gpu-1")).boot_id == second.identity.boot_id


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (
            b"GET / HTTP/1.1\r\n\r\n",
            "not_iop",
            "this is an HTTP request, not an iop link: HTTP clients belong on the [http] port",
        ),
        (
            b"\x16\x03\x01\x02\x00\x01\x00",
            "not_iop",
            "this is a TLS client hello, not an iop link: this port speaks plain TCP; dial it without TLS",
        ),
        (b"what?\n", "not_iop", "this is text, not an iop link: only iop nodes and edges speak on a link port"),
        (
            b"\xfb\xfa\xf9\xf8\xf7\xf6",
            "frame_too_large",
            "a frame of 4227529208 bytes exceeds max_frame_bytes=16384; closing the link",
        ),
        (
            encode_prefix(1 << 20),
            "frame_too_large",
            "a frame of 1048576 bytes exceeds max_frame_bytes=16384; closing the link",
        ),
        (
            encode_prefix(100) + b"abc",
            "frame_truncated",
            "the stream ended after 3 of the 100 bytes of a frame",
        ),
        (
            encode_frame(b"\xff\xff\xff"),
            "protocol_error",
            "a frame of 3 bytes is not a protobuf Frame of package iop.v1",
        ),
        (
            encode_frame(encode_message(OpenRuns())),
            "protocol_error",
            "OpenRuns came in state await_hello; expected Goodbye or Hello",
        ),
        (
            b"",
            "link_lost",
            "the connection ended in state await_hello (the peer closed it); "
            "the other end said nothing that a node says",
        ),
    ],
    ids=[
        "HTTP",
        "TLS",
        "text",
        "noise",
        "over the limit",
        "truncated",
        "no protobuf",
        "another message",
        "nothing",
    ],
)
async def test_what_is_no_node_gives_one_clear_event(
    edge: RunningEdge, said: bytes, code: str, message: str
) -> None:
    assert edge.addresses is not None
    _, writer = await asyncio.open_connection(edge.addresses.link.host, edge.addresses.link.port)
    writer.write(said)
    writer.write_eof()
    await writer.drain()

    with edge.service.subscribe(after_event_id=0) as stream:
        told = None
        while told is None:
            batch = await stream.next_batch()
            told = next((e for e in batch.events if e.kind == "node_refused"), None)
    writer.close()
    await writer.wait_closed()

    address = told.detail["address"]
    assert address.startswith("127.0.0.1:")
    assert (told.detail["code"], told.detail["message"]) == (code, f"{address}: {message}")
    assert edge.service.list_nodes() == []


async def test_a_large_input_comes_in_parts_and_a_heartbeat_passes_it(edge: RunningEdge) -> None:
    node = await edge.connect()
    big = bytes(range(256)) * 4096 * 3 + b"end"

    stream = edge.service.submit(replace(ORDER, input=big))
    request = await node.wait_run()
    node.start(stream.run_id)
    node.succeed(stream.run_id)

    assert request.input == big
    assert len(node.inbox.of(RunSubmission)[0].request.input) == 256 * 1024
    assert [part.offset for part in node.inbox.of(RunInputPart)] == [n * 256 * 1024 for n in range(1, 13)]
    await read_all(stream)


async def test_control_passes_a_large_input_that_the_node_is_slow_to_read(edge: RunningEdge) -> None:
    node = await edge.connect()
    small = edge.service.submit(ORDER)
    await node.wait_run()
    node.start(small.run_id)
    node.stop_reading()
    large = edge.service.submit(replace(ORDER, input=bytes(24 << 20)))
    await asyncio.sleep(0.1)

    edge.service.cancel(small.run_id, "enough")
    node._link._transport.resume_reading()
    await node.inbox.wait(CancelRun)

    assert len(node.inbox.of(RunInputPart)) < 95, "the cancel waited behind the whole input"
    await read_all(small)
    edge.service.cancel(large.run_id, "enough")
    await read_all(large)
    assert len(node.inbox.of(RunInputPart)) < 95, "the input of a cancelled run went on"


async def test_a_request_that_fits_into_no_frame_fails_its_run_and_not_the_link(edge: RunningEdge) -> None:
    node = await edge.connect(on_run=echo)

    events = await read_all(edge.service.submit(replace(ORDER, options={"stop": "x" * (2 << 20)})))

    assert isinstance(events[-1].body, Failed)
    assert (events[-1].body.code, events[-1].body.layer) == ("too_large", "edge")
    assert "max_frame_bytes" in events[-1].body.message
    assert node.is_open
    assert len(await read_all(edge.service.submit(ORDER))) == 5


async def test_many_runs_wait_for_a_node_that_does_not_read_without_ending_the_link(edge: RunningEdge) -> None:
    node = await edge.connect(adapters=(replace(MOCK, max_concurrent=200),))
    node.stop_reading()
    streams = [edge.service.submit(replace(ORDER, input=bytes(200 << 10))) for _ in range(200)]
    await asyncio.sleep(0.1)

    node.on_run = echo_nothing
    node._link._transport.resume_reading()
    for stream in streams:
        assert isinstance((await read_all(stream))[-1].body, Succeeded)

    assert edge.service.get_node(NodeId("gpu-1")).epoch == 1


def echo_nothing(node: FakeNode, request: RunRequest) -> None:
    node.start(request.run_id)
    node.succeed(request.run_id)


async def test_acks_are_joined_and_the_terminal_one_waits_for_the_record(edge: RunningEdge) -> None:
    node = await edge.connect()
    stream = edge.service.submit(ORDER)
    await node.wait_run()
    node.start(stream.run_id)
    node.emit(stream.run_id, *[Text("x")] * 200)
    node.succeed(stream.run_id)
    await read_all(stream)

    await wait_for(lambda: node.acked.get((stream.run_id, 1)) == 202, "the terminal event is acknowledged")

    assert len(node.inbox.of(EventAck)) <= 6
    assert (await edge.service.get_run(stream.run_id)).state.value == "succeeded"


async def test_many_bytes_are_acknowledged_before_the_timer(edge: RunningEdge) -> None:
    node = await edge.connect()
    stream = edge.service.submit(ORDER)
    await node.wait_run()
    node.start(stream.run_id)
    loop = asyncio.get_running_loop()
    began = loop.time()
    node.emit(stream.run_id, EngineJson((bytes(300_000),)))

    await wait_for(lambda: node.acked.get((stream.run_id, 1)) == 2, "acknowledged")

    assert loop.time() - began < 0.09
    node.succeed(stream.run_id)
    await read_all(stream)


async def test_a_rejected_configuration_shows_with_its_reasons(edge: RunningEdge) -> None:
    node = edge.make_node(await edge.add_token())
    node.reject_config_with = ("adapter mock: not allowed here",)
    await node.connect()
    await wait_for(
        lambda: edge.service.get_node(NodeId("gpu-1")).state == "rejected_config", "rejected_config shows"
    )

    view = edge.service.get_node(NodeId("gpu-1"))
    assert view.config_reasons == ("adapter mock: not allowed here",)


async def test_an_unanswered_configuration_is_sent_again(
    edge: RunningEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iop_edge.node_links.CONFIG_REPEAT_S", 0.05)
    node = edge.make_node(await edge.add_token(), applies_config=False)
    await node.connect()
    assert edge.service.get_node(NodeId("gpu-1")).config_state == "pending"

    node.applies_config = True
    await node.inbox.wait(ConfigPush)
    await edge.wait_ready()

    assert node.inbox.of(ConfigPush)[0].config == node.welcomes[0].config


async def test_an_event_of_a_run_that_nobody_asked_for_is_acknowledged_and_dropped(edge: RunningEdge) -> None:
    node = await edge.connect(on_run=echo)
    stranger = RunId("01900000-0000-7000-8000-00000000dead")
    node.runs[stranger] = node.runs.get(stranger) or (await _a_request(edge, node))
    node.runs[stranger] = type(node.runs[stranger])(
        stranger, ORDER.adapter, ORDER.target, ORDER.operation, b"", attempt=1
    )
    node.emit(stranger, Started(ORDER.adapter, ORDER.target, NodeId("gpu-1")))

    await wait_for(lambda: node.acked.get((stranger, 1)) == 1, "it is acknowledged")

    assert edge.service.runs.ledger.counts.stale_events == 1


async def _a_request(edge: RunningEdge, node: FakeNode):  # type: ignore[no-untyped-def]
    await read_all(edge.service.submit(ORDER))
    return await node.wait_run()


async def test_a_stopping_edge_sends_nodes_away_to_try_again(edge: RunningEdge) -> None:
    token = await edge.add_token()
    edge.service.begin_stop("test")

    answer = await refused(edge.make_node(token))

    assert (answer.code, answer.reject_class) == ("edge_draining", RejectClass.RETRY)


async def test_stopping_says_goodbye_to_every_node(edge: RunningEdge) -> None:
    node = await edge.connect()

    await edge.stop()

    end = await node.wait_end()
    assert end.code == "edge_stopping"
    assert isinstance(end.to_error(), LinkError)
