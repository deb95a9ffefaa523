"""The edge daemon: accepts nodes, routes runs to them and relays what they produce."""
