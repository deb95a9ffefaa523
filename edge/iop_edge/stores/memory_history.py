"""RunHistory in memory: for tests, and for an edge that is to keep nothing. Passes the same contract."""

from collections.abc import Sequence
from dataclasses import replace

from iop_edge.domain.live_run import INTERRUPT_SENTENCES
from iop_edge.domain.ports import RunFilter
from iop_edge.domain.views import RunEventView, RunPage, RunView
from iop_edge.stores.rows import event_from_row, event_to_row
from iop_edge.stores.sqlite_history import check_cursor
from iop_shared.ids import RunId
from iop_shared.runs import RunState


class MemoryRunHistory:
    """Records of runs in dicts. Bounded by `prune` alone, as the other one is."""

    def __init__(self) -> None:
        self._runs: dict[RunId, RunView] = {}
        self._events: dict[RunId, dict[tuple[int, int], RunEventView]] = {}

    async def save(self, runs: Sequence[RunView], events: Sequence[tuple[RunId, RunEventView]]) -> None:
        """Keeps records and lifecycle events."""
        for view in runs:
            self._runs[view.run_id] = view
        for run_id, event in events:
            _, *columns = event_to_row(run_id, event)  # so that it keeps and loses exactly what a row does
            kept = event_from_row(*columns)
            self._events.setdefault(run_id, {}).setdefault((event.attempt, event.seq), kept)

    async def get(self, run_id: RunId) -> RunView | None:
        """Returns a run, or None."""
        return self._runs.get(run_id)

    async def events(self, run_id: RunId, after_seq: int = 0, limit: int = 1000) -> Sequence[RunEventView]:
        """Returns lifecycle events in order."""
        kept = self._events.get(run_id, {})
        return [kept[key] for key in sorted(kept) if key[1] > after_seq][:limit]

    async def page(self, limit: int, cursor: str | None, wanted: RunFilter) -> RunPage:
        """Returns runs, newest first."""
        check_cursor(cursor)
        found = [
            view
            for run_id, view in sorted(self._runs.items(), reverse=True)
            if (cursor is None or run_id < cursor)
            and wanted.state in (None, view.state)
            and wanted.node_id in (None, view.node_id)
            and wanted.adapter in (None, view.adapter)
        ]
        views = tuple(found[:limit])
        return RunPage(views, views[-1].run_id if len(found) > limit else None)

    async def interrupt_live(self, code: str, at_ms: int) -> int:
        """Marks every run without an end as interrupted; returns how many."""
        live = [view for view in self._runs.values() if view.ended_at_ms is None]
        for view in live:
            self._runs[view.run_id] = replace(
                view,
                state=RunState.INTERRUPTED,
                code=code,
                layer="edge",
                message=INTERRUPT_SENTENCES[code],
                ended_at_ms=at_ms,
            )
        return len(live)

    async def prune(self, *, before_ms: int, keep_runs: int, batch: int) -> int:
        """Deletes at most `batch` ended runs, oldest first; returns how many."""
        surplus = set(sorted(self._runs, reverse=True)[keep_runs:])
        gone = [
            run_id
            for run_id, view in sorted(self._runs.items())
            if view.ended_at_ms is not None and (view.created_at_ms < before_ms or run_id in surplus)
        ][:batch]
        for run_id in gone:
            del self._runs[run_id]
            self._events.pop(run_id, None)
        return len(gone)

    async def aclose(self) -> None:
        """Nothing to do."""
