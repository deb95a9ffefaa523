"""The node's core: admits, runs, cancels and records. Knows ports, not sockets, engines or databases."""
