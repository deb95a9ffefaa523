"""Ways of executing: each adapter implements `core.ports.Adapter`. They know the core's ports, never its insides."""
