"""HTTP to one OpenAI-compatible engine: httpx's aiohttp transport, used without a client around it.

The transport alone costs half the CPU per token of plain httpx, and has no cookies, redirects, proxies from the
environment or decoding that could surprise us. Closing an answer before its end closes the connection at once,
which is what makes an engine stop. All transport trouble leaves here as RunFailed.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextvars import ContextVar
from typing import Final, cast

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from iop_node.adapters import openai_errors
from iop_node.adapters.openai_errors import EngineAt
from iop_shared.errors import RunFailed

KEEP_ALIVE_S: Final = 4.0
"""Below the 5 s after which llama.cpp's server and uvicorn close an idle connection."""
TRANSPORT_ERRORS: Final = (httpx.HTTPError, aiohttp.ClientError, OSError)
"""What the transport raises while an answer is read."""

_LARGE_BODY_BYTES: Final = 512 * 1024
_PIECE_BYTES: Final = 256 * 1024
_DRAIN_S: Final = 0.1
_attempt: ContextVar["_Attempt | None"] = ContextVar("iop_request_attempt", default=None)


class EngineAnswer:
    """One answer: status, headers and a body to be read once. Always `aclose` it."""

    def __init__(self, engine: EngineAt, response: httpx.Response) -> None:
        self._engine = engine
        self._stream = cast("httpx.AsyncByteStream", response.stream)
        # It is an async generator; what it holds open must be closed by hand.
        self._pieces = cast("AsyncGenerator[bytes, None]", aiter(self._stream))
        self.status = response.status_code
        self.headers = response.headers

    @property
    def media_type(self) -> str:
        """The content type without parameters, lower case; "" if there is none."""
        content_type: str = self.headers.get("content-type", "")
        return content_type.partition(";")[0].strip().lower()

    def pieces(self) -> AsyncIterator[bytes]:
        """Returns the body as it arrives, up to 16 KiB at a time. Raises TRANSPORT_ERRORS."""
        return self._pieces

    async def read(self, max_bytes: int) -> tuple[bytes, bool]:
        """Returns the body, and whether there is more than `max_bytes` of it (which is then left out).

        Raises:
            RunFailed: `engine_stream_truncated`.
        """
        data = bytearray()
        try:
            async for piece in self._pieces:
                data += piece
                if len(data) > max_bytes:
                    return bytes(data[:max_bytes]), True
        except TRANSPORT_ERRORS as error:
            what = f"broke the connection after {len(data)} bytes of its answer ({words_of(error)})"
            raise openai_errors.stream_truncated(self._engine, what, has_output=False) from error
        return bytes(data), False

    async def drain(self) -> None:
        """Reads the few bytes that end a body, so that the connection can be used again; gives up after 0.1 s."""
        try:
            async with asyncio.timeout(_DRAIN_S):
                async for _ in self._pieces:
                    return  # more than an end: not worth reading
        except (TimeoutError, *TRANSPORT_ERRORS):
            pass  # everything that matters has come already

    async def aclose(self) -> None:
        """Ends the answer. If its body has not ended, the connection is closed at once. Safe to call twice."""
        await self._pieces.aclose()
        try:
            await self._stream.aclose()
        except TRANSPORT_ERRORS:
            pass  # it is closed all the same


