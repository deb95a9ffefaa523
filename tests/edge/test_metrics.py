"""The metrics of the edge: fed by real runs, bounded in their labels."""

import httpx
import pytest
from tests.edge.conftest import ORDER, RunningEdge, read_all
from tests.support.fake_node import echo

from iop_shared.errors import LinkRefused


async def page(edge: RunningEdge) -> dict[str, float]:
    assert edge.addresses is not None
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://{edge.addresses.http}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("iop_edge") and "_bucket" not in line]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def test_runs_nodes_and_refusals_are_counted(edge: RunningEdge) -> None:
    await edge.connect(on_run=echo)
    stream = edge.service.submit(ORDER)
    await read_all(stream)
    with pytest.raises(LinkRefused):
        await edge.make_node(None, node_id="gpu-2").connect()

    metrics = await page(edge)

    assert metrics['iop_edge_runs_finished_total{adapter="mock",code="",outcome="succeeded"}'] == 1
    assert metrics['iop_edge_run_seconds_count{adapter="mock",outcome="succeeded"}'] == 1
    assert metrics['iop_edge_run_first_token_seconds_count{adapter="mock"}'] == 1
    assert metrics['iop_edge_run_queued_seconds_count{adapter="mock"}'] == 1
    assert metrics['iop_edge_runtime_events_total{adapter="mock"}'] == 4
    assert metrics['iop_edge_output_bytes_total{adapter="mock"}'] == 14
    assert metrics['iop_edge_input_bytes_total{adapter="mock"}'] == 13
    assert metrics['iop_edge_run_events_total{kind="run_finished"}'] == 1
    assert metrics['iop_edge_links_refused_total{code="token_missing"}'] == 1
    assert metrics['iop_edge_nodes{state="connected"}'] == 1
    assert metrics["iop_edge_runs_live"] == 0
    assert metrics["iop_edge_links"] == 1
    assert not [name for name in metrics if stream.run_id in name]
