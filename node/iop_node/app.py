"""The composition root: the only place of the node that wires everything together.

Start:  lock, journal (what was open is interrupted), core, HTTP's port, run.json, link
Stop:   drain (refuse new runs, let live ones end), core (end what still runs, flush to the edge), link says
        goodbye, HTTP, run.json goes, lock
"""

import asyncio
import json
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from iop_node.adapters.registry import adapter_factories
from iop_node.config import DATABASE_FILE, LOCK_FILE, RUN_FILE, NodeSettings
from iop_node.core.node import Node
from iop_node.metrics import NodeMetrics
from iop_node.store.sqlite import SqliteRunStore
from iop_node.surface import NodeSurface
from iop_node.transport.edge_link import EdgeLink
from iop_shared import __version__
from iop_shared.aio.http_server import HttpServer
from iop_shared.aio.loop import StopSignal
from iop_shared.aio.tasks import TaskOwner
from iop_shared.backoff import Backoff
from iop_shared.clock import Clock, SystemClock
from iop_shared.errors import NotAllowed
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import BootId, NodeId, new_boot_id
from iop_shared.instance_lock import InstanceLock
from iop_shared.link.auth import Token
from iop_shared.link.effects import LinkEnd
from iop_shared.link.node_side import NodeIdentity
from iop_shared.logs import get_logger
from iop_shared.metrics import Metrics
from iop_shared.private_files import write_private

HTTP_GRACE_S: Final = 1.0

log = get_logger("node")


class NodeApp:
    """One node in one folder. `start`, then `wait`, then `stop`; or `run_node` for all."""

    def __init__(
        self,
        settings: NodeSettings,
        token: Token,
        folder: Path,
        *,
        clock: Clock | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._settings, self._token, self._folder = settings, token, folder
        self._clock = clock or SystemClock()
        self._backoff = backoff
        self._stack = AsyncExitStack()
        self._tasks = TaskOwner("link", self._on_task_failed)
        self._node: Node | None = None
        self._link: EdgeLink | None = None
        self._linking: asyncio.Task[LinkEnd | None] | None = None
        self._is_stopped = False

    @property
    def node(self) -> Node:
        """The core; only after `start`."""
        assert self._node is not None, "start comes first"
        return self._node

    async def start(self) -> ListenAddress | None:
        """Starts everything; returns where /healthz is served. What was started is stopped again if this raises.

        Raises:
            Unavailable: a port is in use, the journal cannot be opened, or a node runs in this folder.
        """
        try:
            return await self._start()
        except BaseException:
            await self.stop("the node could not start")
            raise

    async def _start(self) -> ListenAddress | None:
        settings, clock = self._settings, self._clock
        self._stack.enter_context(InstanceLock(self._folder / LOCK_FILE, "a node"))
        store = await SqliteRunStore.open(
            self._folder / DATABASE_FILE, clock=clock, retention=settings.retention()
        )
        self._stack.push_async_callback(store.aclose)
        metrics = Metrics()
        counts = NodeMetrics(metrics)
        boot_id = new_boot_id()
        node = Node(
            settings.name,
            boot_id,
            factories=adapter_factories(),
            allow=settings.allow_list(),
            store=store,
            clock=clock,
            observer=counts,
            limits=settings.node_limits(),
        )
        self._node = node
        await node.start()
        store.start_sweeping()
        link = EdgeLink(
            settings.edge,
            node,
            lambda: self._identity(node, boot_id),
            tasks=self._tasks,
            clock=clock,
            max_input_bytes=settings.limits.max_input_bytes,
            backoff=self._backoff,
        )
        self._link = link
        counts.watch(node, link, store.statistics)
        http_address = await self._start_http(NodeSurface(node, link, metrics))
        self._write_run_file(http_address)
        self._linking = self._tasks.spawn(link.run(), name=f"to {settings.edge}")
        log.info(
            "node_started",
            version=__version__,
            node_id=settings.name,
            folder=str(self._folder),
            link=str(settings.edge),
            http=str(http_address or ""),
        )
        return http_address

    async def wait(self, stop: StopSignal) -> LinkEnd | None:
        """Waits until `stop` is set (returns None) or the edge refuses this node for good (returns that)."""
        assert self._linking is not None, "start comes first"
        stopping = self._tasks.spawn(stop.wait(), name="stop signal")
        await asyncio.wait({stopping, self._linking}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        return self._linking.result() if self._linking.done() else None

    async def drain(self, reason: str) -> None:
        """Takes no new runs and gives the live ones `drain_timeout_s` to end. Follow it by `stop`."""
        drain_s = self._settings.limits.drain_timeout_s
        if self._link is not None:
            self._link.announce_drain(reason, drain_s)
        if not await self.node.drain(reason, drain_s):
            log.warning("runs_did_not_end", runs=self.node.statistics().live_runs, drain_timeout_s=drain_s)

    async def stop(self, reason: str) -> None:
        """Stops everything, in order; what still runs is interrupted.

        Safe to call twice, and after a `start` that failed.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._node is not None:
            await self._node.stop(reason)
        if self._link is not None:
            await self._link.stop("node_stopping", reason)
        await self._tasks.cancel_all()
        await self._stack.aclose()

    async def _start_http(self, surface: NodeSurface) -> ListenAddress | None:
        http = self._settings.http
        if not http.enabled:
            return None
        server = HttpServer(surface.app, http.listen, name="http", max_connections=256)
        address = await server.start()
        self._stack.push_async_callback(server.stop, HTTP_GRACE_S)
        return address

    def _identity(self, node: Node, boot_id: BootId) -> NodeIdentity:
        revision, hash_ = node.config_held
        return NodeIdentity(
            NodeId(self._settings.node_id),
            boot_id,
            self._token,
            __version__,
            labels=self._settings.labels,
            config_revision=revision,
            config_hash=hash_,
        )

    def _write_run_file(self, http: ListenAddress | None) -> None:
        content = {"pid": os.getpid(), "link": str(self._settings.edge), "http": str(http or "")}
        path = self._folder / RUN_FILE
        write_private(path, json.dumps(content) + "\n")
        self._stack.callback(path.unlink, missing_ok=True)

    def _on_task_failed(self, task: str, error: BaseException) -> None:
        log.error("task_failed", task=task, error_type=type(error).__name__, exc_info=error)


async def run_node(settings: NodeSettings, token: Token, folder: Path, stop: StopSignal) -> int:
    """Runs a node until `stop` is set; returns the exit code of a clean stop.

    Raises:
        Unavailable: it could not start.
        NotAllowed: the edge refused it for good, with the edge's own sentence.
    """
    app = NodeApp(settings, token, folder)
    await app.start()
    try:
        refused = await app.wait(stop)
        if refused is None:
            await app.drain(f"the node is stopping ({stop.reason})")
    except asyncio.CancelledError:
        await app.stop("the node is stopped at once")
        raise
    if refused is not None:
        await app.stop("the edge refused this node")
        raise NotAllowed(refused.message, code=refused.code)
    await app.stop(f"the node is stopping ({stop.reason})")
    log.info("node_stopped", reason=stop.reason)
    return 0