class EngineClient:
    """Connections to one engine. Opened at the first request, inside the running loop."""

    def __init__(self, base_url: str, *, api_key: str | None, connect_timeout_s: float) -> None:
        self._base_url = base_url
        self._urls: dict[str, httpx.URL] = {}  # parsing one is half of what a request object costs
        headers = {"accept-encoding": "identity", "user-agent": "iop-node"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        # Made once: httpx looks a header up in a list, and finds out the encoding of each one anew.
        self._headers = httpx.Headers(headers, encoding="utf-8")
        self._json_headers = httpx.Headers({**headers, "content-type": "application/json"}, encoding="utf-8")
        self._timeout = {"connect": connect_timeout_s}
        # Loading the trusted certificates takes 20 ms: not for plain HTTP.
        secure = base_url.startswith("https:")
        self._tls = ssl.create_default_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._transport = AiohttpTransport(verify=self._tls, client=self._open_session)

    def _open_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0,  # the adapter's max_concurrent is the bound
            keepalive_timeout=KEEP_ALIVE_S,
            ssl=self._tls,
            socket_factory=_open_socket,
        )
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)

    async def post(self, engine: EngineAt, path: str, body: bytes) -> EngineAnswer:
        """Sends `body` (JSON) and returns the answer once its headers are here.

        A pooled connection that turns out to be dead before it answered is replaced once. Cancelling closes
        the connection.

        Raises:
            RunFailed: `engine_unreachable`, `engine_stream_truncated` or `engine_bad_response`.
        """
        return await self._send(engine, "POST", path, self._json_headers, body)

    async def get(self, engine: EngineAt, path: str) -> EngineAnswer:
        """Asks for `path`. Raises like `post`."""
        return await self._send(engine, "GET", path, self._headers, b"")

    async def aclose(self) -> None:
        """Closes all connections. Safe to call twice."""
        await self._transport.aclose()

    def _url(self, path: str) -> httpx.URL:
        """Returns the URL of one of the few paths that an adapter asks for."""
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = httpx.URL(self._base_url + path)
        return url

    async def _send(
        self, engine: EngineAt, method: str, path: str, headers: httpx.Headers, body: bytes
    ) -> EngineAnswer:
        for is_last in (False, True):
            attempt = _Attempt()
            _attempt.set(attempt)
            try:
                response = await self._transport.handle_async_request(self._request(method, path, headers, body))
            except (*TRANSPORT_ERRORS, aiohttp.http.HttpProcessingError) as error:
                if not attempt.has_dialled and not is_last and _is_stale(error):
                    continue
                raise failure_of(engine, error) from error
            return EngineAnswer(engine, response)
        raise AssertionError("unreachable: the second attempt returns or raises")

    def _request(self, method: str, path: str, headers: httpx.Headers, body: bytes) -> httpx.Request:
        extensions = {"timeout": self._timeout}
        if len(body) > _LARGE_BODY_BYTES:  # aiohttp warns about one piece: it would hold up the loop
            headers = headers.copy()
            headers["content-length"] = str(len(body))
            return httpx.Request(
                method, self._url(path), headers=headers, stream=_Pieces(body), extensions=extensions
            )
        # As a stream, with which httpx adds no headers of its own: aiohttp adds the same ones (host, length).
        request = httpx.Request(method, self._url(path), stream=httpx.ByteStream(body), extensions=extensions)
        request.headers = headers
        request.read()
        return request


class _Pieces(httpx.AsyncByteStream):
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        view = memoryview(self._body)
        for at in range(0, len(view), _PIECE_BYTES):
            yield bytes(view[at : at + _PIECE_BYTES])


class _Attempt:
    """One try at a request. `has_dialled`: it opened a connection, instead of using one from the pool."""

    __slots__ = ("has_dialled",)

    def __init__(self) -> None:
        self.has_dialled = False


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    # In the requesting task or one made by it, so in its context. A trace would tell too, at each request's cost.
    attempt = _attempt.get()
    if attempt is not None:
        attempt.has_dialled = True
    family, kind, protocol, _, _ = address
    return socket.socket(family, kind, protocol)


def _is_stale(error: BaseException) -> bool:
    """Whether a connection ended before any byte of an answer."""
    cause = error.__cause__ or error
    if isinstance(cause, aiohttp.ServerDisconnectedError):
        return isinstance(cause.message, str)  # else the half of an answer that was read
    return isinstance(cause, aiohttp.ClientOSError) and not isinstance(cause, aiohttp.ClientConnectorError)


def failure_of(engine: EngineAt, error: BaseException) -> RunFailed:
    """Returns the failure of a request that got no answer. By aiohttp's classes: httpx has fewer."""
    cause = error.__cause__ or error
    match cause:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return openai_errors.unreachable(engine, f"TLS failed ({words_of(error)})")
        case aiohttp.ClientConnectorDNSError():
            return openai_errors.unreachable(engine, "its host name cannot be resolved")
        case aiohttp.ClientConnectorError():
            return openai_errors.unreachable(engine, words_of(error))
        case aiohttp.ServerTimeoutError():
            return openai_errors.unreachable(engine, "the connection was not accepted within connect_timeout_s")
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
            what = "closed the connection before it answered"
            return openai_errors.stream_truncated(engine, what, has_output=False)
        case aiohttp.ClientResponseError() | aiohttp.http.HttpProcessingError():
            return openai_errors.bad_response(engine, "gave an answer that is no HTTP")
        case _:
            return openai_errors.unreachable(engine, words_of(error))


def words_of(error: BaseException) -> str:
    """Returns the system's words for a transport error, without addresses or data."""
    cause = error.__cause__ or error
    if isinstance(cause, aiohttp.ClientConnectorError):
        cause = cause.os_error
    if isinstance(cause, OSError) and (cause.errno or 0) > 0 and not isinstance(cause, ssl.SSLError):
        return os.strerror(cause.errno or 0).lower()
    return type(cause).__name__
