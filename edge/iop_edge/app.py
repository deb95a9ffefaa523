"""The composition root: the only place of the edge that wires everything together.

Start:  lock, database, history (what was live is interrupted), service, link's port, HTTP's port, run.json
Stop:   no new runs and nodes; live runs are cancelled and get `stop_grace_s`; links say goodbye; HTTP;
        history is written; database; run.json goes
"""

import asyncio
import json
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from iop_edge.config import DATABASE_FILE, LOCK_FILE, RUN_FILE, EdgeSettings
from iop_edge.dispatch import DispatchLimits
from iop_edge.domain.catalog import Catalog
from iop_edge.domain.kept_events import KeptEvents
from iop_edge.domain.ledger import LedgerLimits
from iop_edge.domain.node_configs import NodeConfigs, Revision
from iop_edge.event_log import EventLog
from iop_edge.metrics import EdgeMetrics
from iop_edge.service import EdgeService, ServiceLimits
from iop_edge.stores.history_writer import HistoryWriter
from iop_edge.stores.node_records import EpochCounter, load_revisions, save_revision
from iop_edge.stores.schema import MIGRATIONS
from iop_edge.stores.sqlite_history import SqliteRunHistory
from iop_edge.stores.tokens import SqliteTokenStore
from iop_edge.surfaces.app import HttpApp, build_app
from iop_edge.surfaces.browser_guard import BrowserGuard
from iop_edge.transport.listener import LinkDoor
from iop_edge.transport.token_book import TokenBook
from iop_shared import __version__
from iop_shared.aio.http_server import HttpServer
from iop_shared.aio.loop import StopSignal
from iop_shared.aio.sqlite import Database
from iop_shared.aio.tasks import TaskOwner
from iop_shared.clock import Clock, SystemClock
from iop_shared.errors import Unavailable
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import AdapterName, NodeId
from iop_shared.instance_lock import InstanceLock
from iop_shared.link.messages import LinkLimits
from iop_shared.logs import get_logger
from iop_shared.metrics import Metrics
from iop_shared.private_files import write_private

TICK_S: Final = 0.1
EPOCH_REFILL_S: Final = 60.0
STOP_GRACE_S: Final = 5.0
"""What live runs get to end after they were cancelled. Chosen; change freely."""
HTTP_GRACE_S: Final = 2.0

_log = get_logger("edge")


@dataclass(frozen=True, slots=True)
class EdgeAddresses:
    """Where a running edge listens, with real ports."""

    link: ListenAddress
    http: ListenAddress


