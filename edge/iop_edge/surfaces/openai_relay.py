"""From a run's stream to the client's connection: the path of every token, and of every way in which a run ends.

A batch of events becomes the engine's own JSON, framed as SSE, joined, in one ASGI send; nothing is parsed on
the way. The answer's status waits for the first output, so that a failure before it is a proper HTTP error. A
client that leaves has its run cancelled at once.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from iop_edge.relay import RunStream
from iop_edge.service import EdgeService
from iop_edge.surfaces.asgi import JSON_TYPE, Request, Send, send_bytes
from iop_edge.surfaces.http_errors import (
    HttpProblem,
    draining_problem,
    make_problem,
    problem_of_error,
    problem_of_gap,
    problem_of_terminal,
)
from iop_edge.surfaces.openai_render import StreamRenderer
from iop_edge.surfaces.openai_whole import WholeRenderer
from iop_edge.surfaces.sse import ClientWatch, Pacing, SseAnswer, sse_data
from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import InternalError, IopError, UnknownName
from iop_shared.logs import get_logger
from iop_shared.runtime_events import (
    TERMINAL_TYPES,
    EngineJson,
    Gap,
    RuntimeEvent,
    Started,
    Succeeded,
    Terminal,
)

CLIENT_GONE: Final = 499
"""For the metrics only: nobody was there to be answered."""
DONE: Final = b"data: [DONE]\n\n"

_log = get_logger("http")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a relayed run ended, and what has not been written yet: the last events, or the whole answer."""

    outcome: Terminal | HttpProblem
    rest: bytes = b""

    @property
    def problem(self) -> HttpProblem | None:
        """What to answer if the run did not succeed."""
        match self.outcome:
            case Succeeded():
                return None
            case HttpProblem():
                return self.outcome
            case terminal:
                return problem_of_terminal(terminal)


def _write_engine_json(sse: SseAnswer, batch: Sequence[RuntimeEvent]) -> bool:
    """Takes a batch of nothing but pieces of the engine's JSON, which is nearly every one, while the client keeps
    up. The rest is for `RunAnswer._relay`."""
    pieces: list[bytes] = []
    for event in batch:
        body = event.body
        if type(body) is not EngineJson:
            return False
        pieces.extend(map(sse_data, body.chunks))
    return sse.write_now(pieces[0] if len(pieces) == 1 else b"".join(pieces))


