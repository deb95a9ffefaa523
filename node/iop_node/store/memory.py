"""A RunStore that forgets with its process: for tests, and the yardstick that the SQLite one is held against."""

from collections.abc import Sequence
from dataclasses import replace

from iop_node.core.ports import RunRecord
from iop_shared.errors import BadRequest, Unavailable
from iop_shared.ids import RunId
from iop_shared.runs import RunState


class MemoryRunStore:
    """Rows in a dict. Bounded by whoever uses it: it keeps everything until it is closed."""

    def __init__(self) -> None:
        self._rows: dict[tuple[RunId, int], RunRecord] = {}
        self._settled: set[tuple[RunId, int]] = set()
        self._is_closed = False

    async def begin(self, record: RunRecord) -> None:
        """See RunStore."""
        self._check_open()
        known = self._rows.get((record.run_id, record.attempt))
        if known is not None:
            raise already_run(known)
        self._rows[record.run_id, record.attempt] = record

    async def finish(self, record: RunRecord) -> None:
        """See RunStore."""
        self._check_open()
        known = self._rows.get((record.run_id, record.attempt))
        if known is not None and known.state is RunState.RUNNING:
            self._rows[record.run_id, record.attempt] = record

    async def settle(self, keys: Sequence[tuple[RunId, int]]) -> None:
        """See RunStore."""
        self._check_open()
        self._settled.update(keys)

    async def list_unsettled(self, ended_after_ms: int, limit: int) -> Sequence[RunRecord]:
        """See RunStore."""
        found = [
            record
            for record in await self.list_recent(len(self._rows))
            if record.ended_at_ms is not None
            and record.ended_at_ms >= ended_after_ms
            and (record.run_id, record.attempt) not in self._settled
        ]
        return found[:limit]

    async def get(self, run_id: RunId, attempt: int) -> RunRecord | None:
        """See RunStore."""
        self._check_open()
        return self._rows.get((run_id, attempt))

    async def list_recent(self, limit: int = 50) -> Sequence[RunRecord]:
        """See RunStore."""
        self._check_open()
        newest_first = sorted(self._rows, reverse=True)
        return [self._rows[key] for key in newest_first[:limit]]

    async def interrupt_open(self, message: str, ended_at_ms: int) -> Sequence[RunRecord]:
        """See RunStore."""
        self._check_open()
        left = [record for record in self._rows.values() if record.state is RunState.RUNNING]
        ended = [
            replace(
                record,
                state=RunState.INTERRUPTED,
                ended_at_ms=ended_at_ms,
                code="node_restarted",
                layer="node",
                message=message,
            )
            for record in left
        ]
        for record in ended:
            self._rows[record.run_id, record.attempt] = record
            self._settled.add((record.run_id, record.attempt))
        return ended

    async def aclose(self) -> None:
        """See RunStore."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable("the run journal is closed", code="journal_unavailable")


def already_run(known: RunRecord) -> BadRequest:
    """Returns the error for an attempt that has a row."""
    return BadRequest(
        f"run {known.run_id} attempt {known.attempt} has been run on this node before ({known.state.value}); "
        "a new try needs a new attempt number",
        code="already_run",
    )
