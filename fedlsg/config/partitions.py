"""Partitions that any workload has, by name. How each deals rows is in
``fedlsg.simulations.workloads.partition``.
"""

SCHEMES = {"iid": False, "dirichlet": True, "shards": True}
"""Whether a partition reads classes."""
ANY = "partition=" + "|".join(SCHEMES)
"""One of them, in the words of a rule."""
