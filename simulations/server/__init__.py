"""The server's part of a run: Flower app, state and strategy, evaluation, records, summary."""
