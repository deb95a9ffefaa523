"""Adapter types by name, imported late."""

import pytest

from iop_node.adapters.mock import MockAdapter
from iop_node.adapters.registry import MODULES, adapter_factories
from iop_shared.errors import InvalidConfig
from iop_shared.ids import AdapterName


def test_every_type_is_there_and_makes_its_adapter() -> None:
    factories = adapter_factories()

    made = factories["mock"](AdapterName("m"), 1, {})

    assert set(factories) == set(MODULES) == {"mock", "vllm"}
    assert isinstance(made, MockAdapter)


@pytest.mark.parametrize("module", ["iop_node.adapters.no_such_module", "iop_node.adapters.mock_script"])
def test_a_type_that_cannot_be_imported_is_a_sentence(module: str) -> None:
    factories = adapter_factories({"odd": module})

    with pytest.raises(InvalidConfig) as caught:
        factories["odd"](AdapterName("o"), 1, {})

    assert str(caught.value).startswith(
        f"adapter o: type 'odd' is not available on this node: {module} cannot be used ("
    )
