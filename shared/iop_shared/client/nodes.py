"""`iop nodes`, `iop node` and `iop models`: what there is to run on."""

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from iop_shared.client import render
from iop_shared.client.options import EdgeOption, JsonOption, edge_api, print_json
from iop_shared.client.records import AdapterRecord, NodeRecord
from iop_shared.client.render import Column

NODE_COLUMNS = (
    Column("node"),
    Column("state"),
    Column("adapters", shrinks=True, least=16),
    Column("runs", right=True),
    Column("since", priority=1, right=True),
    Column("heard", priority=3, right=True),
    Column("config", priority=2),
    Column("labels", priority=4, shrinks=True, least=8),
    Column("version", priority=6),
    Column("address", priority=5),
)
_MODEL_COLUMNS = (
    Column("model", shrinks=True, least=20),
    Column("kind", priority=2),
    Column("runs as", priority=1, shrinks=True, least=12),
    Column("nodes", shrinks=True, least=10),
)
_ADAPTER_COLUMNS = (
    Column("adapter"),
    Column("type", priority=2),
    Column("gate"),
    Column("runs", right=True),
    Column("targets", shrinks=True, least=12),
    Column("operations", priority=1, shrinks=True, least=10),
    Column("why", priority=3, shrinks=True, least=12),
)


def nodes(as_json: JsonOption = False, edge: EdgeOption = None) -> None:
    """List the nodes that the edge knows."""
    with edge_api(edge) as api:
        known = api.list_nodes()
    if as_json:
        print_json({"nodes": [node.json for node in known]})
        return
    if not known:
        render.stderr().print("no node has ever connected; add one with `iop-edge token add NODE`")
        return
    render.print_table(render.stdout(), NODE_COLUMNS, [_node_row(node) for node in known])


def node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node's id.")],
    as_json: JsonOption = False,
    edge: EdgeOption = None,
) -> None:
    """Show one node with its adapters."""
    with edge_api(edge) as api:
        found = api.get_node(name)
    if as_json:
        print_json(found.json)
    else:
        print_node(render.stdout(), found)


def models(as_json: JsonOption = False, edge: EdgeOption = None) -> None:
    """List what a client may ask for as `model`."""
    with edge_api(edge) as api:
        known = api.list_models()
    if as_json:
        print_json({"models": [model.json for model in known]})
        return
    if not known:
        render.stderr().print("no models: no connected node offers any; see `iop nodes`")
        return
    rows = [
        [
            model.name,
            "profile" if model.is_profile else "target",
            f"{model.adapter}/{model.target}" if model.is_profile else "",
            ", ".join(model.nodes),
        ]
        for model in known
    ]
    render.print_table(render.stdout(), _MODEL_COLUMNS, rows)


def print_node(console: Console, node: NodeRecord) -> None:
    """Prints a node and its adapters."""
    console.print(Text(f"node {node.node_id}", style="bold"))
    connected = node.last_heard_s is not None
    facts = [
        ("state", node.state),
        ("address", node.address),
        ("version", node.software_version),
        ("labels", _labels(node)),
        ("connected", render.full_moment(node.connected_at_ms) if connected else ""),
        ("last heard", f"{render.duration(node.last_heard_s)} ago" if connected else ""),
        ("round trip", render.duration(node.round_trip_s) if node.round_trip_s is not None else ""),
        ("config", f"{node.config_state} (revision {node.config_revision})" if node.config_state else ""),
        *(("rejected", reason) for reason in node.config_reasons),
        # Also in the table, whose last column is the first that a narrow terminal cuts.
        *((one.gate_state, f"{one.name}: {_why(one)}") for one in node.adapters if not _is_open(one)),
    ]
    render.print_facts(console, [(name, value) for name, value in facts if value])
    if not node.adapters:
        return
    console.print()
    rows = [
        [
            adapter.name,
            adapter.type,
            adapter.gate_state,
            f"{node.in_flight.get(adapter.name, 0)}/{adapter.max_concurrent}",
            _targets(adapter),
            ", ".join(adapter.operations),
            _why(adapter),
        ]
        for adapter in node.adapters
    ]
    render.print_table(console, _ADAPTER_COLUMNS, rows, state_column="gate")


def _node_row(node: NodeRecord) -> list[str]:
    connected = node.last_heard_s is not None
    return [
        node.node_id,
        node.state,
        ", ".join(_adapter_phrase(adapter) for adapter in node.adapters),
        str(sum(node.in_flight.values())),
        render.duration(max(0.0, time.time() - node.connected_at_ms / 1000)) if connected else "",
        f"{render.duration(node.last_heard_s)} ago" if connected else "",
        node.config_state,
        _labels(node),
        node.software_version,
        node.address,
    ]


def _adapter_phrase(adapter: AdapterRecord) -> str:
    """The name, and the gate's state where it is anything but open."""
    return adapter.name if _is_open(adapter) else f"{adapter.name} ({adapter.gate_state})"


def _is_open(adapter: AdapterRecord) -> bool:
    return adapter.gate_state in {"open", "not_applicable"}


def _why(adapter: AdapterRecord) -> str:
    """The check that decided and its reason."""
    return ": ".join(part for part in (adapter.gate_check, adapter.gate_reason) if part)


def _targets(adapter: AdapterRecord) -> str:
    listed = ", ".join(adapter.targets)
    if adapter.any_target:
        return f"{listed}, any other" if listed else "any"
    return listed


def _labels(node: NodeRecord) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(node.labels.items()))
