"""What the edge keeps on disk, in one SQLite file: records of runs, tokens, epochs, revisions."""
