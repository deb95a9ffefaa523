"""What the service needs from the outside. `app.py` supplies the objects behind these. Pure.

EdgeService --> NodeLinkPort   one per node that is connected (transport)
EdgeService --> RunHistory     records of runs (stores: SQLite, memory)
EdgeService --> HistorySink    the same, in batches and off the hot path
listener    --> TokenStore     who may come in
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from iop_edge.domain.effects import LinkKey
from iop_edge.domain.views import RunEventView, RunPage, RunView
from iop_shared.ids import Epoch, NodeId, RunId, TokenId
from iop_shared.link.messages import Message
from iop_shared.runs import RunRequest, RunState


class NodeLinkPort(Protocol):
    """An open link to one node. Nothing here waits; after the link has ended calls do nothing."""

    @property
    def key(self) -> LinkKey:
        """The node and the epoch."""

    def send(self, message: Message) -> None:
        """Sends a message by its lane."""

    def send_run(self, request: RunRequest) -> None:
        """Sends a run, a large input in parts, as the transport allows; `Dispatcher.fail_unsendable` is told if
        it fits into no frame."""

    def ack(self, run_id: RunId, attempt: int, seq: int, payload_bytes: int) -> None:
        """Acknowledges up to `seq`; several are joined into one message within 100 ms."""

    def close(self, code: str, message: str) -> None:
        """Says goodbye and closes. Safe to call twice."""

    def heard_ago_s(self) -> float | None:
        """Seconds since anything was heard; None once the link has ended."""

    def round_trip_s(self) -> float | None:
        """The last measured round trip; None before the first."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs a page shows; None: any."""

    state: RunState | None = None
    node_id: NodeId | None = None
    adapter: str | None = None


class RunHistory(Protocol):
    """The record of runs. Never prompt or output."""

    async def save(self, runs: Sequence[RunView], events: Sequence[tuple[RunId, RunEventView]]) -> None:
        """Writes records (a newer one replaces an older one of the same run) and lifecycle events, all or none.

        An event that is there already, by (run, attempt, seq), is left as it is.

        Raises:
            Unavailable: code `store_unavailable`.
        """

    async def get(self, run_id: RunId) -> RunView | None:
        """Returns a run, or None."""

    async def events(self, run_id: RunId, after_seq: int = 0, limit: int = 1000) -> Sequence[RunEventView]:
        """Returns lifecycle events in order, with a seq over `after_seq`, at most `limit`."""

    async def page(self, limit: int, cursor: str | None, wanted: RunFilter) -> RunPage:
        """Returns runs, newest first.

        Raises:
            BadRequest: the cursor is not one of ours.
        """

    async def interrupt_live(self, code: str, at_ms: int) -> int:
        """Marks every run that has no end as interrupted; returns how many. Called once at start."""

    async def prune(self, *, before_ms: int, keep_runs: int, batch: int) -> int:
        """Deletes at most `batch` ended runs that are older than `before_ms` or beyond the newest `keep_runs`.

        Returns how many; 0: nothing is left to delete.
        """

    async def aclose(self) -> None:
        """Closes. Safe to call twice."""


ViewMaker = Callable[[], RunView]


class HistorySink(Protocol):
    """Takes records at once and writes them later. Rule for full: see `stores.history_writer`."""

    def record(self, run_id: RunId, view: ViewMaker, on_saved: Callable[[], None] | None = None) -> None:
        """Takes that a run changed; `view` is asked for its record when it is written (only the newest is).

        `on_saved` is called once such a record is safe on the disk.
        """

    def record_event(self, run_id: RunId, event: RunEventView) -> None:
        """Takes a lifecycle event of a run; output is ignored."""

    def pending_view(self, run_id: RunId) -> RunView | None:
        """Returns a record that is not written yet."""

    async def flush(self) -> None:
        """Returns once what waits now is written, or cannot be written."""

    def trouble(self) -> str:
        """Returns a sentence while records cannot be written, "" otherwise."""


@dataclass(frozen=True, slots=True)
class NodeToken:
    """What the edge keeps of a token: never the secret. Times are wall-clock milliseconds."""

    token_id: TokenId
    node_id: NodeId
    stored_key: bytes = field(repr=False)
    created_at_ms: int
    label: str = ""
    revoked_at_ms: int | None = None
    last_used_at_ms: int | None = None

    @property
    def is_revoked(self) -> bool:
        """Whether it may not be used any more."""
        return self.revoked_at_ms is not None


class TokenStore(Protocol):
    """The tokens of nodes."""

    async def add(self, token: NodeToken) -> None:
        """Keeps a new token.

        Raises:
            Unavailable: code `store_unavailable`.
        """

    async def list_all(self) -> Sequence[NodeToken]:
        """Returns all tokens, by node and age; revoked ones too."""

    async def revoke(self, token_id: TokenId, at_ms: int) -> NodeToken:
        """Revokes a token; one that is revoked already stays as it is.

        Raises:
            UnknownName: with the nearest known ids.
        """

    async def note_used(self, token_id: TokenId, at_ms: int) -> None:
        """Remembers when a token last opened a link."""

    async def version(self) -> int:
        """Returns a number that changes when anybody has written to the store; cheap."""


class EpochSource(Protocol):
    """Where epochs come from."""

    def take(self) -> Epoch:
        """Returns an epoch larger than every one before, over restarts too. Never waits."""
