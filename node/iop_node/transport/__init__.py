"""The link to the edge: dialling, and what stands behind a standing link. Above the core's ports."""
