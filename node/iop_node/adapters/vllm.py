"""The `vllm` adapter: runs on any OpenAI-compatible engine (vLLM, llama.cpp's server, SGLang ...) over HTTP.

Upstream always streams, whatever the client asked: closing a stream stops the engines that were measured
within 50 ms, closing a plain request may not stop them at all.
"""

from typing import Any, Final

from iop_node.adapters import openai_errors
from iop_node.adapters.openai_client import TRANSPORT_ERRORS, EngineAnswer, EngineClient
from iop_node.adapters.openai_errors import MAX_ENGINE_BODY_BYTES, UNKNOWN_FLAVOUR, EngineAt
from iop_node.adapters.openai_json import ModelName, dump_json, parse_json, usage_of
from iop_node.adapters.openai_request import OPERATIONS, EngineRequest, Route, build_request
from iop_node.adapters.openai_silence import SilenceWatch
from iop_node.adapters.openai_stream import CompletionStream, EngineJsonStream, TypedStream
from iop_node.adapters.openai_whole import MAX_WHOLE_BYTES, WholeStream
from iop_node.adapters.sse import EventTooLarge, SseParser
from iop_node.adapters.vllm_probe import EngineProbe
from iop_node.adapters.vllm_settings import VllmSettings, read_settings
from iop_node.core.ports import EventSink, ProbeResult
from iop_node.core.spec import Capabilities, Completion, ExecutionSpec
from iop_shared.errors import Layer, RunFailed, nearest
from iop_shared.ids import AdapterName, TargetName
from iop_shared.runtime_events import Embeddings, EngineJson

_STREAM_TYPES: Final = frozenset({"text/event-stream", ""})


def build(name: AdapterName, max_concurrent: int, settings: dict[str, Any]) -> "VllmAdapter":
    """Returns the adapter. Opens no connection.

    Raises:
        InvalidConfig: every problem of `settings` in a sentence.
    """
    return VllmAdapter(name, read_settings(name, settings))


class VllmAdapter:
    """One engine. Any number of runs at once; the caller bounds them.

    A cancelled run closes its connection, which stops the engine; whether it did stop is not asked here, so
    no cancel is confirmed.
    """

    type: Final = "vllm"
    capabilities: Final = Capabilities(operations=OPERATIONS)

    def __init__(self, name: AdapterName, settings: VllmSettings) -> None:
        self._name = name
        self._settings = settings
        self._client = EngineClient(
            settings.base_url, api_key=settings.read_api_key(), connect_timeout_s=settings.connect_timeout_s
        )
        self._probe = EngineProbe(name, settings, self._client)

    @property
    def name(self) -> AdapterName:
        """The configured name."""
        return self._name

    async def probe(self) -> ProbeResult:
        """Asks the engine whether it is ready and which models it has. Never raises on engine trouble."""
        return await self._probe.probe()

    async def aclose(self) -> None:
        """Closes all connections. Safe to call twice."""
        await self._client.aclose()

    async def execute(self, spec: ExecutionSpec, sink: EventSink) -> Completion:
        """Runs `spec` to its end. Cancelling closes the connection to the engine before it returns.

        Raises:
            RunFailed: with the code and layer of what went wrong (docs/errors.md).
        """
        request = build_request(spec, self._model_of(spec.target))
        first_byte_s = spec.limits.first_byte_timeout_s or self._settings.first_byte_timeout_s
        idle_s = spec.limits.idle_timeout_s or self._settings.idle_timeout_s
        watch = SilenceWatch(first_byte_s, idle_s)
        try:
            async with watch:
                answer = await self._client.post(self._engine_at(), request.route.value, request.body)
                try:
                    return await self._relay(spec, request, answer, sink, watch)
                finally:
                    await answer.aclose()
        except TimeoutError:
            if not watch.has_expired:
                raise
            comes_whole = spec.engine_json and not spec.stream
            raise openai_errors.timed_out(
                self._engine_at(),
                first_byte=watch.is_first,
                limit_s=watch.limit_s,
                has_output=not watch.is_first and not comes_whole,
            ) from None

    async def _relay(
        self,
        spec: ExecutionSpec,
        request: EngineRequest,
        answer: EngineAnswer,
        sink: EventSink,
        watch: SilenceWatch,
    ) -> Completion:
        engine = self._engine_at(answer)
        if answer.status != 200:
            said, _ = await answer.read(MAX_ENGINE_BODY_BYTES)
            raise openai_errors.engine_answered(engine, answer.status, said)
        encoding = answer.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise openai_errors.bad_response(
                engine, f"sent content encoding {encoding!r:.40}, which was not asked for"
            )
        if engine.flavour != UNKNOWN_FLAVOUR:
            sink.set_engine(engine.flavour)
        if request.route is Route.EMBEDDINGS:
            return await _relay_embeddings(spec, engine, answer, sink)
        if answer.media_type not in _STREAM_TYPES:
            await _explain_no_stream(engine, answer)
        stream = _rendering(spec, request, engine)
        try:
            await _relay_stream(engine, stream, answer, sink, watch)
        finally:
            for body in stream.untold_usage():  # of a run that failed or is being cancelled, too
                sink.emit(body)
        return Completion(stream.finish_reason)

    def _model_of(self, target: TargetName) -> str:
        settings = self._settings
        if target in settings.aliases:
            return settings.aliases[target]
        if settings.targets is not None and target not in settings.targets:
            known = [*settings.targets, *settings.aliases]
            raise RunFailed(
                f"adapter {self._name!r} does not offer target {target!r}: {nearest(target, known)}",
                code="target_not_found",
                layer=Layer.TARGET,
            )
        return target

    def _engine_at(self, answer: EngineAnswer | None = None) -> EngineAt:
        flavour = self._probe.engine
        if not flavour and answer is not None and answer.headers.get("server", "").startswith("llama.cpp"):
            flavour = "llama.cpp"
        return EngineAt(self._name, self._settings.base_url, flavour or UNKNOWN_FLAVOUR)


