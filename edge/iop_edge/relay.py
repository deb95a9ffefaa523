"""RunStream: one consumer's bounded view of one run, between a node's link and a surface."""

from iop_shared.ids import RunId
from iop_shared.runtime_events import RuntimeEvent


class RunStream:
    """Events of one run for one consumer, in order, in batches.

    Bounded by `max_buffered_bytes` (default 8 MiB): a consumer that lets more pile up loses this stream:
    `next_batch` then raises Busy (code `slow_consumer`). The run itself and other consumers go on.
    """

    run_id: RunId

    async def next_batch(self) -> list[RuntimeEvent]:
        """Returns everything that arrived since the last call, at least one event; waits if there is none.

        After the batch that ends with the terminal event, returns an empty list.
        Sequence numbers may restart from 1 with a higher attempt, if nothing had been produced before.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Detaches from the run; does not cancel it. Safe to call twice."""
        raise NotImplementedError
