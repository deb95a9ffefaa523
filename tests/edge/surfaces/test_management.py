"""/api/v1 over a real socket: nodes, runs, events, and each refusal."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from tests.edge.surfaces.conftest import QUICK_PACING, Edge
from tests.support.inbox import wait_for

from iop_edge.domain.views import NodeView, RunOrder
from iop_edge.surfaces.sse import Pacing
from iop_shared import __version__
from iop_shared.errors import Layer, NoRoute
from iop_shared.ids import AdapterName, BootId, Epoch, NodeId, RunId, SessionId, TargetName
from iop_shared.link.messages import AdapterStatus, Gate, GateState
from iop_shared.runs import Operation, RunLimits
from iop_shared.runtime_events import Closing, Failed, Started, Succeeded, Text

pytestmark = pytest.mark.both_loops

STARTED = Started(AdapterName("mock"), TargetName("echo"), NodeId("gpu-1"))
UNKNOWN_RUN = "01890a5d-ac96-774b-bcce-b302099a8057"
NODE = NodeView(
    node_id=NodeId("gpu-1"),
    state="connected",
    epoch=Epoch(3),
    boot_id=BootId("b" * 32),
    software_version="0.1.0",
    address="10.0.0.7:51000",
    labels={"site": "lab"},
    connected_at_ms=1_700_000_000_000,
    last_heard_s=0.5,
    config_revision=2,
    config_state="applied",
    config_reasons=(),
    adapters=(
        AdapterStatus(
            AdapterName("mock"),
            "mock",
            Gate(GateState.OPEN, "none", "always open"),
            4,
            (Operation.CHAT,),
            (TargetName("echo"),),
        ),
    ),
    in_flight={AdapterName("mock"): 1},
    round_trip_s=0.002,
)
NODE_JSON = {
    "node_id": "gpu-1",
    "state": "connected",
    "epoch": 3,
    "boot_id": "b" * 32,
    "software_version": "0.1.0",
    "address": "10.0.0.7:51000",
    "labels": {"site": "lab"},
    "connected_at_ms": 1_700_000_000_000,
    "last_heard_s": 0.5,
    "config_revision": 2,
    "config_state": "applied",
    "config_reasons": [],
    "adapters": [
        {
            "name": "mock",
            "type": "mock",
            "gate": {"state": "open", "check": "none", "reason": "always open"},
            "max_concurrent": 4,
            "operations": ["chat"],
            "targets": ["echo"],
            "any_target": False,
        }
    ],
    "in_flight": {"mock": 1},
    "round_trip_s": 0.002,
}


def api_error(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "param", "layer", "retryable"}
    return dict(body["error"])


def parse_sse(text: str) -> list[dict[str, Any]]:
    """Returns the events with id, name and parsed data."""
    events = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            events.append({"id": fields.get("id"), "event": fields["event"], "data": orjson.loads(fields["data"])})
    return events


class EventReader:
    """Reads server-sent events one by one from a response that goes on."""

    def __init__(self, response: httpx.Response) -> None:
        self._pieces = response.aiter_text()
        self._held = ""

    async def next_block(self) -> str:
        async with asyncio.timeout(5):
            while "\n\n" not in self._held:
                self._held += await anext(self._pieces)
        block, _, self._held = self._held.partition("\n\n")
        return block

    async def next_event(self) -> dict[str, Any]:
        while True:
            events = parse_sse(await self.next_block())
            if events:
                return events[0]


async def submit(edge: Edge, **fields: Any) -> httpx.Response:
    return await edge.client.post("/api/v1/runs", json={"model": "small", "input": "hi", **fields})


class TestNodes:
    async def test_are_listed_and_shown(self, edge: Edge) -> None:
        edge.service.nodes = [NODE]

        listed = await edge.client.get("/api/v1/nodes")
        shown = await edge.client.get("/api/v1/nodes/gpu-1")
        unknown = await edge.client.get("/api/v1/nodes/gpu-2")

        assert listed.json() == {"nodes": [NODE_JSON]}
        assert shown.json() == NODE_JSON
        assert unknown.status_code == 404
        assert api_error(unknown) == {
            "code": "unknown_node",
            "message": "unknown node 'gpu-2': did you mean 'gpu-1'?",
            "param": None,
            "layer": "",
            "retryable": False,
        }

    async def test_take_commands(self, edge: Edge) -> None:
        edge.service.nodes = [NODE]

        plain = await edge.client.post("/api/v1/nodes/gpu-1/commands", json={"command": "status"})
        full = await edge.client.post(
            "/api/v1/nodes/gpu-1/commands",
            json={"command": "status", "arguments": {"deep": True}, "timeout_s": 1},
        )

        assert plain.json() == {"node_id": "gpu-1", "command": "status", "result": {"uptime_s": 12}}
        assert full.status_code == 200
        assert edge.service.commands == [
            ("gpu-1", "status", {}, 10.0),
            ("gpu-1", "status", {"deep": True}, 1),
        ]

    @pytest.mark.parametrize(
        ("body", "code", "message"),
        [
            ({}, "missing_required_parameter", "missing required parameter 'command': a string such as 'status'"),
            (
                {"command": "status", "timeout_s": 61},
                "invalid_value",
                "parameter 'timeout_s' must be 0.1 to 60, but it is 61",
            ),
            (
                {"command": "status", "timeout_s": True},
                "invalid_type",
                "parameter 'timeout_s' must be a number, but it is a boolean",
            ),
            (
                {"command": "status", "args": {}},
                "unknown_parameter",
                "unknown parameter 'args': did you mean 'arguments'?",
            ),
            ([], "invalid_type", "the request's body must be a JSON object, but it is an empty array"),
        ],
    )
    async def test_refuse_bad_commands(self, edge: Edge, body: Any, code: str, message: str) -> None:
        response = await edge.client.post("/api/v1/nodes/gpu-1/commands", json=body)

        assert response.status_code == 400
        assert (api_error(response)["code"], api_error(response)["message"]) == (code, message)


class TestSubmit:
    async def test_answers_202_and_goes_on_by_itself(self, edge: Edge) -> None:
        response = await submit(
            edge,
            options={"seed": 1},
            limits={"total_timeout_s": 5, "max_output_bytes": 100, "idle_timeout_s": 0},
            session="s1",
            node="gpu-1",
            node_labels={"site": "lab"},
        )

        run = edge.service.last_run
        assert response.status_code == 202
        assert response.headers["location"] == f"/api/v1/runs/{run.run_id}"
        assert response.headers["x-iop-run-id"] == run.run_id
        assert (response.json()["run_id"], response.json()["state"]) == (run.run_id, "running")
        assert run.order == RunOrder(
            adapter=AdapterName("mock"),
            target=TargetName("echo"),
            operation=Operation.CHAT,
            input=b'{"messages":[{"role":"user","content":"hi"}]}',
            limits=RunLimits(total_timeout_s=5, max_output_bytes=100),
            session=SessionId("s1"),
            source="api",
            requested_model="small",
            options={"temperature": 0, "seed": 1},
            node=NodeId("gpu-1"),
            node_labels={"site": "lab"},
        )
        assert run.cancel_reasons == []

    @pytest.mark.parametrize(
        ("fields", "operation", "input_bytes", "content_type"),
        [
            ({"operation": "completion"}, "completion", b'{"prompt":"hi"}', "application/json"),
            ({"operation": "embed"}, "embed", b'{"input":"hi"}', "application/json"),
            ({"operation": "generate"}, "generate", b"hi", "text/plain; charset=utf-8"),
            ({"operation": "exec", "input": {"a": [1]}}, "exec", b'{"a":[1]}', "application/json"),
            (
                {"input": {"messages": [{"role": "user"}]}},
                "chat",
                b'{"messages":[{"role":"user"}]}',
                "application/json",
            ),
        ],
    )
    async def test_gives_the_input_its_form(
        self, edge: Edge, fields: dict[str, Any], operation: str, input_bytes: bytes, content_type: str
    ) -> None:
        response = await submit(edge, **fields)

        order = edge.service.last_run.order
        assert response.status_code == 202, response.text
        assert (order.operation, order.input, order.content_type) == (operation, input_bytes, content_type)

    async def test_takes_adapter_and_target(self, edge: Edge) -> None:
        response = await edge.client.post(
            "/api/v1/runs", json={"adapter": "mock", "target": "Org/Model:7b", "input": "x"}
        )

        order = edge.service.last_run.order
        assert response.status_code == 202
        assert (order.adapter, order.target) == ("mock", "Org/Model:7b")

    @pytest.mark.parametrize(
        ("fields", "status", "code", "message"),
        [
            ({"model": None}, 400, "missing_required_parameter",
             "missing required parameter 'model': the name of a profile, or adapter/target "
             "(or give 'adapter' and 'target')"),
            ({"model": None, "adapter": "mock"}, 400, "missing_required_parameter",
             "missing required parameter 'target': 'adapter' and 'target' go together"),
            ({"model": "small", "adapter": "mock"}, 400, "invalid_value",
             "give either 'model' or 'adapter' and 'target', not both"),
            ({"model": None, "adapter": "Mock!", "target": "x"}, 400, "invalid_name",
             "adapter 'Mock!' is not a valid name: use 1 to 63 of a-z 0-9 . _ - "
             "and begin and end with a letter or digit"),
            ({"model": "smal"}, 404, "unknown_model", "unknown model 'smal': did you mean 'small'?"),
            ({"input": None}, 400, "missing_required_parameter",
             "missing required parameter 'input': text, or the operation's own JSON"),
            ({"input": [1]}, 400, "invalid_type",
             "parameter 'input' must be text, or an object for 'chat', but it is an array"),
            ({"input": {}}, 400, "missing_required_parameter",
             "missing required parameter 'messages': a non-empty array of messages"),
            ({"operation": "emb"}, 400, "invalid_value", "unknown operation 'emb': did you mean 'embed'?"),
            ({"stream": 1}, 400, "invalid_type", "parameter 'stream' must be true or false, but it is a number"),
            ({"limits": {"total_s": 1}}, 400, "unknown_parameter",
             "unknown parameter 'total_s': did you mean 'total_timeout_s'?"),
            ({"limits": {"idle_timeout_s": -1}}, 400, "invalid_value",
             "parameter 'limits.idle_timeout_s' must not be negative, but it is -1"),
            ({"node_labels": {"site": 1}}, 400, "invalid_type",
             "parameter 'node_labels.site' must be a string, but it is a number"),
            ({"session": "a\nb"}, 400, "invalid_value",
             "session 'a\\nb' (3 characters) is not valid: use 1 to 128 printable characters"),
            ({"inputs": "x"}, 400, "unknown_parameter",
             "unknown parameter 'inputs': did you mean 'input' or 'limits'?"),
        ],
    )  # fmt: skip
    async def test_refuses(self, edge: Edge, fields: dict[str, Any], status: int, code: str, message: str) -> None:
        response = await submit(edge, **fields)

        error = api_error(response)
        assert (response.status_code, error["code"], error["message"]) == (status, code, message)
        assert not edge.service.scripted

    async def test_streams_events_from_the_first(self, edge: Edge) -> None:
        edge.service.script = (STARTED, Text("a"), Succeeded(Closing(events=3)))

        response = await submit(edge, stream=True)

        events = parse_sse(response.text)
        assert response.status_code == 200
        assert response.headers["x-iop-run-id"] == edge.service.last_run.run_id
        assert [(event["id"], event["event"]) for event in events] == [
            ("1.1", "started"),
            ("1.2", "text"),
            ("1.3", "succeeded"),
        ]
        assert events[1]["data"] == {
            "run_id": edge.service.last_run.run_id,
            "attempt": 1,
            "seq": 2,
            "type": "text",
            "text": "a",
            "index": 0,
        }

    async def test_leaving_the_stream_cancels_the_run(self, edge: Edge) -> None:
        async with edge.client.stream(
            "POST",
            "/api/v1/runs",
            json={"model": "small", "input": "x"},
            headers={"accept": "text/event-stream"},
        ) as response:
            assert response.headers["x-iop-run-id"] == edge.service.last_run.run_id  # before any event

        run = edge.service.last_run
        async with asyncio.timeout(5):
            await run.cancelled.wait()
        assert run.cancel_reasons == ["client_disconnected"]

    async def test_no_route_is_refused_before_a_stream_begins(self, edge: Edge) -> None:
        edge.service.refusal = NoRoute("no node offers it")

        response = await submit(edge, stream=True)

        assert response.status_code == 503
        assert api_error(response) == {
            "code": "no_route",
            "message": "no node offers it",
            "param": None,
            "layer": "",
            "retryable": True,
        }


class TestFormsOfWebPages:
    @pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
    async def test_need_json(self, edge: Edge, content_type: str) -> None:
        body = b'{"model":"small","input":"x"}'
        response = await edge.client.post("/api/v1/runs", content=body, headers={"content-type": content_type})

        assert response.status_code == 415
        assert api_error(response)["message"] == (
            f"content-type {content_type!r} is not supported here: send 'content-type: application/json'"
        )
        assert not edge.service.scripted

    async def test_may_not_read_either(self, edge: Edge) -> None:
        response = await edge.client.get("/api/v1/runs", headers={"host": "evil.example"})

        assert (response.status_code, api_error(response)["code"]) == (403, "host_not_allowed")


class TestListAndShow:
    async def test_list_has_filters_and_a_cursor(self, edge: Edge) -> None:
        for _ in range(3):
            await submit(edge)
        newest = edge.service.last_run.run_id
        edge.service.last_run.emit(STARTED, Failed("engine_error", Layer.SERVING, "x"))

        all_runs = (await edge.client.get("/api/v1/runs")).json()
        page = (await edge.client.get("/api/v1/runs?limit=2&adapter=mock&node=gpu-1")).json()
        failed = (await edge.client.get("/api/v1/runs?state=failed")).json()

        assert (len(all_runs["runs"]), all_runs["next_cursor"]) == (3, None)
        assert (len(page["runs"]), page["next_cursor"]) == (2, "next")
        assert [run["run_id"] for run in failed["runs"]] == [newest]

    @pytest.mark.parametrize(
        ("query", "message"),
        [
            ("state=fail", "unknown state 'fail': did you mean 'failed'?"),
            ("limit=many", "parameter 'limit' must be a whole number up to 500, but it is 'many'"),
            ("limit=501", "parameter 'limit' must be a whole number up to 500, but it is '501'"),
            ("stat=failed", "unknown query parameter 'stat': known are limit, cursor, state, node, adapter"),
            ("limit=1&limit=2", "query parameter 'limit' stands there twice; give it once"),
        ],
    )
    async def test_list_refuses_bad_queries(self, edge: Edge, query: str, message: str) -> None:
        response = await edge.client.get(f"/api/v1/runs?{query}")

        assert (response.status_code, api_error(response)["message"]) == (400, message)

    async def test_show_alone_and_with_events(self, edge: Edge) -> None:
        edge.service.script = (STARTED, Text("a"))
        run_id = (await submit(edge)).json()["run_id"]

        plain = (await edge.client.get(f"/api/v1/runs/{run_id}")).json()
        full = (await edge.client.get(f"/api/v1/runs/{run_id}?events=1")).json()
        listed = await edge.client.get(
            f"/api/v1/runs/{run_id}/events?after=1&limit=1", headers={"accept": "application/json"}
        )

        assert plain["run_id"] == run_id
        assert full["run"] == plain
        assert [event["type"] for event in full["events"]] == ["started", "text"]
        assert full["events"][1]["at_ms"] == 1_700_000_000_000
        assert listed.json() == {"run_id": run_id, "events": full["events"][1:]}

    async def test_show_refuses_what_is_no_run(self, edge: Edge) -> None:
        odd = await edge.client.get("/api/v1/runs/latest")
        unknown = await edge.client.get(f"/api/v1/runs/{UNKNOWN_RUN}")

        assert odd.status_code == 400
        assert api_error(odd)["message"] == (
            "'latest' is not a run id: it is a UUID such as 01890a5d-ac96-774b-bcce-b302099a8057"
        )
        assert (unknown.status_code, api_error(unknown)["code"]) == (404, "unknown_run")


class TestFollow:
    async def test_tells_the_past_then_what_comes(self, edge: Edge) -> None:
        edge.service.script = (STARTED, Text("a"))
        run_id = (await submit(edge)).json()["run_id"]
        run = edge.service.scripted[RunId(run_id)]

        async with edge.client.stream("GET", f"/api/v1/runs/{run_id}/events") as response:
            reader = EventReader(response)
            assert [(await reader.next_event())["id"] for _ in range(2)] == ["1.1", "1.2"]
            for number in range(3, 8):
                run.emit(Text("b"))
                assert (await reader.next_event())["id"] == f"1.{number}"
            run.emit(Succeeded())
            assert (await reader.next_event())["event"] == "succeeded"
            with pytest.raises(StopAsyncIteration):
                await reader.next_block()

    async def test_goes_on_after_the_last_event_id(self, edge: Edge) -> None:
        edge.service.script = (STARTED, Text("a"), Text("b"), Succeeded())
        path = f"/api/v1/runs/{(await submit(edge)).json()['run_id']}/events"

        later = await edge.client.get(path, headers={"last-event-id": "1.2"})
        earlier_attempt = await edge.client.get(path, headers={"last-event-id": "0.2"})
        after_end = await edge.client.get(path, headers={"last-event-id": "1.4"})
        odd = await edge.client.get(path, headers={"last-event-id": "two"})

        assert [event["id"] for event in parse_sse(later.text)] == ["1.3", "1.4"]
        assert [event["id"] for event in parse_sse(earlier_attempt.text)] == ["1.1", "1.2", "1.3", "1.4"]
        assert (after_end.status_code, after_end.content) == (204, b"")
        assert api_error(odd)["message"] == (
            "last-event-id 'two' is not one of a run: it is <attempt>.<seq>, such as 1.17"
        )

    async def test_tells_what_is_kept_of_an_old_run(self, edge: Edge) -> None:
        edge.service.script = (STARTED, Succeeded())
        run_id = (await submit(edge)).json()["run_id"]
        edge.service.attachable = False

        response = await edge.client.get(f"/api/v1/runs/{run_id}/events")

        assert [event["event"] for event in parse_sse(response.text)] == ["started", "succeeded"]
        assert parse_sse(response.text)[0]["data"]["at_ms"] == 1_700_000_000_000

    async def test_leaving_changes_nothing(self, edge: Edge) -> None:
        run_id = (await submit(edge)).json()["run_id"]
        async with edge.client.stream("GET", f"/api/v1/runs/{run_id}/events") as response:
            assert await EventReader(response).next_block() == "retry: 1000"
            assert edge.server.requests_in_flight == 1

        await wait_for(lambda: edge.server.requests_in_flight == 0, "the request ends")
        assert edge.service.last_run.cancel_reasons == []
        assert len(edge.tasks) == 0

    async def test_reader_that_is_too_slow_hears_why(self, edge: Edge) -> None:
        run_id = (await submit(edge)).json()["run_id"]
        run = edge.service.last_run
        run._max_buffered_bytes = 10
        async with edge.client.stream("GET", f"/api/v1/runs/{run_id}/events") as response:
            reader = EventReader(response)
            await reader.next_block()
            run.emit(Text("x" * 20), Text("y" * 20))
            event = await reader.next_event()

        assert event["event"] == "error"
        assert event["data"]["error"]["code"] == "slow_consumer"
        assert run.cancel_reasons == []


class TestCancel:
    async def test_post_and_delete(self, edge: Edge) -> None:
        run_id = (await submit(edge)).json()["run_id"]
        path = f"/api/v1/runs/{run_id}/cancel"

        first = await edge.client.post(path, json={"reason": "changed my mind"})
        bare = await edge.client.post(path)
        second = await edge.client.delete(path)
        edge.service.last_run.emit(STARTED, Succeeded())
        late = await edge.client.post(path, json={})

        assert (first.status_code, first.json()) == (202, {"run_id": run_id, "cancelling": True})
        assert (bare.status_code, second.status_code) == (202, 202)
        assert (late.status_code, late.json()) == (200, {"run_id": run_id, "cancelling": False})
        assert edge.service.last_run.cancel_reasons == ["changed my mind", "operator", "operator"]

    async def test_refuses(self, edge: Edge) -> None:
        run_id = (await submit(edge)).json()["run_id"]

        unknown = await edge.client.post(f"/api/v1/runs/{UNKNOWN_RUN}/cancel")
        reason = await edge.client.post(f"/api/v1/runs/{run_id}/cancel", json={"reason": ""})
        form = await edge.client.post(f"/api/v1/runs/{run_id}/cancel", data={"reason": "x"})

        assert (unknown.status_code, api_error(unknown)["code"]) == (404, "unknown_run")
        assert api_error(reason)["message"] == "parameter 'reason' must be 1 to 200 printable characters"
        assert form.status_code == 415
        assert edge.service.last_run.cancel_reasons == []


class TestEvents:
    @pytest.fixture
    def pacing(self) -> Pacing:
        return QUICK_PACING

    async def test_come_as_they_happen_with_comments_in_silence(self, edge: Edge) -> None:
        edge.service.bus.publish("node_connected", node_id=NodeId("gpu-0"))
        async with edge.client.stream("GET", "/api/v1/events") as response:
            reader = EventReader(response)
            assert await reader.next_block() == "retry: 1000"
            edge.service.bus.publish("node_connected", node_id=NodeId("gpu-1"), detail={"epoch": 3})
            event = await reader.next_event()
            assert await reader.next_block() == ": waiting"

        assert (event["id"], event["event"]) == ("2", "node_connected")
        assert {**event["data"], "at_ms": 0} == {
            "event_id": 2,
            "at_ms": 0,
            "kind": "node_connected",
            "node_id": "gpu-1",
            "run_id": None,
            "detail": {"epoch": 3},
        }
        await wait_for(lambda: edge.service.bus.subscriber_count == 0, "the subscription ends")

    @pytest.mark.parametrize("by_header", [True, False])
    async def test_go_on_and_tell_what_is_missing(self, edge: Edge, by_header: bool) -> None:
        for number in range(20):  # the ring keeps 8, a subscriber 4
            edge.service.bus.publish(f"thing_{number + 1}")
        headers = {"last-event-id": "2"} if by_header else {}
        query = "" if by_header else "?after=2"

        async with edge.client.stream("GET", f"/api/v1/events{query}", headers=headers) as response:
            reader = EventReader(response)
            first, second = await reader.next_event(), await reader.next_event()

        assert (first["id"], first["event"], first["data"]) == (None, "gap", {"dropped": 14})
        assert (second["id"], second["event"]) == ("17", "thing_17")

    async def test_refuse_a_bad_position(self, edge: Edge) -> None:
        response = await edge.client.get("/api/v1/events?after=-1")

        assert api_error(response)["message"] == (
            "parameter 'after' must be a whole number up to 9007199254740992, but it is '-1'"
        )

    async def test_end_when_they_are_told_to(self, edge: Edge) -> None:
        async with edge.client.stream("GET", "/api/v1/events") as response:
            reader = EventReader(response)
            await reader.next_block()
            edge.service.bus.publish("edge_stopping")
            assert (await reader.next_event())["event"] == "edge_stopping"
            edge.app.end_event_streams()
            with pytest.raises(StopAsyncIteration):
                await reader.next_block()

        assert edge.service.bus.subscriber_count == 0

    async def test_are_cut_in_silence_when_the_server_stops(
        self, edge: Edge, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with edge.client.stream("GET", "/api/v1/events") as response:
            await EventReader(response).next_block()
            await edge.server.stop(0.05)

        assert edge.server.requests_in_flight == 0
        assert caplog.records == []


async def test_models_version_and_unknown_paths(edge: Edge) -> None:
    models = (await edge.client.get("/api/v1/models")).json()
    version = (await edge.client.get("/api/v1/version")).json()
    unknown = await edge.client.get("/api/v1/run")
    root = await edge.client.get("/")
    method = await edge.client.delete("/api/v1/runs")

    assert models["models"][0] == {
        "name": "small",
        "adapter": "mock",
        "target": "echo",
        "nodes": ["gpu-1"],
        "is_profile": True,
    }
    assert version == {"version": __version__, "protocol_min": 1, "protocol_max": 1}
    assert (unknown.status_code, api_error(unknown)["code"]) == (404, "unknown_url")
    assert api_error(unknown)["message"] == (
        "there is no endpoint GET '/api/v1/run': "
        "did you mean '/api/v1/runs' or '/api/v1/version' or '/api/v1/nodes'?"
    )
    assert root.status_code == 404
    assert (method.status_code, method.headers["allow"]) == (405, "GET, POST")
    assert api_error(method)["message"] == "'/api/v1/runs' does not take DELETE: use GET, POST"


class TestHealth:
    async def test_live_and_ready(self, edge: Edge) -> None:
        live = await edge.client.get("/healthz", headers={"host": "edge.pod.example"})
        head = await edge.client.head("/healthz")
        ready = await edge.client.get("/readyz")
        edge.service.not_ready = "the history cannot be written: disk full"
        not_ready = await edge.client.get("/readyz")

        assert (live.status_code, live.json()) == (200, {"status": "ok"})
        assert (head.status_code, head.content) == (200, b"")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
        assert (not_ready.status_code, not_ready.json()) == (
            503,
            {"status": "not_ready", "reason": "the history cannot be written: disk full"},
        )

    async def test_metrics_are_prometheus_text(self, edge: Edge) -> None:
        await edge.client.get("/healthz")

        response = await edge.client.get("/metrics")

        assert response.headers["content-type"].startswith("text/plain")
        assert 'iop_edge_http_requests_total{method="GET",route="/healthz",status="200"} 1.0' in response.text
