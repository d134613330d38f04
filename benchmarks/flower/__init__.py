"""Flower's own processes: what they carry, and what they withstand."""
