"""A paced OpenAI-compatible engine: cheap and exact, so that a bench measures what stands before it.

Each token's text is `SEQUENCE:NANOSECONDS ` (`TOKEN_TEXT`): its number from 0 in the stream and the monotonic
time at which it was written. A client on the same machine reads its latency from it and sees what is missing.
Two models: `paced` writes a token each interval, `instant` writes all at once. Streamed and plain chat.
"""

import argparse
import asyncio
import json
import sys
import time
from typing import Any, Final, cast

import httptools
import orjson
import uvloop

TOKEN_TEXT: Final = "%06d:%019d "
"""Fixed width: all token chunks of a stream have one size, so their framing is made once per stream."""
_JSON_HEAD: Final = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_MODELS: Final = ("paced", "instant")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class PacedStream:
    """One streamed answer: writes its tokens on an absolute schedule and ends the message."""

    def __init__(
        self, transport: asyncio.Transport, number: int, model: str, tokens: int, interval_s: float, usage: bool
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport, self._tokens, self._interval_s = transport, tokens, interval_s
        # The shape and size of vLLM's own chunks.
        head = (
            f'{{"id":"chatcmpl-{number:016x}","object":"chat.completion.chunk","created":{int(time.time())},'
            f'"model":"{model}","choices":'
        )
        filler = TOKEN_TEXT % (0, 0)
        event = (
            f'data: {head}[{{"index":0,"delta":{{"content":"%s"}},"logprobs":null,"finish_reason":null}}]}}\n\n'
        )
        size = len(event % filler)
        self._token_chunk = f"{size:x}\r\n{event % TOKEN_TEXT}\r\n".encode()
        opening = (
            f'data: {head}[{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,'
            '"finish_reason":null}]}\n\n'
        )
        ending = f'data: {head}[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"stop"}}]}}\n\n'
        if usage:
            ending += f'data: {head}[],"usage":{json.dumps(_usage(tokens))}}}\n\n'
        self._ending = _chunk(ending.encode() + b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self._sequence = 0
        self._next_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        transport.write(_STREAM_HEAD + _chunk(opening.encode()))
        self._schedule()

    def cancel(self) -> None:
        """Writes nothing more. Safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if self._interval_s == 0:
            self._write_all()
            return
        # Absolute, so that a late turn does not shift the rest. uvloop's timers have a resolution of 1 ms.
        self._next_at += self._interval_s
        self._timer = self._loop.call_at(self._next_at, self._write_token)

    def _write_token(self) -> None:
        if self._sequence == self._tokens:
            self._finish()
            return
        self._transport.write(self._token_chunk % (self._sequence, time.monotonic_ns()))
        self._sequence += 1
        self._schedule()

    def _write_all(self) -> None:
        now_ns = time.monotonic_ns()
        self._transport.write(b"".join(self._token_chunk % (n, now_ns) for n in range(self._tokens)))
        self._finish()

    def _finish(self) -> None:
        self._transport.write(self._ending)


class EngineProtocol(asyncio.Protocol):
    """One connection, kept alive between requests; one request at a time."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._body: list[bytes] = []
        self._url = b""
        self._stream: PacedStream | None = None
        self._answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts a connection."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the stream under way: the client is gone."""
        if self._stream is not None:
            self._stream.cancel()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of requests."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        """Starts a request."""
        self._url, self._body = b"", []

    def on_url(self, url: bytes) -> None:
        """Takes a piece of the path."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """Takes a piece of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Answers."""
        path = self._url.partition(b"?")[0]
        if path == b"/v1/chat/completions":
            self._chat()
        elif path == b"/v1/models":
            data = [{"id": m, "object": "model", "owned_by": "vllm", "max_model_len": 131072} for m in _MODELS]
            self._send_json(200, {"object": "list", "data": data})
        elif path == b"/version":
            self._send_json(200, {"version": "0.0-bench"})
        elif path == b"/health":
            self._send_json(200, {})
        else:
            self._send_json(404, {"detail": "Not Found"})

    def _chat(self) -> None:
        try:
            body = orjson.loads(b"".join(self._body))
            model, stream = body["model"], body.get("stream", False)
            # Newer clients and proxies use the second name for the same thing.
            tokens = int(body.get("max_tokens") or body["max_completion_tokens"])
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._send_error(400, "send JSON with model and max_tokens")
            return
        if model not in _MODELS:
            self._send_error(404, f"model {model!r} does not exist: paced, instant")
            return
        self._answered += 1
        interval_s = self._interval_s if model == "paced" else 0.0
        if stream:
            self._stream = PacedStream(self._transport, self._answered, model, tokens, interval_s, usage)
        else:
            # A plain answer comes at once, whatever the model: only its content matters to the bench.
            now_ns = time.monotonic_ns()
            text = "".join(TOKEN_TEXT % (n, now_ns) for n in range(tokens))
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
            answer = {"id": f"chatcmpl-{self._answered:016x}", "object": "chat.completion", "model": model}
            self._send_json(200, answer | {"choices": [choice], "usage": _usage(tokens)})

    def _send_error(self, status: int, message: str) -> None:
        self._send_json(status, {"error": {"message": message, "type": "BadRequestError", "code": status}})

    def _send_json(self, status: int, content: Any) -> None:
        body = orjson.dumps(content)
        self._transport.write(_JSON_HEAD % (status, b"OK" if status == 200 else b"Error", len(body), body))


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 8, "total_tokens": 8 + tokens, "completion_tokens": tokens}


async def serve(host: str, port: int, interval_s: float) -> None:
    """Serves until cancelled; prints `{"port": N}` once it listens."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EngineProtocol(interval_s), host, port, backlog=1024)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


def main() -> int:
    """Runs the engine as a process of its own; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: a free one, printed as JSON")
    parser.add_argument("--interval-ms", type=float, default=10.0, help="between two tokens of the model `paced`")
    arguments = parser.parse_args()
    try:
        uvloop.run(serve(arguments.host, arguments.port, arguments.interval_ms / 1000))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
