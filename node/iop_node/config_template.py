"""The commented node.toml that `iop-node join` writes. It loads as it is; a test checks that. Pure."""

import json
from typing import Final

from iop_shared.http_listen import ListenAddress
from iop_shared.ids import NodeId

_TEMPLATE: Final = """\
# The node's own configuration: who it is, whom it dials, and what may run on this machine. What should run
# comes from the edge. `iop-node config check` tells whether it can be used, `iop-node run` reads it.
# Each key can be set from outside too: IOP_NODE__HTTP__LISTEN stands for [http] listen. Times are in seconds.
# What stands behind a # is the default, or an example. The token lies beside this file, in `token`.

node_id = {node_id}
edges = [{edge}]
{plaintext}
# labels = {{ site = "lab" }}         # the edge can choose nodes by them

[allow]                             # the last word about what an edge may have run here
adapters = ["mock", "vllm"]
base_urls = ["http://127.0.0.1:*", "http://localhost:*"]
# files = ["/etc/iop/keys/*"]       # what an adapter's api_key_file may name: a path, or FOLDER/*

[http]                              # /healthz and /metrics
listen = "127.0.0.1:7481"           # port 0: a free one, see run.json
# enabled = true

[limits]
# max_runs = 256                    # at once, over all adapters
# cancel_grace_s = 5                # what an adapter gets to stop its engine
# drain_timeout_s = 30              # what runs get to end when the node is stopped
# max_input_bytes = 33554432
# max_output_bytes = 67108864       # of one run
# probe_interval_s = 10             # how often engines are asked whether they are there
# probe_timeout_s = 5

[history]                           # the journal of runs, node.db
# retain_days = 30
# retain_runs = 100000
"""


def node_toml(node_id: NodeId, edge: ListenAddress, *, allow_plaintext: bool) -> str:
    """Returns the text of a new node.toml."""
    plaintext = (
        "allow_plaintext = true              # links are not encrypted: only over a network that you trust"
        if allow_plaintext
        else "# allow_plaintext = false           # needed to dial beyond this machine: links are not encrypted"
    )
    return _TEMPLATE.format(node_id=json.dumps(node_id), edge=json.dumps(str(edge)), plaintext=plaintext)
