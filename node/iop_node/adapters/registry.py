"""Adapter types by name. A type's module is imported when its first adapter is made, so that one that cannot
be imported costs nobody else anything."""

import importlib
from collections.abc import Mapping
from typing import Any, Final

from iop_node.core.ports import Adapter, AdapterFactory
from iop_shared.errors import InvalidConfig
from iop_shared.ids import AdapterName
from iop_shared.logs import get_logger

log = get_logger("node")

MODULES: Final[Mapping[str, str]] = {
    "mock": "iop_node.adapters.mock",
    "vllm": "iop_node.adapters.vllm",
}
"""Each has a function `build(name, max_concurrent, settings)`; see node/README.md, "A new adapter"."""


def adapter_factories(modules: Mapping[str, str] = MODULES) -> dict[str, AdapterFactory]:
    """Returns a factory for each type. None of them has been imported yet."""
    return {type_: _LazyFactory(type_, module) for type_, module in modules.items()}


class _LazyFactory:
    """Imports `module` at the first call."""

    def __init__(self, type_: str, module: str) -> None:
        self._type, self._module = type_, module

    def __call__(self, name: AdapterName, max_concurrent: int, settings: dict[str, Any]) -> Adapter:
        try:
            build: AdapterFactory = importlib.import_module(self._module).build
        except (ImportError, AttributeError) as error:
            log.error("adapter_type_unavailable", type=self._type, module=self._module, error=str(error))
            raise InvalidConfig(
                f"adapter {name}",
                [f"type {self._type!r} is not available on this node: {self._module} cannot be used ({error})"],
            ) from error
        return build(name, max_concurrent, settings)
