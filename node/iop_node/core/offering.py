"""What the node offers to the edge: configured adapters, their gates and targets, told on change.

Owns the roster and the prober. Closes adapters that a configuration took away once nothing uses them.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Final

from iop_node.core.allow import AllowList
from iop_node.core.outbox import RunKey
from iop_node.core.ports import AdapterFactory, ProbeResult
from iop_node.core.probing import Prober
from iop_node.core.roster import Roster, Slot
from iop_shared.aio.tasks import TaskOwner
from iop_shared.link.messages import (
    AdapterStatus,
    CapabilitiesChanged,
    ConfigResult,
    EdgeNodeEventBody,
    GateChanged,
    NodeConfigPayload,
)
from iop_shared.logs import get_logger

log = get_logger("node")

FIRST_PROBE_WAIT_S: Final = 1.0
"""How long a fresh configuration waits for its engines before the edge is told; a slow one is told later."""
CLOSE_TIMEOUT_S: Final = 10.0

Tell = Callable[[EdgeNodeEventBody], None]


class Offering:
    """The adapters, from a pushed configuration to their closing. `tell` sends to the edge, if a link stands."""

    def __init__(
        self,
        factories: Mapping[str, AdapterFactory],
        allow: AllowList,
        tasks: TaskOwner,
        tell: Tell,
        *,
        probe_interval_s: float,
        probe_timeout_s: float,
        max_runs: int,
        rng: random.Random | None = None,
    ) -> None:
        self._tasks, self._tell = tasks, tell
        self._max_runs = max_runs
        self.roster = Roster(factories, allow, max_runs=max_runs)
        self._prober = Prober(
            self.roster,
            tasks,
            self._probe_changed,
            interval_s=probe_interval_s,
            timeout_s=probe_timeout_s,
            rng=rng,
        )
        self._told: tuple[AdapterStatus, ...] | None = None
        self._applying = asyncio.Lock()
        self._is_stopping = False

    def start(self) -> None:
        """Begins to probe, now and then."""
        self._prober.start()

    def tell_all(self) -> None:
        """Tells the edge everything: a link has opened and nothing is known to be known."""
        self._told = None
        self._tell_if_changed()

    def probe_soon(self, slot: Slot) -> None:
        """A run has met trouble that a probe would see; ask now instead of at the next turn."""
        if not slot.is_retired:
            self._prober.probe_soon(slot)

    async def apply(self, config: NodeConfigPayload) -> ConfigResult:
        """Applies or rejects `config`. One at a time; the same one again changes nothing."""
        async with self._applying:
            roster = self.roster
            if (config.revision, config.hash) == (roster.revision, roster.hash):
                return ConfigResult(config.revision, config.hash, applied=True)
            applied = roster.apply(config)
            for slot in applied.to_close:
                self._tasks.spawn(self.close(slot), name=f"close {slot.config.name}")
            if applied.reasons:
                log.warning("config_rejected", revision=config.revision, reasons=list(applied.reasons))
                return ConfigResult(config.revision, config.hash, applied=False, reasons=applied.reasons)
            log.info(
                "config_applied",
                revision=config.revision,
                adapters=[a.name for a in config.adapters],
                made=[slot.config.name for slot in applied.added],
            )
            for adapter in config.adapters:
                if adapter.max_concurrent > self._max_runs:
                    log.warning(
                        "max_concurrent_lowered",
                        adapter=adapter.name,
                        max_concurrent=adapter.max_concurrent,
                        max_runs=self._max_runs,
                    )
            await self._prober.probe(applied.added, FIRST_PROBE_WAIT_S)
        self._tell_if_changed()
        return ConfigResult(config.revision, config.hash, applied=True)

    def release(self, slot: Slot, key: RunKey) -> None:
        """A run no longer holds a place. Safe to repeat, and after the node has stopped."""
        if self.roster.release(slot, key) and not self._is_stopping:
            self._tasks.spawn(self.close(slot), name=f"close {slot.config.name}")

    async def close(self, slot: Slot) -> None:
        """Closes the adapter of `slot`, once, whoever asks; a hanging or failing one is given up."""
        if slot.is_closed:
            return
        self.roster.note_closed(slot)
        await self._prober.wait_over(slot)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await slot.adapter.aclose()
        except TimeoutError:
            log.error("adapter_close_timed_out", adapter=slot.config.name, timeout_s=CLOSE_TIMEOUT_S)
        except Exception:
            log.exception("adapter_close_failed", adapter=slot.config.name)
        else:
            log.info("adapter_closed", adapter=slot.config.name, type=slot.config.type)

    def stop_nowait(self) -> None:
        """Starts no closing any more: `close_all` is about to do it."""
        self._is_stopping = True

    async def close_all(self) -> None:
        """Closes every adapter, all at once."""
        await asyncio.gather(*(self.close(slot) for slot in self.roster.all_slots()))

    def _probe_changed(self, slot: Slot, before: ProbeResult | None) -> None:
        after = slot.probe
        assert after is not None, "a probe has just set it"
        gate_moved = before is None or before.gate != after.gate
        if gate_moved:
            log.info(
                "gate_changed",
                adapter=slot.config.name,
                state=after.gate.state.value,
                check=after.gate.check,
                reason=after.gate.reason,
            )
        if slot.is_retired or self._told is None or self._applying.locked():
            return  # the edge is told everything when a link opens or a configuration has been applied
        if before is None or before.targets != after.targets:
            self._tell_if_changed()
        elif gate_moved:
            self._told = self.roster.statuses()
            self._tell(GateChanged(slot.config.name, after.gate))

    def _tell_if_changed(self) -> None:
        statuses = self.roster.statuses()
        if statuses != self._told:
            self._told = statuses
            self._tell(CapabilitiesChanged(statuses))
