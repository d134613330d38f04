"""The run directory: everything that a run leaves, written and read."""
