"""The management endpoints about nodes, models, the edge's events and its version. Runs: `management_runs`."""

import asyncio
from typing import Final

from iop_edge.bus_stream import BusStream
from iop_edge.service import EdgeService
from iop_edge.surfaces.asgi import Request, Send, parse_json, send_json
from iop_edge.surfaces.management_requests import parse_command, parse_count
from iop_edge.surfaces.sse import ClientWatch, Pacing, SseAnswer, sse_event
from iop_edge.surfaces.view_json import edge_event_json, model_json, node_json
from iop_shared import __version__
from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import BadRequest
from iop_shared.ids import NodeId
from iop_shared.link.messages import PROTOCOL_MAX, PROTOCOL_MIN

MAX_EVENT_ID: Final = 2**53
"""What every JSON reader can hold."""


class ManagementApi:
    """The handlers under /api/v1 but /runs. `tasks` owns one task per event stream."""

    def __init__(self, service: EdgeService, tasks: TaskOwner, *, max_input_bytes: int, pacing: Pacing) -> None:
        self._service, self._tasks = service, tasks
        self._max_input_bytes, self._pacing = max_input_bytes, pacing
        self._event_streams: set[BusStream] = set()

    def end_event_streams(self) -> None:
        """Ends every stream of /api/v1/events, which would otherwise outlast any grace. Safe to call twice."""
        for stream in list(self._event_streams):
            stream.close()

    async def list_nodes(self, request: Request, send: Send) -> int:
        """GET /api/v1/nodes."""
        request.query(())
        return await send_json(send, 200, {"nodes": [node_json(node) for node in self._service.list_nodes()]})

    async def show_node(self, request: Request, send: Send) -> int:
        """GET /api/v1/nodes/{node_id}."""
        request.query(())
        return await send_json(send, 200, node_json(self._service.get_node(NodeId(request.params["node_id"]))))

    async def command_node(self, request: Request, send: Send) -> int:
        """POST /api/v1/nodes/{node_id}/commands."""
        value = parse_json(await read_json_body(request, self._max_input_bytes))
        command, arguments, timeout_s = parse_command(value)
        node_id = NodeId(request.params["node_id"])
        result = await self._service.node_command(node_id, command, arguments, timeout_s)
        return await send_json(send, 200, {"node_id": node_id, "command": command, "result": result})

    async def list_models(self, request: Request, send: Send) -> int:
        """GET /api/v1/models."""
        request.query(())
        models = [model_json(model) for model in self._service.list_models()]
        return await send_json(send, 200, {"models": models})

    async def show_version(self, _request: Request, send: Send) -> int:
        """GET /api/v1/version."""
        return await send_json(
            send, 200, {"version": __version__, "protocol_min": PROTOCOL_MIN, "protocol_max": PROTOCOL_MAX}
        )

    async def follow_events(self, request: Request, send: Send) -> int:
        """GET /api/v1/events: server-sent events until the client leaves."""
        after = request.query(("after",)).get("after") or request.header(b"last-event-id")
        after_id = parse_count(after, "after", MAX_EVENT_ID) if after else None
        sse = SseAnswer(send, self._pacing, [])
        with self._service.subscribe(after_id) as stream:
            self._event_streams.add(stream)
            watch = ClientWatch(request.receive, stream.close, on_tick=sse.tick, tick_s=self._pacing.tick_s)
            watching = self._tasks.spawn(watch.run(), name="client of events")
            try:
                await sse.write(b"retry: 1000\n\n")
                while not watch.gone:
                    batch = await stream.next_batch()
                    if not batch.events and not batch.dropped:
                        break  # closed: the client left, or the edge stops
                    pieces = [sse_event("gap", {"dropped": batch.dropped})] if batch.dropped else []
                    pieces += [
                        sse_event(event.kind, edge_event_json(event), str(event.event_id))
                        for event in batch.events
                    ]
                    await sse.write(b"".join(pieces))
            except asyncio.CancelledError:
                pass  # as in openai_relay: only the server cancels, when its grace is over
            finally:
                watching.cancel()
                self._event_streams.discard(stream)
        await sse.end()
        return 200


async def read_json_body(request: Request, max_bytes: int, *, optional: bool = False) -> bytes:
    """Returns the body of a management request, which has to say that it is JSON.

    `optional`: a request without body and content type gives b"".

    Raises:
        BadRequest: code `unsupported_media_type`; what `Request.read_body` raises.
    """
    content_type = request.header(b"content-type")
    if optional and not content_type:
        body = await request.read_body(max_bytes)
        if not body:
            return body
    if content_type.partition(";")[0].strip().lower() != "application/json":
        # Without this, a form on a web page could post here without asking its browser first.
        raise BadRequest(
            f"content-type {content_type[:80]!r} is not supported here: send 'content-type: application/json'",
            code="unsupported_media_type",
        )
    return await request.read_body(max_bytes)
