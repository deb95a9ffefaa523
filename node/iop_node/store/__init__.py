"""The node's journal of runs: on disk for the daemon, in memory for tests. Implements `core.ports.RunStore`."""
