"""Property tests draw the same examples in every run, and no deadline fails on a busy machine."""

from hypothesis import settings

settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
settings.load_profile("deterministic")
