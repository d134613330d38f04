"""Flower's own simulation runtime as the processes of one run."""
