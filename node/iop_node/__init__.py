"""The node daemon: dials out to edges and executes runs."""
