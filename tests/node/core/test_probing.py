"""When engines are asked, and what a hanging or broken one leads to."""

import asyncio
import functools
from collections.abc import AsyncIterator

import pytest
from tests.support.fake_clock import FakeClock
from tests.support.node_fakes import PlayedAdapter, eventually

from iop_node.core.allow import AllowList
from iop_node.core.ports import ProbeResult
from iop_node.core.probing import Prober
from iop_node.core.roster import Roster, Slot
from iop_shared.aio.tasks import TaskOwner
from iop_shared.ids import AdapterName, TargetName
from iop_shared.link.messages import AdapterConfig, Gate, GateState
from iop_shared.node_config import make_node_config


class Bench:
    def __init__(self, tasks: TaskOwner, timeout_s: float = 0.05) -> None:
        self.clock = FakeClock()
        self.roster = Roster(
            {"played": lambda name, most, settings: PlayedAdapter(name, settings)}, AllowList(("played",), ())
        )
        self.roster.apply(make_node_config(1, [AdapterConfig(AdapterName("a"), "played", 1)]))
        slot = self.roster.get(AdapterName("a"))
        assert slot is not None
        self.slot: Slot = slot
        assert isinstance(slot.adapter, PlayedAdapter)
        self.adapter: PlayedAdapter = slot.adapter
        self.changes: list[tuple[ProbeResult | None, ProbeResult | None]] = []
        self.prober = Prober(
            self.roster,
            tasks,
            lambda slot, before: self.changes.append((before, slot.probe)),
            interval_s=10,
            timeout_s=timeout_s,
            sleep=self.clock.sleep,
        )


@pytest.fixture
async def tasks() -> AsyncIterator[TaskOwner]:
    owner = TaskOwner("test", lambda name, error: pytest.fail(f"{name}: {error}"))
    yield owner
    await owner.cancel_all()


async def test_every_interval_each_engine_is_asked_and_only_changes_are_told(tasks: TaskOwner) -> None:
    bench = Bench(tasks)
    bench.prober.start()

    for turn in range(1, 4):
        await eventually(lambda: bench.clock.sleepers)
        bench.clock.advance(12.5)  # ten seconds give or take a fifth
        await eventually(functools.partial(lambda n: bench.adapter.probes == n, turn))
        await eventually(lambda: not bench.prober._under_way)

    assert bench.changes == [(None, bench.adapter.probe_result)]


async def test_an_engine_that_does_not_answer_is_unknown_and_keeps_its_targets(tasks: TaskOwner) -> None:
    bench = Bench(tasks)
    await bench.prober.probe([bench.slot], 1)
    bench.adapter.probe_gate.clear()

    await bench.prober.probe([bench.slot], 1)

    assert bench.slot.probe == ProbeResult(
        Gate(GateState.UNKNOWN, "engine_reachable", "no answer within 0.05 s"), (TargetName("echo"),), "engine 1"
    )


async def test_a_probe_that_raises_ends_neither_probing_nor_the_slot(tasks: TaskOwner) -> None:
    bench = Bench(tasks)
    bench.adapter.probe_error = RuntimeError("bug")

    await bench.prober.probe([bench.slot], 1)

    assert bench.slot.gate == Gate(
        GateState.UNKNOWN,
        "engine_reachable",
        "the probe failed with RuntimeError; this is a bug, the node's log has the details",
    )
    bench.adapter.probe_error = None
    await bench.prober.probe([bench.slot], 1)
    assert bench.slot.gate.state is GateState.OPEN


async def test_probes_are_not_stacked_and_one_asked_for_meanwhile_follows(tasks: TaskOwner) -> None:
    bench = Bench(tasks, timeout_s=5)
    bench.adapter.probe_gate.clear()

    first = bench.prober.probe_soon(bench.slot)
    await eventually(lambda: bench.adapter.probes == 1)
    assert bench.prober.probe_soon(bench.slot) is first
    assert bench.prober.probe_soon(bench.slot) is first
    await asyncio.sleep(0)
    assert bench.adapter.probes == 1
    bench.adapter.probe_gate.set()
    await bench.prober.wait_over(bench.slot)

    assert bench.adapter.probes == 2


async def test_a_slow_engine_does_not_hold_up_who_waits_for_a_while(tasks: TaskOwner) -> None:
    bench = Bench(tasks, timeout_s=5)
    bench.adapter.probe_gate.clear()

    await asyncio.wait_for(bench.prober.probe([bench.slot], 0.01), 1)

    assert bench.slot.probe is None
