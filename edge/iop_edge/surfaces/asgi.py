"""ASGI at its barest: a request, a router that looks up one dict, bounded bodies, and whole answers.

No framework response object stands on the way of a token: handlers get a `Request` and ASGI's `send`.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

import orjson

from iop_shared.aio.http_server import CHUNK_WRITER, ChunkWriter
from iop_shared.errors import BadRequest, TooLarge

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

BODY_PAUSE_S: Final = 30.0
"""How long a request's body may pause. A client on a bad line is slower than that only when it is gone."""
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
JSON_TYPE: Final = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The client closed its connection; nobody is there to be answered."""


class Request:
    """One HTTP request. `params`: what the path's placeholders stand for. `chunk_writer`: None under a server
    that has none."""

    __slots__ = ("_receive", "chunk_writer", "headers", "method", "params", "path", "query_string")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query_string: bytes = scope["query_string"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.params: Mapping[str, str] = {}
        self.chunk_writer: ChunkWriter | None = scope.get("state", {}).get(CHUNK_WRITER)
        self._receive = receive

    @property
    def receive(self) -> Receive:
        """ASGI's receive; after the body it says only that the client left."""
        return self._receive

    def header(self, name: bytes) -> str:
        """Returns a header's value ("" if absent). `name` in lower case."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def request_id(self) -> str:
        """The client's own `x-request-id`, or "" if it has none that may be echoed."""
        text = self.header(b"x-request-id")
        return text if _REQUEST_ID.fullmatch(text) else ""

    def query(self, allowed: Iterable[str]) -> dict[str, str]:
        """Returns the query's parameters.

        Raises:
            BadRequest: one is not in `allowed`, or stands there twice.
        """
        known = list(allowed)
        found: dict[str, str] = {}
        for key, value in parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True):
            if key not in known:
                raise BadRequest(
                    f"unknown query parameter {key[:40]!r}: known are {', '.join(known) or 'none'}", param=key[:40]
                )
            if key in found:
                raise BadRequest(f"query parameter {key!r} stands there twice; give it once", param=key)
            found[key] = value
        return found

    async def read_body(self, max_bytes: int) -> bytes:
        """Returns the whole body.

        Raises:
            TooLarge: it is over `max_bytes`, by its announced or its real length.
            BadRequest: code `body_timeout`: it paused for `BODY_PAUSE_S`.
            ClientGone: the client left meanwhile.
        """
        announced = self.headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > max_bytes:
            raise _too_large(f"{int(announced)}", max_bytes)
        message = await self._next_piece()
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            if len(body) > max_bytes:
                raise _too_large(f"{len(body)}", max_bytes)
            return body
        pieces, size = [body], len(body)
        while message.get("more_body", False):
            if size > max_bytes:
                raise _too_large(f"more than {size}", max_bytes)
            message = await self._next_piece()
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
        if size > max_bytes:
            raise _too_large(f"{size}", max_bytes)
        return b"".join(pieces)

    async def _next_piece(self) -> Message:
        try:
            async with asyncio.timeout(BODY_PAUSE_S):
                message = await self._receive()
        except TimeoutError:
            raise BadRequest(
                f"the request's body paused for {BODY_PAUSE_S:g} s; send it without a break", code="body_timeout"
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message


def _too_large(size: str, max_bytes: int) -> TooLarge:
    return TooLarge(
        f"request body of {size} bytes is over the limit max_input_bytes={max_bytes}; "
        "send less, or raise [limits] max_input_bytes on the edge"
    )


def parse_json(body: bytes) -> Any:
    """Returns the JSON value of a request's body.

    Raises:
        BadRequest: code `invalid_json`, with the position.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not body:
            raise BadRequest("the request has no body; send a JSON object", code="invalid_json") from None
        raise BadRequest(
            f"the request's body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            code="invalid_json",
        ) from None


async def send_bytes(send: Send, status: int, body: bytes, headers: Headers) -> int:
    """Sends a whole answer; adds only `content-length`. Returns `status`."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, (b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})
    return status


async def send_json(send: Send, status: int, value: Any, headers: Headers = ()) -> int:
    """Sends a JSON value as a whole answer. Returns `status`."""
    return await send_bytes(send, status, orjson.dumps(value), [JSON_TYPE, *headers])


async def send_empty(send: Send, status: int, headers: Headers = ()) -> int:
    """Sends an answer without a body (204 and the like). Returns `status`."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": b""})
    return status


Handler: TypeAlias = Callable[[Request, Send], Awaitable[int]]
"""Answers one request and returns the status, for the metrics. An IopError that it raises before it has sent
anything is answered in the dialect of the path."""


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path. `{name}` in it stands for one segment, `{name...}` for everything to the end."""

    method: str
    path: str
    handler: Handler


@dataclass(frozen=True, slots=True)
class Found:
    """What a path leads to: a handler by method, and the placeholders' values. `path`: the route's own."""

    path: str
    by_method: Mapping[str, Handler]
    params: Mapping[str, str]


class RouteTable:
    """All routes. A path without placeholders is one look-up; the others are tried in order."""

    def __init__(self, routes: Sequence[Route]) -> None:
        exact: dict[str, dict[str, Handler]] = {}
        patterns: dict[str, dict[str, Handler]] = {}
        for route in routes:
            by_path = patterns if "{" in route.path else exact
            by_method = by_path.setdefault(route.path, {})
            assert route.method not in by_method, f"{route.method} {route.path} stands there twice"
            by_method[route.method] = route.handler
        no_params: Mapping[str, str] = {}
        self._exact = {path: Found(path, by_method, no_params) for path, by_method in exact.items()}
        self._patterns = [(path, _compile(path), by_method) for path, by_method in patterns.items()]
        self.paths = sorted({route.path for route in routes})

    def find(self, path: str) -> Found | None:
        """Returns what `path` leads to, or None."""
        found = self._exact.get(path)
        if found is not None:
            return found
        for route_path, pattern, by_method in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                return Found(route_path, by_method, match.groupdict())
        return None


def _compile(path: str) -> re.Pattern[str]:
    parts = re.split(r"(\{[a-z_]+(?:\.\.\.)?\})", path)
    return re.compile("".join(_part_pattern(part) for part in parts))


def _part_pattern(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    name = part.strip("{}")
    return f"(?P<{name[:-3]}>.+)" if name.endswith("...") else f"(?P<{name}>[^/]+)"
