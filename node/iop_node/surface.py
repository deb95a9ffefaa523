"""The node's own HTTP: /healthz and /metrics, as one bare ASGI callable. For operators and scrapers.

Ready means that a session with the edge is established, not that a process exists.
"""

from collections.abc import Callable
from typing import Any, Final

import orjson

from iop_node.core.node import Node
from iop_node.transport.edge_link import EdgeLink
from iop_shared.aio.http_server import ASGIApp, Receive, Scope, Send
from iop_shared.metrics import Metrics

_JSON: Final = "application/json"
Answer = tuple[int, str, bytes]


class NodeSurface:
    """Answers GET and HEAD of two paths; everything else is 404 or 405."""

    def __init__(self, node: Node, link: EdgeLink, metrics: Metrics) -> None:
        self._node, self._link, self._metrics = node, link, metrics
        self._paths: Final[dict[str, Callable[[], Answer]]] = {
            "/healthz": self._health,
            "/metrics": self._render_metrics,
        }

    @property
    def app(self) -> ASGIApp:
        """The ASGI application."""
        return self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        page = self._paths.get(path)
        allow: list[tuple[bytes, bytes]] = []
        if page is None:
            known = " and ".join(self._paths)
            status, media_type, body = _error(404, "not_found", f"there is no {path[:80]!r} here, only {known}")
        elif method not in ("GET", "HEAD"):
            status, media_type, body = _error(405, "method_not_allowed", f"{path} takes GET, not {method}")
            allow = [(b"allow", b"GET, HEAD")]
        else:
            status, media_type, body = page()
        headers = [
            (b"content-type", media_type.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            *allow,
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    def _health(self) -> Answer:
        statistics, link = self._node.statistics(), self._link
        end = link.last_end
        ready = link.is_open and not statistics.draining
        content: dict[str, Any] = {
            "status": "ok" if ready else "draining" if statistics.draining else "not_connected",
            "ready": ready,
            "node_id": self._node.node_id,
            "boot_id": self._node.boot_id,
            "uptime_s": round(statistics.uptime_s, 3),
            "link": {
                "edge": str(link.address),
                "open": link.is_open,
                "epoch": link.epoch,
                "dials": link.dials,
                "last_end": None if end is None else {"code": end.code, "message": end.message},
            },
            "runs": {"live": statistics.live_runs, "max": statistics.max_runs},
            "adapters": {
                status.name: {"type": status.type, "gate": status.gate.state.value, "reason": status.gate.reason}
                for status in self._node.adapter_statuses()
            },
        }
        return 200 if ready else 503, _JSON, orjson.dumps(content)

    def _render_metrics(self) -> Answer:
        body, media_type = self._metrics.render()
        return 200, media_type, body


def _error(status: int, code: str, message: str) -> Answer:
    return status, _JSON, orjson.dumps({"error": {"code": code, "message": message}})