class RunAnswer:
    """One run's answer to one client, in either form. Owns the stream: closes it in the end.

    `headers`: those of the run; `x-iop-node` joins them when the run has started.
    """

    def __init__(
        self,
        service: EdgeService,
        stream: RunStream,
        request: Request,
        send: Send,
        tasks: TaskOwner,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        self._service, self._stream, self._tasks = service, stream, tasks
        self._request, self._send = request, send
        self._headers = headers

    async def answer_stream(self, renderer: StreamRenderer, pacing: Pacing) -> int:
        """Answers with the run's output as SSE while it comes. Returns the status."""
        sse = SseAnswer(self._send, pacing, self._headers, self._request.chunk_writer)
        watch = ClientWatch(self._request.receive, self._leave, on_tick=sse.tick, tick_s=pacing.tick_s)
        ending = await self._watched(watch, self._relay(sse, renderer))
        if ending is None:
            return CLIENT_GONE
        problem = ending.problem
        if problem is None:
            await sse.end(ending.rest + DONE)
        elif sse.started or ending.rest:
            # Without [DONE]: what came is not the whole answer. Clients raise the error event as an error.
            await sse.end(ending.rest + sse_data(problem.openai_body()))
        else:
            return await self._answer_problem(problem)
        return 200

    async def answer_whole(self, renderer: WholeRenderer) -> int:
        """Answers with one JSON object when the run has ended. Returns the status."""
        watch = ClientWatch(self._request.receive, self._leave)
        ending = await self._watched(watch, self._collect(renderer))
        if ending is None:
            return CLIENT_GONE
        problem = ending.problem
        if problem is not None:
            return await self._answer_problem(problem)
        return await send_bytes(self._send, 200, ending.rest, [JSON_TYPE, *self._headers])

    async def _answer_problem(self, problem: HttpProblem) -> int:
        headers = [*problem.headers(), *self._headers]
        return await send_bytes(self._send, problem.status, problem.openai_body(), headers)

    async def _relay(self, sse: SseAnswer, renderer: StreamRenderer) -> Ending | None:
        """Writes output as it comes. Returns how the run ended; None if the stream was closed before."""
        engine_spoke = False
        while batch := await self._stream.next_batch():
            pieces: list[bytes] = []
            for event in batch:
                body = event.body
                if type(body) is EngineJson:  # nearly every event; a `match` in its place costs more
                    engine_spoke = True
                    pieces.extend(map(sse_data, body.chunks))
                elif isinstance(body, TERMINAL_TYPES):
                    if isinstance(body, Succeeded) and not engine_spoke:
                        pieces.extend(map(sse_data, renderer.render_end(body.closing)))
                    return Ending(body, b"".join(pieces))
                elif isinstance(body, Started):
                    self._note_node(body)
                elif isinstance(body, Gap):
                    if body.bytes:  # otherwise no output is missing
                        return self._end_at_gap(body, b"".join(pieces))
                elif chunk := renderer.render(body):
                    pieces.append(sse_data(chunk))
            if pieces:
                await sse.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
                if engine_spoke:
                    self._stream.offer_to(partial(_write_engine_json, sse))
        return None

    async def _collect(self, renderer: WholeRenderer) -> Ending | None:
        """Returns the run's ending with the whole answer; None if the stream was closed before."""
        engine_answer: list[bytes] = []
        while batch := await self._stream.next_batch():
            for event in batch:
                body = event.body
                match body:
                    case EngineJson(whole=True):
                        engine_answer.extend(body.chunks)
                    case EngineJson():
                        raise InternalError(
                            "the adapter streamed its engine's JSON where one answer was asked for"
                        )
                    case Succeeded():
                        whole = b"".join(engine_answer) if engine_answer else renderer.render(body.closing)
                        return Ending(body, whole)
                    case Started():
                        self._note_node(body)
                    case Gap() if body.bytes:
                        return self._end_at_gap(body)
                    case _ if isinstance(body, TERMINAL_TYPES):
                        return Ending(body)
                    case _:
                        renderer.add(body)
        return None

    async def _watched(self, watch: ClientWatch, relaying: Coroutine[Any, Any, Ending | None]) -> Ending | None:
        """Relays with an eye on the client; whatever goes wrong becomes a problem and cancels the run.

        Returns None when nobody is left to be answered.
        """
        watching = self._tasks.spawn(watch.run(), name=f"client of {self._stream.run_id}")
        try:
            ending = await relaying
            if ending is None and not watch.gone:
                raise InternalError("the run's stream was closed before its end")
        except IopError as error:
            self._cancel(error.code)
            ending = Ending(problem_of_error(error))
        except asyncio.CancelledError:
            # Only the server cancels a request, when its grace is over. We are at the top of this task: tell the
            # client, and let the server see an ended answer instead of an exception.
            self._cancel("edge_draining")
            ending = Ending(draining_problem())
        except Exception as error:
            _log.error("request_failed", run_id=self._stream.run_id, error=type(error).__name__, exc_info=True)
            self._cancel("internal")
            ending = Ending(
                make_problem("internal", "the edge failed while it relayed the run; its log says more")
            )
        finally:
            watching.cancel()
            self._stream.close()
        return None if watch.gone else ending

    def _note_node(self, started: Started) -> None:
        # A run that was lost before it said anything may start again elsewhere.
        self._headers[:] = [header for header in self._headers if header[0] != b"x-iop-node"]
        self._headers.append((b"x-iop-node", started.node_id.encode()))

    def _end_at_gap(self, gap: Gap, rest: bytes = b"") -> Ending:
        self._cancel("output_gap")
        return Ending(problem_of_gap(gap), rest)

    def _leave(self) -> None:
        self._cancel("client_disconnected")
        self._stream.close()  # ends the wait for the next batch

    def _cancel(self, reason: str) -> None:
        try:
            self._service.cancel(self._stream.run_id, reason)
        except UnknownName:
            pass  # it has ended long since
