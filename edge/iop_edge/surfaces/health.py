"""What operators and their tools ask: is it alive, may it take work, and its numbers."""

from iop_edge.service import EdgeService
from iop_edge.surfaces.asgi import Request, Send, send_bytes, send_json
from iop_shared.metrics import Metrics


class HealthApi:
    """The handlers of /healthz, /readyz and /metrics. Open to everybody: they tell no names and no content."""

    def __init__(self, service: EdgeService, metrics: Metrics) -> None:
        self._service, self._metrics = service, metrics

    async def live(self, _request: Request, send: Send) -> int:
        """GET /healthz: the loop turns. Never depends on anything else, so that nobody restarts us in vain."""
        return await send_json(send, 200, {"status": "ok"})

    async def ready(self, _request: Request, send: Send) -> int:
        """GET /readyz: 503 with the reason while the edge cannot take runs."""
        ready, reason = self._service.is_ready()
        if ready:
            return await send_json(send, 200, {"status": "ready"})
        return await send_json(send, 503, {"status": "not_ready", "reason": reason})

    async def metrics(self, _request: Request, send: Send) -> int:
        """GET /metrics in Prometheus' text form."""
        body, content_type = self._metrics.render()
        return await send_bytes(send, 200, body, [(b"content-type", content_type.encode())])
