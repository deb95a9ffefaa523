"""A raw load generator: many streams or short requests over HTTP, each token timed and checked.

Runs as a process of its own, driven by `relay.py`: prints `ready`, waits for a line on stdin, puts the load on,
prints one line of JSON (`LoadResult`) and exits: 0 if every token arrived once and in order, else 1.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import httptools
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.token_check import TokenCheck, percentile

_MAX_PROBLEMS: Final = 20
_PROMPT: Final = "Say something. " * 20


@dataclass(frozen=True, slots=True)
class Load:
    """What to put on. `requests` > 0: so many plain requests over `streams` connections, one after another;
    0: `streams` streamed requests, begun one after another within one interval and then all at once."""

    url: str
    model: str
    streams: int
    tokens: int
    interval_ms: float
    requests: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What came of it. Latencies in milliseconds: of a token from the engine's write to our read, of a request
    from our write to the end of its answer. None: there was none."""

    answers: int
    tokens: int
    token_p50_ms: float | None
    token_p99_ms: float | None
    first_p50_ms: float | None
    request_p50_ms: float | None
    request_p99_ms: float | None
    wall_s: float
    problems: tuple[str, ...]


class ClientProtocol(asyncio.Protocol):
    """One connection: sends requests of one kind until there are no more, and checks the answers."""

    def __init__(
        self, number: int, load: Load, take_request: Callable[[], bool], over: Callable[[], None]
    ) -> None:
        self._load, self._take_request, self._over = load, take_request, over
        self._name = f"connection {number}"
        self._parser: httptools.HttpResponseParser
        self._transport: asyncio.Transport
        self._received_ns = self._sent_ns = 0
        self._is_busy = False
        self._check: TokenCheck
        self.answers = self.tokens = 0
        self.token_ns: list[int] = []
        self.first_ns: list[int] = []
        self.request_ns: list[int] = []
        self.problems: list[str] = []
        streamed = load.requests == 0
        content = {
            "model": load.model,
            "messages": [{"role": "user", "content": _PROMPT}],
            "max_tokens": load.tokens,
            "stream": streamed,
        }
        body = json.dumps(content).encode()
        host = urlsplit(load.url).netloc
        self._request = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode() + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._next_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection may only end when nothing is under way."""
        if self._is_busy:
            seen = self._check.seen
            self.problems.append(f"{self._name}: closed after {seen} of {self._load.tokens} tokens ({exc})")
            self._end()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of an answer."""
        self._received_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.problems.append(f"{self._name}: the answer is not HTTP: {error}")
            self._end()

    def on_body(self, body: bytes) -> None:
        """Takes a piece of the answer's body."""
        status = self._parser.get_status_code()
        if status != 200:
            self.problems.append(f"{self._name}: status {status}: {body[:300].decode(errors='replace')}")
        self._check.feed(body, self._received_ns)

    def on_message_complete(self) -> None:
        """Closes the books on an answer and sends the next request, if there is one."""
        self._check.finish(self._received_ns)
        self.answers += 1
        self.tokens += self._check.seen
        self.problems += self._check.problems
        self.token_ns += self._check.latencies_ns
        self.first_ns += self._check.latencies_ns[:1]
        self.request_ns.append(self._received_ns - self._sent_ns)
        self._is_busy = False
        self._next_request()

    def _next_request(self) -> None:
        if self.problems or not self._take_request():
            self._end()
            return
        self._check = TokenCheck(self._name, self._load.tokens, streamed=self._load.requests == 0)
        self._parser = httptools.HttpResponseParser(self)
        self._is_busy = True
        self._sent_ns = time.monotonic_ns()
        self._transport.write(self._request)

    def _end(self) -> None:
        self._is_busy = False
        self._transport.close()
        self._over()


def _ms(values_ns: list[int], share: float) -> float | None:
    value_ns = percentile(values_ns, share)
    return None if value_ns is None else value_ns / 1e6


def _same(client: ClientProtocol) -> ClientProtocol:
    return client


async def put_on(load: Load) -> LoadResult:
    """Puts `load` on and returns what came of it; never raises on what the other side does."""
    loop = asyncio.get_running_loop()
    address = urlsplit(load.url)
    left = load.requests or load.streams
    open_connections = load.streams
    all_over = loop.create_future()
    problems: list[str] = []

    def take_request() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    def over() -> None:
        nonlocal open_connections
        open_connections -= 1
        if open_connections == 0 and not all_over.done():
            all_over.set_result(None)

    clients = [ClientProtocol(number, load, take_request, over) for number in range(load.streams)]
    begun_at = loop.time()
    for number, client in enumerate(clients):
        # Spread over one interval, so that the streams do not all fall on the same instant by accident.
        pause_s = begun_at + number * load.interval_ms / 1000 / load.streams - loop.time()
        if pause_s > 0 and load.requests == 0:
            await asyncio.sleep(pause_s)
        try:
            await loop.create_connection(partial(_same, client), address.hostname or "", address.port or 80)
        except OSError as error:
            problems.append(f"connection {number}: {load.url} cannot be reached: {error}")
            over()
    try:
        async with asyncio.timeout(load.timeout_s):
            await all_over
    except TimeoutError:
        seen = sum(client.tokens for client in clients)
        problems.append(f"{open_connections} of {load.streams} connections still busy after {load.timeout_s:g} s")
        problems.append(f"{seen} tokens belong to answers that ended")
    wall_s = loop.time() - begun_at
    for client in clients:
        problems += client.problems
    tokens = [ns for client in clients for ns in client.token_ns]
    firsts = [ns for client in clients for ns in client.first_ns]
    requests = [ns for client in clients for ns in client.request_ns]
    return LoadResult(
        answers=sum(client.answers for client in clients),
        tokens=sum(client.tokens for client in clients),
        token_p50_ms=_ms(tokens, 0.5),
        token_p99_ms=_ms(tokens, 0.99),
        first_p50_ms=_ms(firsts, 0.5),
        request_p50_ms=_ms(requests, 0.5),
        request_p99_ms=_ms(requests, 0.99),
        wall_s=wall_s,
        problems=tuple(problems[:_MAX_PROBLEMS]),
    )


def main() -> int:
    """Runs one load as a process of its own; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="http://host:port")
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=64, help="connections at once")
    parser.add_argument("--tokens", type=int, default=200, help="in each answer")
    parser.add_argument("--interval-ms", type=float, default=10.0, help="the engine's, to spread the starts")
    parser.add_argument("--requests", type=int, default=0, help="plain requests in all; 0: streams")
    parser.add_argument("--timeout-s", type=float, default=120.0)
    load = Load(**vars(parser.parse_args()))
    print("ready", flush=True)
    sys.stdin.readline()
    result = uvloop.run(put_on(load))
    print(json.dumps(dataclasses.asdict(result)), flush=True)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
