"""How many events a second one link carries: a node's end sends as fast as it may, an edge's end counts.

    .venv/bin/python bench/link.py [--events 300000] [--rounds 3]

Two processes over TCP on 127.0.0.1, each with nothing but the link: codec, framing, the link machine and one
socket. Each event is one token of an engine's JSON. "each end alone" is what a core could do for one end.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.machine import describe_machine, describe_versions
from bench.wire import TOKEN_JSON

from iop_shared.aio.connection import LinkConnection
from iop_shared.aio.link_io import dial_link, listen_links
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import Epoch, NodeId, RunId, new_boot_id, new_run_id
from iop_shared.link import auth
from iop_shared.link.effects import LinkEnd
from iop_shared.link.messages import (
    Hello,
    LinkLimits,
    Message,
    OpenRun,
    OpenRuns,
    RunVerdicts,
    Welcome,
)
from iop_shared.link.node_side import NodeIdentity
from iop_shared.node_config import make_node_config
from iop_shared.runtime_events import EngineJson, RuntimeEvent, Succeeded

_TIMEOUT_S: Final = 120.0
_EVENTS_A_TURN: Final = 256


class CountingEdge:
    """The edge's end: lets everybody in, and counts events until the terminal one."""

    def __init__(self, connection: LinkConnection) -> None:
        self._connection = connection
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.events = self.last_seq = self.first_ns = self.last_ns = self.used_ns = 0
        self.in_order = True

    def on_hello(self, hello: Hello, auth_message: bytes) -> None:
        """Lets the node in; the bench is no place for tokens."""
        self._connection.admit(Welcome(Epoch(1), LinkLimits(), 0, make_node_config(1, ())))

    def on_open_runs(self, open_runs: OpenRuns) -> None:
        """There are none."""
        self._connection.answer_open_runs(RunVerdicts())

    def on_open(self) -> None:
        """Takes the CPU clock; events follow."""
        self.first_ns, self.used_ns = time.monotonic_ns(), time.process_time_ns()

    def on_message(self, message: Message) -> None:
        """Counts an event."""
        assert isinstance(message, RuntimeEvent), f"a {type(message).__name__} came"
        self.events += 1
        self.in_order &= message.seq == self.last_seq + 1
        self.last_seq = message.seq
        if message.is_terminal:
            self.last_ns, self.used_ns = time.monotonic_ns(), time.process_time_ns() - self.used_ns
            self._connection.close("bench_over")

    def on_data_resumed(self) -> None:
        """It sends no data."""

    def on_closed(self, end: LinkEnd) -> None:
        """Ends the round."""
        if not self.over.done():
            self.over.set_result(None)

    def unsettled_cancels(self) -> tuple[RunId, ...]:
        """There are none."""
        return ()


class SendingNode:
    """The node's end: sends `events` events, the last one terminal, whenever the link takes data."""

    def __init__(self, connection: LinkConnection, events: int) -> None:
        self._connection, self._left = connection, events
        self._run_id, self._seq = new_run_id(), 0
        self._is_sending = False
        self.used_ns = 0

    def on_welcome(self, welcome: Welcome) -> tuple[OpenRun, ...]:
        """It holds nothing."""
        return ()

    def on_open(self, verdicts: RunVerdicts) -> None:
        """Begins."""
        self.used_ns = time.process_time_ns()
        self.on_data_resumed()

    def on_data_resumed(self) -> None:
        """Goes on."""
        if not self._is_sending:
            self._send_some()

    def _send_some(self) -> None:
        """Sends what a busy loop turn would bring, so that writing and the other end's reading overlap."""
        connection = self._connection
        for _ in range(_EVENTS_A_TURN):
            self._is_sending = self._left > 0 and not connection.data_paused
            if not self._is_sending:
                return
            self._left -= 1
            self._seq += 1
            body = EngineJson((TOKEN_JSON,)) if self._left else Succeeded()
            connection.send(RuntimeEvent(self._run_id, 1, self._seq, body))
        asyncio.get_running_loop().call_soon(self._send_some)

    def on_message(self, message: Message) -> None:
        """Nothing is expected."""

    def on_closed(self, end: LinkEnd) -> None:
        """Takes the CPU time."""
        self.used_ns = time.process_time_ns() - self.used_ns


async def send_events(address: str, events: int) -> int:
    """Is the node's process. Prints the nanoseconds of CPU that it used."""
    identity = NodeIdentity(NodeId("bench"), new_boot_id(), auth.new_token(), "bench")
    nodes: list[SendingNode] = []

    def make_node(connection: LinkConnection) -> SendingNode:
        nodes.append(SendingNode(connection, events))
        return nodes[0]

    connection = await dial_link(ListenAddress.parse(address), make_node, identity)
    await connection.wait_closed()
    print(json.dumps({"used_ns": nodes[0].used_ns}), flush=True)
    return 0


def start_node(address: ListenAddress, events: int) -> "subprocess.Popen[str]":
    """Starts the node's end as a process of its own."""
    command = [sys.executable, __file__, "--events", str(events), "--dial", str(address)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def measure_round(events: int) -> dict[str, Any]:
    """Runs one round and returns its figures."""
    edges: list[CountingEdge] = []
    came = asyncio.Event()

    def make_edge(connection: LinkConnection) -> CountingEdge:
        edges.append(CountingEdge(connection))
        came.set()
        return edges[0]

    listener = await listen_links(
        ListenAddress("127.0.0.1", 0), make_edge, edge_id="bench", software_version="bench"
    )
    with start_node(listener.address, events) as node:
        async with asyncio.timeout(_TIMEOUT_S):
            await came.wait()
            await edges[0].over
        assert node.stdout is not None
        said = await asyncio.get_running_loop().run_in_executor(None, node.stdout.read)
    await listener.stop()
    edge = edges[0]
    return {
        "right": edge.in_order and edge.events == events,
        "events_per_s": events / ((edge.last_ns - edge.first_ns) / 1e9),
        "edge_us": edge.used_ns / 1000 / events,
        "node_us": json.loads(said)["used_ns"] / 1000 / events,
    }


async def measure(events: int, rounds: int) -> int:
    """Runs all rounds and prints the table; returns the exit code."""
    machine, versions = describe_machine(), describe_versions()
    print(f"{machine['processor']}, {machine['cores']} cores, {machine['system']}")
    print(f"python {versions['python']}, uvloop {versions['uvloop']}, protobuf {versions['protobuf']}")
    found = [await measure_round(events) for _ in range(rounds)]
    rate, edge_us, node_us = (median(f[key] for f in found) for key in ("events_per_s", "edge_us", "node_us"))
    print(f"{events} events of {len(TOKEN_JSON)} bytes over one link; medians of {rounds} round(s)")
    print(f"both ends on this machine: {rate:,.0f} events/s")
    print(f"edge's end: {edge_us:.2f} us of CPU an event, alone {1e6 / edge_us:,.0f} events/s")
    print(f"node's end: {node_us:.2f} us of CPU an event, alone {1e6 / node_us:,.0f} events/s")
    if not all(f["right"] for f in found):
        print("WRONG: events were lost or came out of order", file=sys.stderr)
        return 1
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs the bench, or its other end; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dial", help="be the node's end (the bench starts it itself)")
    given = parser.parse_args(arguments)
    if given.dial is not None:
        return uvloop.run(send_events(given.dial, given.events))
    return uvloop.run(measure(given.events, given.rounds))


if __name__ == "__main__":
    sys.exit(main())
