"""Attacks on the recorded updates of a text workload."""
