"""The adapters that this node offers, and how a pushed configuration changes them.

A slot is one configured adapter with what its last probe said and the runs that use it. A configuration is
applied by difference: unchanged slots stay as they are; one that goes away while runs use it is retired and
closed when its last run is over.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from iop_node.core.allow import AllowList
from iop_node.core.outbox import RunKey
from iop_node.core.ports import Adapter, AdapterFactory, ListsTargets, ProbeResult
from iop_node.core.router import AdapterOffer
from iop_shared.errors import InvalidConfig, InvalidName, nearest
from iop_shared.ids import AdapterName, check_name
from iop_shared.link.messages import AdapterConfig, AdapterStatus, Gate, GateState, NodeConfigPayload
from iop_shared.logs import get_logger
from iop_shared.node_config import config_hash

log = get_logger("node")

MAX_CONCURRENT_LIMIT = 65_536
"""More runs at once on one adapter is a slip of the pen. Chosen; change freely."""


@dataclass(slots=True, eq=False)
class Slot:
    """One configured adapter. `live`: its runs, abandoned ones included; they hold its places."""

    config: AdapterConfig
    adapter: Adapter
    probe: ProbeResult | None = None
    live: set[RunKey] = field(default_factory=set)
    is_retired: bool = False
    is_closed: bool = False

    @property
    def gate(self) -> Gate:
        """The gate by the last probe; not applicable where an adapter has nothing to ask."""
        if self.probe is not None:
            return self.probe.gate
        if isinstance(self.adapter, ListsTargets):
            return Gate(GateState.UNKNOWN, "engine_reachable", "not asked yet")
        return Gate(GateState.NOT_APPLICABLE)

    def offer(self) -> AdapterOffer:
        """What the router needs to know."""
        probe = self.probe
        targets = probe.targets if probe is not None and probe.gate.state in _TARGETS_KNOWN else None
        return AdapterOffer(self.config.name, self.config.type, self.adapter.capabilities, self.gate, targets)

    def status(self) -> AdapterStatus:
        """What the edge is told."""
        can = self.adapter.capabilities
        return AdapterStatus(
            name=self.config.name,
            type=self.config.type,
            gate=self.gate,
            max_concurrent=self.config.max_concurrent,
            operations=can.operations,
            targets=self.probe.targets if self.probe is not None else (),
            any_target=can.any_target,
        )


# With another gate the engine was not asked or did not answer, so its list says nothing.
_TARGETS_KNOWN = (GateState.OPEN, GateState.NOT_APPLICABLE)


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of a configuration. `reasons`: why it was rejected, else empty. `to_close`: no longer used."""

    reasons: tuple[str, ...] = ()
    to_close: tuple[Slot, ...] = ()
    added: tuple[Slot, ...] = ()


