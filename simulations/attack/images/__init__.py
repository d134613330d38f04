"""Attacks on the recorded updates of an image workload."""
