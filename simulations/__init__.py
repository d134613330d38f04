"""Simulated federations: Flower apps, workloads, engines, run directories, reports and the command
line.
"""

if __name__ != "fedlsg.simulations":
    # A second copy of each module would have ledgers, caches and classes of its own.
    raise ImportError("expected the name fedlsg.simulations: this folder is a part of fedlsg")
