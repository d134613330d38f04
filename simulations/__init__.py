"""Simulated federations: Flower apps, workloads, engines, run directories, reports and the command
line.
"""
