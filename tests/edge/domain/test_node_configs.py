"""Revisions of node configurations grow exactly when the content changes, over restarts too."""

from iop_edge.domain.node_configs import NodeConfigs, Revision
from iop_shared.ids import AdapterName, NodeId
from iop_shared.link.messages import AdapterConfig
from iop_shared.node_config import config_hash

NODE = NodeId("gpu-1")
MOCK = AdapterConfig(AdapterName("mock"), "mock", 4)
VLLM = AdapterConfig(AdapterName("vllm"), "vllm", 16, {"base_url": "http://127.0.0.1:8000"})


def make(
    adapters: list[AdapterConfig], known: dict[NodeId, Revision] | None = None
) -> tuple[NodeConfigs, dict[NodeId, Revision]]:
    saved = dict(known or {})
    return NodeConfigs(lambda _: adapters, saved, saved.__setitem__), saved


def test_the_first_revision_is_one_and_it_is_kept() -> None:
    configs, saved = make([MOCK])

    payload = configs.payload_for(NODE)

    assert (payload.revision, payload.hash, payload.adapters) == (1, config_hash([MOCK]), (MOCK,))
    assert saved == {NODE: (1, payload.hash)}
    assert configs.payload_for(NODE) is payload


def test_the_same_content_after_a_restart_keeps_its_revision() -> None:
    _, saved = make([MOCK])
    first, saved = make([MOCK], saved)
    before = first.payload_for(NODE)

    again, _ = make([MOCK], saved)

    assert again.payload_for(NODE) == before


def test_other_content_after_a_restart_grows_the_revision() -> None:
    first, saved = make([MOCK])
    first.payload_for(NODE)

    again, saved = make([MOCK, VLLM], saved)

    assert again.payload_for(NODE).revision == 2
    assert saved[NODE][0] == 2


def test_a_node_that_holds_a_newer_revision_outlives_a_lost_database() -> None:
    configs, saved = make([VLLM])

    payload = configs.payload_for(NODE, held=(7, "something else"))

    assert payload.revision == 8
    assert saved[NODE] == (8, config_hash([VLLM]))


def test_a_node_that_holds_the_same_content_changes_nothing() -> None:
    first, saved = make([MOCK])
    before = first.payload_for(NODE)

    assert first.payload_for(NODE, held=(before.revision, before.hash)) is before
    assert saved[NODE][0] == 1
