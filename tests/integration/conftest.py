"""One real edge and its nodes as processes, each test with its own folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.daemons import EdgeDaemon, NodeDaemon

MOCK = '[adapters.mock]\ntype = "mock"\nmax_concurrent = 4\n'

StartNode = Callable[..., NodeDaemon]


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    """The event loop that the daemons run on."""
    name: str = request.param
    return name


@pytest.fixture
def edge(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EdgeDaemon]:
    """A running edge that offers `mock` to every node, with short liveness times."""
    edge = EdgeDaemon(
        tmp_path / "edge",
        loop=request.getfixturevalue("loop") if "loop" in request.fixturenames else "uvloop",
        config=MOCK + "[limits]\nheartbeat_interval_s = 1\ndead_after_s = 3\ndisconnect_grace_s = 5\n",
    )
    try:
        edge.start()
        yield edge
    finally:
        edge.end()


@pytest.fixture
def start_node(edge: EdgeDaemon, tmp_path: Path) -> Iterator[StartNode]:
    """Joins and starts nodes of `edge`; ends them all."""
    nodes: list[NodeDaemon] = []

    def start(name: str = "gpu-1", *, loop: str = "uvloop", run: bool = True) -> NodeDaemon:
        token = edge.first_token if name == "gpu-1" else edge.add_token(name)
        node = NodeDaemon(tmp_path / name, name=name, link=edge.run_file["link"], token=token, loop=loop)
        nodes.append(node)
        if run:
            node.start()
            edge.wait_connected(name)
        return node

    try:
        yield start
    finally:
        for node in nodes:
            node.end()
