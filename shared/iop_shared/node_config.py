"""The canonical form of a NodeConfigPayload and its hash, computed alike by edge and node. Pure."""

import hashlib
import json
from collections.abc import Sequence

from iop_shared.link.messages import AdapterConfig, NodeConfigPayload


def config_hash(adapters: Sequence[AdapterConfig]) -> str:
    """Returns the SHA-256 (hex) over the adapters: sorted by name, keys sorted, no spaces."""
    content = [
        {"name": a.name, "type": a.type, "max_concurrent": a.max_concurrent, "settings": dict(a.settings)}
        for a in sorted(adapters, key=lambda a: a.name)
    ]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def make_node_config(revision: int, adapters: Sequence[AdapterConfig]) -> NodeConfigPayload:
    """Returns the payload for `adapters` with its hash filled in."""
    return NodeConfigPayload(revision, config_hash(adapters), tuple(adapters))