def _rendering(spec: ExecutionSpec, request: EngineRequest, engine: EngineAt) -> CompletionStream:
    model, choices = spec.requested_model, request.choices
    if not spec.engine_json:
        return TypedStream(engine, choices=choices)
    if spec.stream:
        return EngineJsonStream(engine, model, wants_usage=request.wants_usage, choices=choices)
    return WholeStream(engine, model, max_bytes=spec.limits.max_output_bytes, choices=choices)


async def _relay_stream(
    engine: EngineAt, stream: CompletionStream, answer: EngineAnswer, sink: EventSink, watch: SilenceWatch
) -> None:
    parser = SseParser()
    emit = sink.emit
    is_cut = False
    try:
        async for data in answer.pieces():
            payloads = parser.feed(data)
            watch.heard(is_event=bool(payloads))
            if payloads:
                for body in stream.take(payloads):
                    emit(body)
                if stream.failure is not None:
                    raise stream.failure
            if parser.done:
                break
            await sink.wait_ready()
            watch.resume()
    except EventTooLarge as error:
        raise openai_errors.bad_response(engine, f"sent {error}") from None
    except TRANSPORT_ERRORS:
        is_cut = True
    parser.finish()
    for body in stream.end(done=parser.done, cut=is_cut or parser.rest_bytes > 0):
        emit(body)
    if parser.done and not is_cut:
        await answer.drain()


async def _relay_embeddings(
    spec: ExecutionSpec, engine: EngineAt, answer: EngineAnswer, sink: EventSink
) -> Completion:
    max_bytes = spec.limits.max_output_bytes or MAX_WHOLE_BYTES
    data, is_longer = await answer.read(max_bytes)
    if is_longer:
        raise RunFailed(
            f"the answer of {engine} exceeds max_output_bytes={max_bytes}; send fewer inputs, or raise the limit",
            code="output_limit",
            layer=Layer.NODE,
        )
    value = parse_json(data)
    if isinstance(value, dict) and value.get("error"):
        raise openai_errors.error_event(engine, data, value, events_before=0, has_output=False)
    try:
        items = sorted(value["data"], key=lambda item: item.get("index") or 0)
        vectors = [item["embedding"] for item in items]
        usage = usage_of(value.get("usage") or {})
    except (TypeError, KeyError, AttributeError):
        what = f"answered {spec.operation.value} with something that is no list of embeddings ({len(data)} bytes)"
        raise openai_errors.bad_response(engine, what, body=data) from None
    if spec.engine_json:
        sink.emit(EngineJson((ModelName(spec.requested_model).put_into(data, value),), whole=True))
    else:
        sink.emit(Embeddings(dump_json(vectors)))
    sink.emit(usage)
    return Completion()


async def _explain_no_stream(engine: EngineAt, answer: EngineAnswer) -> None:
    """Raises what an answer of status 200 means that is no event stream."""
    data, _ = await answer.read(MAX_ENGINE_BODY_BYTES)
    value = parse_json(data)
    if isinstance(value, dict) and value.get("error"):
        raise openai_errors.error_event(engine, data, value, events_before=0, has_output=False)
    what = f"answered a request for a stream with content type {answer.media_type[:60]!r}"
    raise openai_errors.bad_response(engine, what, body=data)
