"""Each way to refuse a node: code, class and the whole sentence."""

import pytest

from iop_shared.link import rejects
from iop_shared.link.messages import Reject, RejectClass


@pytest.mark.parametrize(
    ("reject", "code", "reject_class", "sentence"),
    [
        (
            rejects.token_missing("gpu-1"),
            "token_missing",
            RejectClass.FATAL,
            "node 'gpu-1' sent no token: make one with `iop-edge token add gpu-1` on the edge "
            "and give it to `iop-node join EDGE --token TOKEN`",
        ),
        (
            rejects.token_invalid("gpu-1"),
            "token_invalid",
            RejectClass.FATAL,
            "the token of node 'gpu-1' is not valid on this edge: make one with `iop-edge token add gpu-1` "
            "and give it to `iop-node join EDGE --token TOKEN`",
        ),
        (
            rejects.token_revoked("gpu-1", "0123456789ab"),
            "token_revoked",
            RejectClass.FATAL,
            "token 0123456789ab of node 'gpu-1' has been revoked: make a new one with "
            "`iop-edge token add gpu-1` and give it to `iop-node join EDGE --token TOKEN`",
        ),
        (
            rejects.node_unknown("gpu-1", "gpu-7"),
            "node_unknown",
            RejectClass.FATAL,
            "this token belongs to node 'gpu-7', but the node calls itself 'gpu-1': "
            "join with `--name gpu-7`, or make a token with `iop-edge token add gpu-1`",
        ),
        (
            rejects.protocol_version((2, 3), (1, 1), "1.2.3"),
            "protocol_version",
            RejectClass.FATAL,
            "no common protocol: edge (iop-platform 1.2.3) speaks 2 to 3, node speaks 1 to 1; update the node",
        ),
        (
            rejects.duplicate_node("gpu-1"),
            "duplicate_node",
            RejectClass.RETRY_SLOW,
            "a node named 'gpu-1' is connected already and answers: stop that one, "
            "or give this one a name of its own with `iop-node join EDGE --token TOKEN --name NAME`",
        ),
        (
            rejects.edge_draining(),
            "edge_draining",
            RejectClass.RETRY,
            "the edge is stopping and takes no new links; trying again later will do",
        ),
        (
            rejects.edge_busy(256, 256),
            "edge_busy",
            RejectClass.RETRY,
            "256 handshakes are under way, of at most 256; trying again later will do",
        ),
    ],
    ids=lambda v: v.code if isinstance(v, Reject) else "",
)
def test_reject(reject: Reject, code: str, reject_class: RejectClass, sentence: str) -> None:
    assert reject == Reject(code, reject_class, sentence)
