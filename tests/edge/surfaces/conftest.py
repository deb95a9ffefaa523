"""The edge's HTTP application on a real socket, in front of a scripted service."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
from tests.support.scripted_service import ScriptedService

from iop_edge.surfaces.app import HttpApp, build_app
from iop_edge.surfaces.browser_guard import BrowserGuard
from iop_edge.surfaces.sse import Pacing
from iop_shared.aio.http_server import HttpServer
from iop_shared.aio.tasks import TaskOwner
from iop_shared.clock import SystemClock
from iop_shared.http_listen import ListenAddress
from iop_shared.metrics import Metrics

QUICK_PACING = Pacing(tick_s=0.05, start_after_ticks=2)


@dataclass
class Edge:
    """A served application. `url` has no slash at its end."""

    service: ScriptedService
    app: HttpApp
    metrics: Metrics
    address: ListenAddress
    server: HttpServer
    tasks: TaskOwner
    client: httpx.AsyncClient
    failures: list[str]

    @property
    def url(self) -> str:
        return f"http://{self.address}"


@pytest.fixture
def pacing() -> Pacing:
    """When silent streams speak; the real pacing unless a module says otherwise."""
    return Pacing()


@pytest.fixture
async def edge(watched_tasks: None, pacing: Pacing) -> AsyncIterator[Edge]:
    failures: list[str] = []
    tasks = TaskOwner("http", lambda name, error: failures.append(f"{name}: {error!r}"))
    metrics = Metrics(with_process=False)
    service = ScriptedService()
    app = build_app(
        service, metrics, tasks, SystemClock(), guard=BrowserGuard(), max_input_bytes=4096, pacing=pacing
    )
    server = HttpServer(app, ListenAddress("127.0.0.1", 0), name="http")
    address = await server.start()
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=5, trust_env=False) as client:
        yield Edge(service, app, metrics, address, server, tasks, client, failures)
    await server.stop(0.2)
    await tasks.cancel_all()
    assert not failures
