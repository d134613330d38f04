"""A grid of runs: its cells, its file, and the processes that run them one after the other."""
