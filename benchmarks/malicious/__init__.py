"""A server that chooses the weights that clients train on: crafted weights, and how their update is read."""
