"""A client's part of a run: Flower app, model or replica, batches, training, ledger, replies."""
