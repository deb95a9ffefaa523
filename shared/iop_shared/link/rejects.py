"""Every way in which an edge refuses a node: code, class and sentence in one table. Pure."""

from typing import Final

from iop_shared.link.messages import Reject, RejectClass

REJECT_CLASSES: Final[dict[str, RejectClass]] = {
    "token_missing": RejectClass.FATAL,
    "token_invalid": RejectClass.FATAL,
    "token_revoked": RejectClass.FATAL,
    "node_unknown": RejectClass.FATAL,
    "protocol_version": RejectClass.FATAL,
    "duplicate_node": RejectClass.RETRY_SLOW,
    "edge_draining": RejectClass.RETRY,
    "edge_busy": RejectClass.RETRY,
}


def token_missing(node_id: str) -> Reject:
    """The node sent no token."""
    return _reject(
        "token_missing",
        f"node {node_id!r} sent no token: make one with `iop-edge token add {node_id}` on the edge "
        "and give it to `iop-node join EDGE --token TOKEN`",
    )


def token_invalid(node_id: str) -> Reject:
    """The token is unknown, or the proof does not fit it. One sentence for both: which ids exist is not told."""
    return _reject(
        "token_invalid",
        f"the token of node {node_id!r} is not valid on this edge: make one with `iop-edge token add {node_id}` "
        "and give it to `iop-node join EDGE --token TOKEN`",
    )


def token_revoked(node_id: str, token_id: str) -> Reject:
    """The token was valid once. Only said to a node that proved that it holds it."""
    return _reject(
        "token_revoked",
        f"token {token_id} of node {node_id!r} has been revoked: make a new one with "
        f"`iop-edge token add {node_id}` and give it to `iop-node join EDGE --token TOKEN`",
    )


def node_unknown(node_id: str, token_node_id: str) -> Reject:
    """The token is valid, but for another node name. Only said to a node that proved that it holds it."""
    return _reject(
        "node_unknown",
        f"this token belongs to node {token_node_id!r}, but the node calls itself {node_id!r}: "
        f"join with `--name {token_node_id}`, or make a token with `iop-edge token add {node_id}`",
    )


def protocol_version(edge_range: tuple[int, int], node_range: tuple[int, int], edge_version: str) -> Reject:
    """No protocol version is spoken by both."""
    return _reject("protocol_version", describe_version_gap(edge_range, node_range, edge_version))


def duplicate_node(node_id: str) -> Reject:
    """Another process of that name is connected and answers."""
    return _reject(
        "duplicate_node",
        f"a node named {node_id!r} is connected already and answers: stop that one, "
        "or give this one a name of its own with `iop-node join EDGE --token TOKEN --name NAME`",
    )


def edge_draining() -> Reject:
    """The edge is about to stop."""
    return _reject("edge_draining", "the edge is stopping and takes no new links; trying again later will do")


def edge_busy(waiting: int, limit: int) -> Reject:
    """Too many handshakes at once."""
    return _reject(
        "edge_busy", f"{waiting} handshakes are under way, of at most {limit}; trying again later will do"
    )


def describe_version_gap(edge_range: tuple[int, int], node_range: tuple[int, int], edge_version: str) -> str:
    """Returns the sentence for two ranges of protocol versions that do not overlap."""
    older = "node" if node_range[1] < edge_range[0] else "edge"
    return (
        f"no common protocol: edge (iop-platform {edge_version}) speaks {edge_range[0]} to {edge_range[1]}, "
        f"node speaks {node_range[0]} to {node_range[1]}; update the {older}"
    )


def _reject(code: str, message: str) -> Reject:
    return Reject(code, REJECT_CLASSES[code], message)
