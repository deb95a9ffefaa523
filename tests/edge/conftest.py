"""A whole edge in this process, on free loopback ports, with a folder of its own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.fake_node import FakeNode
from tests.support.inbox import wait_for

from iop_edge.app import EdgeAddresses, EdgeApp
from iop_edge.config import load_edge_settings
from iop_edge.domain.ports import NodeToken
from iop_edge.domain.views import RunOrder
from iop_edge.relay import RunStream
from iop_edge.service import EdgeService
from iop_edge.stores.schema import MIGRATIONS
from iop_edge.stores.tokens import SqliteTokenStore
from iop_edge.transport import token_book
from iop_shared.aio.sqlite import Database
from iop_shared.ids import AdapterName, NodeId, TargetName
from iop_shared.link.auth import Token, new_token, stored_key
from iop_shared.runs import Operation
from iop_shared.runtime_events import RuntimeEvent

PORTS = '[link]\nlisten = "127.0.0.1:0"\n[http]\nlisten = "127.0.0.1:0"\n'
MOCK = '[adapters.mock]\ntype = "mock"\n'
SHORT_LIMITS = "[limits]\nheartbeat_interval_s = 0.2\ndead_after_s = 1\ndisconnect_grace_s = 0.4\n"
ORDER = RunOrder(AdapterName("mock"), TargetName("echo"), Operation.CHAT, b"one two three")


class RunningEdge:
    """An edge that can be started, stopped and started again in the same folder."""

    def __init__(self, folder: Path, config: str = "") -> None:
        self.folder = folder
        self.config = config or MOCK + SHORT_LIMITS
        self.app: EdgeApp | None = None
        self.addresses: EdgeAddresses | None = None
        self.nodes: list[FakeNode] = []

    async def start(self) -> "RunningEdge":
        path = self.folder / "edge.toml"
        path.write_text(PORTS + self.config)
        self.app = EdgeApp(load_edge_settings(path, {}), self.folder)
        self.addresses = await self.app.start()
        return self

    async def stop(self, *, grace_s: float = 0.2) -> None:
        if self.app is not None:
            await self.app.stop("the test is over", grace_s=grace_s)
            self.app = None

    @property
    def service(self) -> EdgeService:
        assert self.app is not None
        return self.app.service

    async def add_token(self, node: str = "gpu-1") -> Token:
        """Makes a token as the command does: through a connection of its own."""
        token = new_token()
        database = await Database.open(self.folder / "edge.db", MIGRATIONS, name="edge")
        await SqliteTokenStore(database).add(
            NodeToken(token.token_id, NodeId(node), stored_key(token.secret), 1000)
        )
        await database.aclose()
        return token

    async def revoke(self, token: Token) -> None:
        database = await Database.open(self.folder / "edge.db", MIGRATIONS, name="edge")
        await SqliteTokenStore(database).revoke(token.token_id, 2000)
        await database.aclose()

    def make_node(self, token: Token | None, **options: object) -> FakeNode:
        assert self.addresses is not None
        node = FakeNode(self.addresses.link, token, **options)  # type: ignore[arg-type]
        self.nodes.append(node)
        return node

    async def connect(self, node_id: str = "gpu-1", **options: object) -> FakeNode:
        """Returns a node whose link is open and whose configuration is applied."""
        node = self.make_node(await self.add_token(node_id), node_id=node_id, **options)
        await node.connect()
        await self.wait_ready(node_id)
        return node

    async def wait_ready(self, node_id: str = "gpu-1") -> None:
        def ready() -> bool:
            view = self.service.get_node(NodeId(node_id))
            return view.state == "connected" and view.config_state == "applied" and bool(view.adapters)

        await wait_for(ready, f"{node_id} is ready")


StartEdge = Callable[..., Awaitable[RunningEdge]]


@pytest.fixture
async def start_edge(
    tmp_path: Path, watched_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StartEdge]:
    monkeypatch.setattr(token_book, "POLL_INTERVAL_S", 0.05)
    edges: list[RunningEdge] = []

    async def start(config: str = "") -> RunningEdge:
        folder = tmp_path / f"edge-{len(edges)}"
        folder.mkdir()
        edge = RunningEdge(folder, config)
        edges.append(edge)
        return await edge.start()

    yield start
    for edge in edges:
        for node in edge.nodes:
            await node.aclose()
        await edge.stop()


@pytest.fixture
async def edge(start_edge: StartEdge) -> RunningEdge:
    return await start_edge()


async def read_all(stream: RunStream) -> list[RuntimeEvent]:
    """Returns everything that the stream gives, to its end."""
    events: list[RuntimeEvent] = []
    while batch := await stream.next_batch():
        events += batch
    return events
