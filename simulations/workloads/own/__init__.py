"""Workloads of a user's own: what ``fedlsg.Workload`` takes, and how it becomes splits."""
