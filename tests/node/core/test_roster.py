"""Configurations are applied by difference, or rejected as a whole with every reason."""

from typing import Any

from tests.support.node_fakes import PlayedAdapter

from iop_node.core.allow import AllowList
from iop_node.core.ports import Adapter
from iop_node.core.roster import Roster
from iop_shared.errors import InvalidConfig
from iop_shared.ids import AdapterName, RunId
from iop_shared.link.messages import AdapterConfig, GateState, NodeConfigPayload
from iop_shared.node_config import make_node_config

A, B = AdapterName("a"), AdapterName("b")


def build(name: AdapterName, max_concurrent: int, settings: dict[str, Any]) -> Adapter:
    if "bad" in settings:
        raise InvalidConfig(f"adapter {name}", ["bad = 1 is not allowed", "worse too"])
    if "bug" in settings:
        raise ZeroDivisionError
    return PlayedAdapter(name, settings)


def roster() -> Roster:
    return Roster({"played": build, "cli": build}, AllowList(("played",), ("http://127.0.0.1:*",)))


def adapter(name: str, type_: str = "played", most: int = 1, **settings: object) -> AdapterConfig:
    return AdapterConfig(AdapterName(name), type_, most, settings)


def config(*adapters: AdapterConfig, revision: int = 1) -> NodeConfigPayload:
    return make_node_config(revision, adapters)


async def test_unchanged_adapters_stay_and_changed_ones_are_made_anew() -> None:
    it = roster()
    it.apply(config(adapter("a"), adapter("b", x=1)))
    a, b = it.get(A), it.get(B)

    applied = it.apply(config(adapter("a"), adapter("b", x=2), adapter("c"), revision=2))

    assert it.get(A) is a
    assert it.get(B) is not b
    assert applied.reasons == ()
    assert applied.to_close == (b,)
    assert [slot.config.name for slot in applied.added] == ["b", "c"]
    assert (it.revision, len(it)) == (2, 3)


async def test_an_adapter_in_use_is_closed_when_its_last_run_is_over() -> None:
    it = roster()
    it.apply(config(adapter("a", x=1)))
    old = it.get(A)
    assert old is not None
    first, second = (RunId("r1"), 1), (RunId("r2"), 1)
    old.live |= {first, second}

    applied = it.apply(config(adapter("a", x=2), revision=2))

    assert applied.to_close == ()
    assert it.in_flight(A) == 2, "runs of the retired adapter still hold places of that name"
    assert not it.release(old, first)
    assert it.release(old, second)
    it.note_closed(old)
    assert not it.release(old, second)
    assert it.in_flight(A) == 0
    assert old not in it.all_slots()


async def test_every_reason_is_told_and_nothing_changes() -> None:
    it = roster()
    it.apply(config(adapter("a")))
    before = it.get(A)

    applied = it.apply(
        config(
            adapter("a", x=2),
            adapter("b", type_="cli"),
            adapter("Bad Name"),
            adapter("c", type_="plaid"),
            adapter("d", most=0),
            adapter("d", base_url="http://10.0.0.1:80"),
            revision=2,
        )
    )

    assert applied.reasons == (
        "adapter 'b': type 'cli' is not allowed on this node (allow.adapters in its own file: played)",
        "adapter 'Bad Name' is not a valid name: use 1 to 63 of a-z 0-9 . _ - and begin and end with a letter or "
        "digit",
        "adapter 'c': unknown adapter type 'plaid': did you mean 'played' or 'cli'?",
        "adapter 'd': max_concurrent is 0; use 1 to 65536",
        "adapter 'd' is given twice",
        "adapter 'd': base_url 'http://10.0.0.1:80' is not allowed on this node (allow.base_urls in its own file: "
        "http://127.0.0.1:*)",
    )
    assert it.get(A) is before
    assert it.revision == 1


async def test_settings_that_an_adapter_does_not_take_reject_and_close_what_was_made() -> None:
    it = roster()

    applied = it.apply(config(adapter("a"), adapter("b", bad=1), adapter("c", bug=1)))

    assert applied.reasons == (
        "adapter 'b': bad = 1 is not allowed",
        "adapter 'b': worse too",
        "adapter 'c': could not be made: ZeroDivisionError; this is a bug, the node's log has the details",
    )
    assert [slot.config.name for slot in applied.to_close] == ["a"]
    assert len(it) == 0


async def test_a_default_base_url_must_be_allowed_too() -> None:
    class Dialling(PlayedAdapter):
        base_url = "http://10.0.0.1:8000"

    it = Roster(
        {"played": lambda name, most, settings: Dialling(name)}, AllowList(("played",), ("http://127.0.0.1:*",))
    )

    applied = it.apply(config(adapter("a")))

    assert len(applied.reasons) == len(applied.to_close) == 1


async def test_a_wrong_hash_is_rejected() -> None:
    payload = NodeConfigPayload(7, "0" * 64, (adapter("a"),))

    assert roster().apply(payload).reasons == (
        "revision 7: the hash does not fit the content; nothing was applied",
    )


async def test_an_adapter_that_was_not_asked_yet_has_an_unknown_gate_and_takes_any_target() -> None:
    it = roster()
    it.apply(config(adapter("a")))

    offer = it.offers()[A]

    assert offer.gate.state is GateState.UNKNOWN
    assert offer.targets is None


def test_the_edge_is_told_no_more_places_than_the_node_has() -> None:
    it = Roster({"played": build}, AllowList(("played",), ()), max_runs=4)

    it.apply(config(adapter("a", most=8), adapter("b", most=2)))

    assert [status.max_concurrent for status in it.statuses()] == [4, 2]
