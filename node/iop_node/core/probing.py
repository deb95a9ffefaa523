"""Asks the adapters' engines, now and then, whether they are there and what they offer.

A probe has a deadline and is never stacked on one that still runs: a hanging engine costs one task, and
"no answer in time" is itself a result. Never a completion, never a model load.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from iop_node.core.ports import ListsTargets, ProbeResult
from iop_node.core.roster import Roster, Slot
from iop_shared.aio.tasks import TaskOwner
from iop_shared.link.messages import Gate, GateState
from iop_shared.logs import get_logger

log = get_logger("node")

CHECK: Final = "engine_reachable"
INTERVAL_S: Final = 10.0
TIMEOUT_S: Final = 5.0
JITTER: Final = 0.2
"""Many nodes may share an engine host; they should not ask in step."""

OnChange = Callable[[Slot, ProbeResult | None], None]
"""Called with a slot whose probe result changed, and the result it had before."""


class Prober:
    """Probes every slot whose adapter can be asked, all at once, every `interval_s` give or take a fifth."""

    def __init__(
        self,
        roster: Roster,
        tasks: TaskOwner,
        on_change: OnChange,
        *,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._roster, self._tasks, self._on_change = roster, tasks, on_change
        self._interval_s, self._timeout_s, self._sleep = interval_s, timeout_s, sleep
        self._rng = rng or random.Random()
        self._under_way: dict[Slot, asyncio.Task[None]] = {}
        self._again: set[Slot] = set()

    def start(self) -> None:
        """Begins the periodic probing."""
        self._tasks.spawn(self._loop(), name="prober")

    def probe_soon(self, slot: Slot) -> "asyncio.Task[None] | None":
        """Probes `slot` now, or once more after the probe that is under way; None if it cannot be asked."""
        if not isinstance(slot.adapter, ListsTargets) or slot.is_closed:
            return None
        running = self._under_way.get(slot)
        if running is not None:
            self._again.add(slot)
            return running
        task = self._tasks.spawn(self._probe(slot, slot.adapter), name=f"probe {slot.config.name}")
        self._under_way[slot] = task
        return task

    async def probe(self, slots: Iterable[Slot], wait_s: float) -> None:
        """Probes `slots` and waits for the answers, at most `wait_s`; a slow one goes on by itself."""
        tasks = [task for slot in slots if (task := self.probe_soon(slot)) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=wait_s)

    async def wait_over(self, slot: Slot) -> None:
        """Waits until no probe of `slot` is under way; its deadline bounds that."""
        task = self._under_way.get(slot)
        if task is not None:
            await asyncio.wait({task})

    async def _loop(self) -> None:
        while True:
            await self._sleep(self._interval_s * self._rng.uniform(1 - JITTER, 1 + JITTER))
            for slot in self._roster:
                if slot not in self._under_way:
                    self.probe_soon(slot)

    async def _probe(self, slot: Slot, adapter: ListsTargets) -> None:
        try:
            while True:
                self._again.discard(slot)
                self._take(slot, await self._ask(slot, adapter))
                if slot not in self._again or slot.is_closed:
                    return
        finally:
            self._again.discard(slot)
            del self._under_way[slot]

    async def _ask(self, slot: Slot, adapter: ListsTargets) -> ProbeResult:
        known = slot.probe
        try:
            async with asyncio.timeout(self._timeout_s):
                return await adapter.probe()
        except TimeoutError:
            reason = f"no answer within {self._timeout_s:g} s"
        except Exception as error:
            # The port says that this never happens, but an adapter's bug must not end all probing.
            log.exception("probe_failed", adapter=slot.config.name)
            reason = f"the probe failed with {type(error).__name__}; this is a bug, the node's log has the details"
        return ProbeResult(
            Gate(GateState.UNKNOWN, CHECK, reason),
            known.targets if known is not None else (),
            known.engine if known is not None else "",
        )

    def _take(self, slot: Slot, result: ProbeResult) -> None:
        before, slot.probe = slot.probe, result
        if before != result:
            self._on_change(slot, before)
