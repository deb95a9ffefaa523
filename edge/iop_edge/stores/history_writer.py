"""HistoryWriter: takes records of runs at once and writes them in batches, off the hot path.

Only the newest state of a run is written. Rule for full: while nothing can be written the edge takes no new
runs (`trouble`), so the records that wait are bounded by the live runs; lifecycle events beyond
`MAX_PENDING_EVENTS` lose the oldest, which are counted.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from iop_edge.domain.ports import RunHistory, ViewMaker
from iop_edge.domain.views import RunEventView, RunView
from iop_edge.stores.rows import LIFECYCLE_TYPES
from iop_shared.aio.tasks import TaskOwner
from iop_shared.clock import Clock
from iop_shared.errors import IopError, Unavailable
from iop_shared.ids import RunId
from iop_shared.logs import get_logger

FLUSH_INTERVAL_S: Final = 0.05
"""How long a batch gathers: what a power cut may cost, and the wait of a terminal's ack. Chosen."""
RETRY_S: Final = 1.0
MAX_BATCH: Final = 500
MAX_PENDING_EVENTS: Final = 50_000
PRUNE_INTERVAL_S: Final = 60.0
PRUNE_BATCH: Final = 500
_DAY_MS: Final = 86_400_000

_log = get_logger("history")


class HistoryWriter:
    """Writes to one RunHistory. `start` it on the loop; `aclose` writes what waits."""

    def __init__(
        self,
        history: RunHistory,
        clock: Clock,
        *,
        retain_days: float = 30.0,
        retain_runs: int = 100_000,
        flush_interval_s: float = FLUSH_INTERVAL_S,
    ) -> None:
        self._history, self._clock = history, clock
        self._retain_ms, self._retain_runs = round(retain_days * _DAY_MS), retain_runs
        self._flush_interval_s = flush_interval_s
        self._views: dict[RunId, ViewMaker] = {}
        self._writing: dict[RunId, ViewMaker] = {}
        self._saved: list[tuple[RunId, Callable[[], None]]] = []
        self._events: deque[tuple[RunId, RunEventView]] = deque()
        self._wake = asyncio.Event()
        self._one_batch = asyncio.Lock()
        self._trouble = ""
        self._closing = False
        self._tasks = TaskOwner("history", self._on_failure)
        self.dropped_events = 0
        self.failed_batches = 0

    def start(self) -> None:
        """Begins to write and to delete what is too old. Call once, on the loop."""
        self._tasks.spawn(self._write_batches(), name="history writer")
        self._tasks.spawn(self._prune_regularly(), name="history retention")

    @property
    def pending(self) -> int:
        """Records and events that are not written yet."""
        return len(self._views) + len(self._writing) + len(self._events)

    def trouble(self) -> str:
        """Returns a sentence while records cannot be written, "" otherwise."""
        return self._trouble

    def record(self, run_id: RunId, view: ViewMaker, on_saved: Callable[[], None] | None = None) -> None:
        """Takes that a run changed; `view` is asked when it is written, so a short run costs one record."""
        self._views[run_id] = view
        if on_saved is not None:
            self._saved.append((run_id, on_saved))
        self._wake.set()

    def record_event(self, run_id: RunId, event: RunEventView) -> None:
        """Takes a lifecycle event; bodies that are none are ignored."""
        if type(event.body) not in LIFECYCLE_TYPES:
            return
        if len(self._events) >= MAX_PENDING_EVENTS:
            self._events.popleft()
            self.dropped_events += 1
        self._events.append((run_id, event))
        self._wake.set()

    def pending_view(self, run_id: RunId) -> RunView | None:
        """Returns a record that is not written yet."""
        view = self._views.get(run_id) or self._writing.get(run_id)
        return None if view is None else view()

    async def flush(self) -> None:
        """Returns once what waits now is written, or cannot be written."""
        while (self._views or self._events or self._writing) and not self._trouble and not self._closing:
            try:
                await self._write_batch()
            except Unavailable:
                return  # the writer's own task meets it too, and tells

    async def aclose(self, timeout_s: float = 5.0) -> None:
        """Writes what waits, within `timeout_s`, and stops. Safe to call twice."""
        self._closing = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._tasks.cancel_all()
                while self._views or self._events:
                    await self._write_batch()
        except (TimeoutError, IopError) as error:
            _log.error("history_lost", runs=len(self._views), events=len(self._events), reason=str(error))

    async def _write_batches(self) -> None:
        while True:
            await self._wake.wait()
            # A batch of one run costs nearly as much as one of fifty: a transaction, and two changes of threads.
            # So every one gathers, also the one of what came while the last was written.
            if max(len(self._views), len(self._events)) < MAX_BATCH:
                await asyncio.sleep(self._flush_interval_s)
            self._wake.clear()
            try:
                await self._write_batch()
            except Unavailable as error:
                self.failed_batches += 1
                if not self._trouble:
                    _log.error("history_unavailable", reason=str(error), pending=self.pending)
                self._trouble = str(error)
                await asyncio.sleep(RETRY_S)
            else:
                if self._trouble:
                    _log.info("history_recovered", pending=self.pending)
                self._trouble = ""
            if self._views or self._events:
                self._wake.set()

    async def _write_batch(self) -> None:
        async with self._one_batch:
            run_ids = list(self._views)[:MAX_BATCH]
            self._writing = {run_id: self._views.pop(run_id) for run_id in run_ids}
            events = [self._events.popleft() for _ in range(min(len(self._events), MAX_BATCH))]
            callbacks, self._saved = self._saved, []
            try:
                await self._history.save([view() for view in self._writing.values()], events)
            except Unavailable:
                self._put_back(events, callbacks)
                raise
            except asyncio.CancelledError:
                self._put_back(events, callbacks)  # `aclose` writes it once more; rows are replaced, not doubled
                raise
            except Exception as error:
                # Our bug (a value the tables cannot hold): trying again would stop every other record.
                self.failed_batches += 1
                _log.error("history_batch_dropped", runs=len(self._writing), events=len(events), exc_info=error)
            written, self._writing = self._writing, {}
        for run_id, on_saved in callbacks:
            if run_id in written and run_id not in self._views:
                on_saved()
            else:
                self._saved.append((run_id, on_saved))

    def _put_back(
        self, events: list[tuple[RunId, RunEventView]], callbacks: list[tuple[RunId, Callable[[], None]]]
    ) -> None:
        self._events.extendleft(reversed(events))
        self._saved = callbacks + self._saved
        # A newer state of the same run wins.
        self._views = {**self._writing, **self._views}
        self._writing = {}

    async def _prune_regularly(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_INTERVAL_S)
            try:
                await self.prune()
            except Unavailable as error:
                _log.warning("history_prune_failed", reason=str(error))

    async def prune(self) -> int:
        """Deletes what is too old, batch by batch, so that no transaction holds the file for long."""
        total = 0
        before_ms = self._clock.wall_ms() - self._retain_ms
        while True:
            gone = await self._history.prune(before_ms=before_ms, keep_runs=self._retain_runs, batch=PRUNE_BATCH)
            total += gone
            if gone < PRUNE_BATCH:
                break
        if total:
            _log.info("history_pruned", runs=total)
        return total

    def _on_failure(self, task: str, error: BaseException) -> None:
        self._trouble = f"{task} ended unexpectedly; restart the edge"
        _log.error("history_task_failed", task=task, exc_info=error)