class EdgeApp:
    """One edge in one folder. `start`, then `stop`; or `run_edge` for both."""

    def __init__(self, settings: EdgeSettings, folder: Path, *, clock: Clock | None = None) -> None:
        self._settings, self._folder = settings, folder
        self._clock = clock or SystemClock()
        self._stack = AsyncExitStack()
        self._tasks = TaskOwner("edge", self._on_task_failed)
        self._http_tasks = TaskOwner("http", self._on_task_failed)
        self._database: Database | None = None
        self._service: EdgeService | None = None
        self._door: LinkDoor | None = None
        self._http: HttpServer | None = None
        self._http_app: HttpApp | None = None
        self._has_run_file = False
        self._is_started = False

    @property
    def service(self) -> EdgeService:
        """The service; only after `start`."""
        assert self._service is not None, "start comes first"
        return self._service

    async def start(self) -> EdgeAddresses:
        """Starts everything and returns where it listens. What was started is stopped again if this raises.

        Raises:
            Unavailable: a port is in use, the database cannot be opened, or an edge runs in this folder.
        """
        try:
            return await self._start()
        except BaseException:
            await self.stop("start failed", grace_s=0.0)
            raise

    async def _start(self) -> EdgeAddresses:
        settings, clock = self._settings, self._clock
        self._stack.enter_context(InstanceLock(self._folder / LOCK_FILE, "an edge"))
        database = await Database.open(self._folder / DATABASE_FILE, MIGRATIONS, name="edge")
        self._database = database
        self._stack.push_async_callback(database.aclose)

        history = SqliteRunHistory(database)
        interrupted = await history.interrupt_live("edge_restarted", clock.wall_ms())
        if interrupted:
            _log.warning("runs_interrupted", runs=interrupted, reason="edge_restarted")
        epochs = await EpochCounter.open(database)
        revisions = await load_revisions(database)
        writer = HistoryWriter(
            history,
            clock,
            retain_days=settings.history.retain_days,
            retain_runs=settings.history.retain_runs,
        )
        writer.start()
        self._stack.push_async_callback(writer.aclose)
        self._stack.push_async_callback(self._tasks.cancel_all)

        service = self._build_service(history, writer, revisions)
        self._service = service
        tokens = TokenBook(SqliteTokenStore(database), clock)
        await tokens.refresh()
        door = self._build_door(service, tokens, epochs)
        metrics = Metrics()
        EdgeMetrics(
            metrics,
            service,
            link_count=lambda: door.link_count,
            history_pending=lambda: writer.pending,
            history_failures=lambda: writer.failed_batches,
        )
        service.bus.add_listener(EventLog().on_event)

        link_address = await door.start(settings.link.listen)
        self._door = door
        app = build_app(
            service,
            metrics,
            self._http_tasks,
            clock,
            guard=BrowserGuard([settings.http.listen.host]),
            max_input_bytes=settings.limits.max_input_bytes,
        )
        http = HttpServer(app, settings.http.listen, name="http")
        http_address = await http.start()
        self._http, self._http_app = http, app

        self._tasks.spawn(self._tick(), name="edge clock")
        self._tasks.spawn(tokens.watch(), name="tokens")
        self._tasks.spawn(self._refill_epochs(epochs), name="epochs")
        addresses = EdgeAddresses(link_address, http_address)
        self._write_run_file(addresses)
        detail = {"link": str(link_address), "http": str(http_address)}
        self._is_started = True
        service.bus.publish("edge_started", detail=detail)
        _log.info("edge_started", version=__version__, folder=str(self._folder), **detail)
        return addresses

    async def stop(self, reason: str, *, grace_s: float = STOP_GRACE_S) -> None:
        """Stops everything, in order. Safe to call twice, and after a `start` that failed."""
        if self._service is not None and self._is_started:
            self._service.begin_stop(reason)
        if self._door is not None:
            await self._door.stop_accepting()
        if self._service is not None and self._service.cancel_all("edge_draining"):
            await self._wait_runs_ended(self._service, grace_s)
        if self._service is not None:
            self._service.interrupt_all("edge_restarted")
        if self._door is not None:
            await self._door.close("edge_stopping", f"the edge is stopping ({reason})")
            self._door = None
        if self._http_app is not None:
            self._http_app.end_event_streams()
        if self._http is not None:
            await self._http.stop(HTTP_GRACE_S)
            self._http = None
        await self._http_tasks.cancel_all()
        await self._stack.aclose()
        if self._has_run_file:
            (self._folder / RUN_FILE).unlink(missing_ok=True)
            self._has_run_file = False

    def _build_service(
        self, history: SqliteRunHistory, writer: HistoryWriter, revisions: dict[NodeId, Revision]
    ) -> EdgeService:
        settings, limits = self._settings, self._settings.limits
        return EdgeService(
            clock=self._clock,
            catalog=Catalog(settings.profile_values(), [AdapterName(name) for name in settings.adapters]),
            configs=NodeConfigs(settings.adapters_of, revisions, self._keep_revision),
            history=history,
            sink=writer,
            limits=ServiceLimits(
                dispatch=DispatchLimits(
                    max_live_runs=limits.max_live_runs,
                    max_input_bytes=limits.max_input_bytes,
                    stream_buffer_bytes=limits.stream_buffer_bytes,
                ),
                ledger=LedgerLimits(
                    accept_timeout_s=limits.accept_timeout_s,
                    disconnect_grace_s=limits.disconnect_grace_s,
                    cancel_settle_s=limits.cancel_settle_s,
                ),
                max_queued=limits.max_queued,
                queue_timeout_s=limits.queue_timeout_s,
                heartbeat_interval_s=limits.heartbeat_interval_s,
            ),
            nodes={NodeId(name): section.labels for name, section in settings.nodes.items()},
            kept=KeptEvents(
                per_run_bytes=limits.kept_run_bytes,
                total_bytes=limits.kept_total_bytes,
                retain_ended_s=limits.kept_after_end_s,
            ),
        )

    def _build_door(self, service: EdgeService, tokens: TokenBook, epochs: EpochCounter) -> LinkDoor:
        limits = self._settings.limits
        return LinkDoor(
            service=service,
            tokens=tokens,
            epochs=epochs,
            limits=LinkLimits(
                heartbeat_interval_s=limits.heartbeat_interval_s,
                dead_after_s=limits.dead_after_s,
                disconnect_grace_s=limits.disconnect_grace_s,
            ),
            clock=self._clock,
            tasks=self._tasks,
            edge_id=self._settings.edge_id,
            max_handshakes=self._settings.link.max_handshakes,
        )

    def _keep_revision(self, node_id: NodeId, revision: Revision) -> None:
        self._tasks.spawn(self._save_revision(node_id, revision), name=f"config revision of {node_id}")

    async def _save_revision(self, node_id: NodeId, revision: Revision) -> None:
        assert self._database is not None, "nodes come after the database"
        try:
            await save_revision(self._database, node_id, revision)
        except Unavailable as error:
            # The node remembers the revision too, so a later one still grows.
            _log.warning("config_revision_not_saved", node_id=node_id, reason=str(error))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.service.tick()
            except Exception as error:
                # Our bug; but without the clock no deadline of any run would hold.
                _log.error("tick_failed", exc_info=error)

    async def _refill_epochs(self, epochs: EpochCounter) -> None:
        while True:
            await asyncio.sleep(EPOCH_REFILL_S)
            try:
                await epochs.refill()
            except Unavailable as error:
                _log.warning("epochs_not_reserved", reason=str(error))

    async def _wait_runs_ended(self, service: EdgeService, grace_s: float) -> None:
        try:
            async with asyncio.timeout(grace_s):
                with service.subscribe() as events:
                    while len(service.runs.ledger):
                        await events.next_batch()
        except TimeoutError:
            _log.warning("runs_did_not_end", runs=len(service.runs.ledger), grace_s=grace_s)

    def _write_run_file(self, addresses: EdgeAddresses) -> None:
        content = {"pid": os.getpid(), "link": str(addresses.link), "http": str(addresses.http)}
        write_private(self._folder / RUN_FILE, json.dumps(content) + "\n")
        self._has_run_file = True

    def _on_task_failed(self, task: str, error: BaseException) -> None:
        _log.error("task_failed", task=task, exc_info=error)


async def run_edge(settings: EdgeSettings, folder: Path, stop: StopSignal) -> int:
    """Runs an edge until `stop` is set; returns the exit code of a clean stop.

    Raises:
        Unavailable: it could not start.
    """
    app = EdgeApp(settings, folder)
    await app.start()
    try:
        reason = await stop.wait()
        _log.info("edge_stop_requested", reason=reason)
    except asyncio.CancelledError:
        await app.stop("stopped at once", grace_s=0.0)
        raise
    await app.stop(reason)
    _log.info("edge_stopped")
    return 0
