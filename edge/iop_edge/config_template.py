"""The commented edge.toml that `iop-edge init` writes. It loads as it is; a test checks that."""

from typing import Final

TEMPLATE: Final = """\
# The edge's configuration. `iop-edge config check` tells whether it can be used, `iop-edge run` reads it.
# Each key can be set from outside too: IOP_EDGE__HTTP__LISTEN stands for [http] listen. Times are in seconds.
# What stands behind a # is the default, or an example.

# edge_id = "edge"                  # how this edge calls itself to its nodes

[link]                              # where nodes dial in
listen = "127.0.0.1:7443"           # port 0: a free one, see run.json
# allow_plaintext = false           # needed to listen beyond this machine: links are not encrypted yet

[http]                              # where clients speak HTTP
listen = "127.0.0.1:7480"
# allow_remote = false              # needed to listen beyond this machine: there are no API keys yet

[limits]
# max_live_runs = 10000
# max_queued = 256                  # runs that may wait for a free place; more are refused at once
# queue_timeout_s = 30
# max_input_bytes = 33554432
# heartbeat_interval_s = 15
# dead_after_s = 40                 # a link that was silent for so long is given up
# disconnect_grace_s = 60           # how long a run goes on without a link to its node

[history]
# retain_days = 30
# retain_runs = 100000

# --- adapters: ways of executing, which nodes are told to offer. Keys beside these two depend on the type.
[adapters.mock]
type = "mock"
max_concurrent = 4

# [adapters.vllm]                   # any OpenAI-compatible engine: vLLM, llama.cpp server, SGLang ...
# type = "vllm"
# max_concurrent = 16
# base_url = "http://127.0.0.1:8000"   # as the node sees it; the node's own file must allow it

# --- nodes: only those that need labels, or not all of the adapters
# [nodes.gpu-1]
# labels = { site = "lab" }
# adapters = ["vllm"]

# --- profiles: what an API client may name as `model` (beside adapter/target)
# [profiles.small]
# version = 1
# adapter = "vllm"
# target = "Qwen/Qwen3-8B"
# options = { temperature = 0.2 }   # under what the client asks for
# nodes = { site = "lab" }          # only nodes with these labels
"""