class Roster:
    """The slots by name, and the retired ones."""

    def __init__(
        self, factories: Mapping[str, AdapterFactory], allow: AllowList, *, max_runs: int = MAX_CONCURRENT_LIMIT
    ) -> None:
        self._factories, self._allow, self._max_runs = factories, allow, max_runs
        self._slots: dict[AdapterName, Slot] = {}
        self._retired: list[Slot] = []
        self.revision = 0
        self.hash = config_hash(())

    def get(self, name: AdapterName) -> Slot | None:
        """Returns the slot that takes new runs of `name`."""
        return self._slots.get(name)

    def __iter__(self) -> Iterator[Slot]:
        return iter(tuple(self._slots.values()))

    def __len__(self) -> int:
        return len(self._slots)

    def all_slots(self) -> tuple[Slot, ...]:
        """Every slot that is not closed, retired ones included."""
        return (*self._slots.values(), *self._retired)

    def offers(self) -> Mapping[AdapterName, AdapterOffer]:
        """What each slot offers, by name."""
        return {name: slot.offer() for name, slot in self._slots.items()}

    def statuses(self) -> tuple[AdapterStatus, ...]:
        """What the edge is told of each, by name. It routes by this: no more places than the node has."""
        told = (self._slots[name].status() for name in sorted(self._slots))
        return tuple(replace(one, max_concurrent=min(one.max_concurrent, self._max_runs)) for one in told)

    def in_flight(self, name: AdapterName) -> int:
        """How many runs hold a place of `name`; those of a retired slot of that name count too."""
        slot = self._slots.get(name)
        current = len(slot.live) if slot is not None else 0
        return current + sum(len(old.live) for old in self._retired if old.config.name == name)

    def apply(self, config: NodeConfigPayload) -> Applied:
        """Puts `config` in force, or rejects it as a whole and changes nothing."""
        problems = list(self._problems_of(config))
        if problems:
            return Applied(tuple(problems))
        fresh: list[Slot] = []
        for wanted in config.adapters:
            known = self._slots.get(wanted.name)
            if known is not None and known.config == wanted:
                continue
            try:
                adapter = self._build(wanted)
            except InvalidConfig as error:
                problems += [f"adapter {wanted.name!r}: {problem}" for problem in error.problems]
                continue
            fresh.append(Slot(wanted, adapter))
            # An adapter may have a default that its settings do not show.
            url = getattr(adapter, "base_url", None)
            if url is not None:
                problems += self._allow.problems_of_url(wanted.name, url)
        if problems:
            return Applied(tuple(dict.fromkeys(problems)), to_close=tuple(fresh))
        return Applied(to_close=self._replace(config, fresh), added=tuple(fresh))

    def _replace(self, config: NodeConfigPayload, fresh: list[Slot]) -> tuple[Slot, ...]:
        by_name = {slot.config.name: slot for slot in fresh}
        old = self._slots
        self._slots = {a.name: by_name.get(a.name) or old[a.name] for a in config.adapters}
        self.revision, self.hash = config.revision, config.hash
        gone = [slot for name, slot in old.items() if self._slots.get(name) is not slot]
        for slot in gone:
            slot.is_retired = True
        self._retired += [slot for slot in gone if slot.live]
        return tuple(slot for slot in gone if not slot.live)

    def release(self, slot: Slot, key: RunKey) -> bool:
        """A run no longer holds a place; returns whether the slot is to be closed now. Safe to repeat."""
        slot.live.discard(key)
        return slot.is_retired and not slot.live and not slot.is_closed

    def note_closed(self, slot: Slot) -> None:
        """The adapter of `slot` is closed; a retired slot is let go of."""
        slot.is_closed = True
        if slot in self._retired:
            self._retired.remove(slot)

    def _build(self, config: AdapterConfig) -> Adapter:
        try:
            return self._factories[config.type](config.name, config.max_concurrent, dict(config.settings))
        except InvalidConfig:
            raise
        except Exception as error:
            log.exception("adapter_build_failed", adapter=config.name, type=config.type)
            raise InvalidConfig(
                config.name,
                [f"could not be made: {type(error).__name__}; this is a bug, the node's log has the details"],
            ) from error

    def _problems_of(self, config: NodeConfigPayload) -> Iterable[str]:
        if config.hash != config_hash(config.adapters):
            yield f"revision {config.revision}: the hash does not fit the content; nothing was applied"
        seen: set[str] = set()
        for adapter in config.adapters:
            try:
                check_name("adapter", adapter.name)
            except InvalidName as error:
                yield str(error)
            if adapter.name in seen:
                yield f"adapter {adapter.name!r} is given twice"
            seen.add(adapter.name)
            if not 1 <= adapter.max_concurrent <= MAX_CONCURRENT_LIMIT:
                yield (
                    f"adapter {adapter.name!r}: max_concurrent is {adapter.max_concurrent}; "
                    f"use 1 to {MAX_CONCURRENT_LIMIT}"
                )
            if adapter.type not in self._factories:
                yield (
                    f"adapter {adapter.name!r}: unknown adapter type {adapter.type!r}: "
                    f"{nearest(adapter.type, list(self._factories))}"
                )
            else:
                yield from self._allow.problems_of(adapter)
