"""The catalog: what an API client's `model` may be: profiles, and the targets that connected nodes offer. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from iop_edge.domain.routing import Candidate
from iop_edge.domain.views import ModelView, ResolvedModel, RunOrder
from iop_shared.errors import UnknownName
from iop_shared.ids import AdapterName, NodeId, ProfileName, TargetName, check_target
from iop_shared.link.messages import OPEN_GATES, AdapterStatus
from iop_shared.runs import RunLimits


@dataclass(frozen=True, slots=True)
class Profile:
    """A versioned, named description of how to run something."""

    name: ProfileName
    adapter: AdapterName
    target: TargetName
    version: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: RunLimits = RunLimits()
    node_labels: Mapping[str, str] = field(default_factory=dict)


class Catalog:
    """Profiles and adapter names of the configuration, read beside what nodes say."""

    def __init__(self, profiles: Iterable[Profile], adapters: Collection[AdapterName]) -> None:
        self._profiles = {profile.name: profile for profile in profiles}
        self._adapters = frozenset(adapters)

    def resolve(self, model: str, candidates: Sequence[Candidate]) -> ResolvedModel:
        """Returns what `model` stands for: a profile's name, or `adapter/target` split at the first slash.

        Whether a node has the target is found out when the run is submitted: an adapter may take targets
        that it does not list.

        Raises:
            UnknownName: with the nearest known names and param "model".
            InvalidName: the target has characters that no target may have.
        """
        profile = self._profiles.get(ProfileName(model))
        if profile is not None:
            return ResolvedModel(
                name=model,
                adapter=profile.adapter,
                target=profile.target,
                profile=profile.name,
                options=profile.options,
                limits=profile.limits,
                node_labels=profile.node_labels,
            )
        adapter, slash, target = model.partition("/")
        if slash and target and AdapterName(adapter) in self._known_adapters(candidates):
            return ResolvedModel(name=model, adapter=AdapterName(adapter), target=check_target(target))
        raise UnknownName("model", model, [view.name for view in self.models(candidates)], param="model")

    def models(self, candidates: Sequence[Candidate]) -> list[ModelView]:
        """Returns every profile, then every adapter/target that a connected node offers, sorted by name."""
        profiles = [
            ModelView(p.name, p.adapter, p.target, _nodes_for(p, candidates), is_profile=True)
            for p in sorted(self._profiles.values(), key=lambda p: p.name)
        ]
        offers: dict[tuple[AdapterName, TargetName], list[NodeId]] = {}
        for candidate in candidates:
            for status in _open_adapters(candidate):
                for target in status.targets:
                    offers.setdefault((status.name, target), []).append(candidate.node_id)
        direct = [
            ModelView(f"{adapter}/{target}", adapter, target, tuple(sorted(nodes)), is_profile=False)
            for (adapter, target), nodes in offers.items()
        ]
        return profiles + sorted(direct, key=lambda view: view.name)

    def check_known(self, order: RunOrder, candidates: Sequence[Candidate]) -> None:
        """Returns if a node could come to take the order one day; called when none can now.

        Raises:
            UnknownName: the adapter is known to no connected node and to no configuration, or it is offered
                with an open gate and nobody there has the target, nor does a profile name it.
        """
        adapters = self._known_adapters(candidates)
        if order.adapter not in adapters:
            raise UnknownName("adapter", order.adapter, sorted(adapters), param="adapter")
        offering = [s for c in candidates for s in _open_adapters(c) if s.name == order.adapter]
        named = {p.target for p in self._profiles.values() if p.adapter == order.adapter}
        if not offering or order.target in named:
            return
        if any(s.any_target or order.target in s.targets for s in offering):
            return
        targets = named | {target for s in offering for target in s.targets}
        raise UnknownName("target", order.target, sorted(targets), param="target")

    def _known_adapters(self, candidates: Sequence[Candidate]) -> set[AdapterName]:
        return {*self._adapters, *(name for c in candidates if c.is_connected for name in c.adapters)}


def _open_adapters(candidate: Candidate) -> list[AdapterStatus]:
    if not candidate.is_connected or candidate.config_state == "rejected":
        return []
    return [status for status in candidate.adapters.values() if status.gate.state in OPEN_GATES]


def _nodes_for(profile: Profile, candidates: Sequence[Candidate]) -> tuple[NodeId, ...]:
    return tuple(
        sorted(
            c.node_id
            for c in candidates
            if all(c.labels.get(key) == value for key, value in profile.node_labels.items())
            for s in _open_adapters(c)
            if s.name == profile.adapter and (s.any_target or profile.target in s.targets)
        )
    )
