"""The values that transcripts of a link begin with."""

from dataclasses import replace

from tests.support.playbook import Playbook

from iop_shared.ids import BootId, Epoch, NodeId, TokenId
from iop_shared.link.auth import Token
from iop_shared.link.edge_side import EdgeSide
from iop_shared.link.machine import LinkTimes
from iop_shared.link.messages import Challenge, Hello, LinkLimits, OpenRuns, RunVerdicts, Welcome
from iop_shared.link.node_side import NodeIdentity, NodeSide
from iop_shared.node_config import make_node_config

TOKEN = Token(TokenId("0123456789ab"), bytes(range(32)))
CHALLENGE = Challenge(b"E" * 32, "edge-1", "1.2.3")
IDENTITY = NodeIdentity(NodeId("gpu-1"), BootId("b" * 32), TOKEN, "1.2.0", {"site": "lab"})
NODE_NONCE = b"N" * 32
LIMITS = LinkLimits(heartbeat_interval_s=15.0, dead_after_s=40.0)
WELCOME = Welcome(Epoch(7), LIMITS, 1_700_000_000_000, make_node_config(3, ()))
PEER = "127.0.0.1:5555"
TIMES = LinkTimes(handshake_timeout_s=5.0, close_timeout_s=2.0)


def make_hello(**changes: object) -> Hello:
    """Returns the Hello that a node of `IDENTITY` answers `CHALLENGE` with."""
    node = NodeSide(IDENTITY, node_nonce=NODE_NONCE, now=0.0, peer=PEER)
    hello = node._make_hello(CHALLENGE)
    return replace(hello, **changes)  # type: ignore[arg-type]


def new_edge_side(**options: object) -> EdgeSide:
    """Returns an edge's machine that has done nothing yet."""
    return EdgeSide(CHALLENGE, now=100.0, peer=PEER, times=TIMES, **options)  # type: ignore[arg-type]


def new_node_side(identity: NodeIdentity = IDENTITY) -> NodeSide:
    """Returns a node's machine that has done nothing yet."""
    return NodeSide(identity, node_nonce=NODE_NONCE, now=100.0, peer=PEER, times=TIMES)


def open_edge(**options: object) -> Playbook:
    """Returns the play of an edge's machine whose link is open."""
    machine = new_edge_side(**options)
    play = Playbook(machine)
    play.given_started()
    play.given(make_hello(), lambda now: machine.admit(WELCOME, now), OpenRuns())
    play.given(lambda now: machine.answer_open_runs(RunVerdicts(), now))
    return play


def open_node() -> Playbook:
    """Returns the play of a node's machine whose link is open."""
    machine = new_node_side()
    play = Playbook(machine)
    play.given_started()
    play.given(CHALLENGE, WELCOME, lambda now: machine.report(OpenRuns(), now), RunVerdicts())
    return play
