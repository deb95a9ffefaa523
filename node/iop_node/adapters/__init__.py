"""Ways of executing: each adapter implements `core.ports.Adapter` and knows the core by its ports alone."""
