"""What clients of the edge speak to: HTTP in two dialects. Parses and formats; the verbs are EdgeService's."""
