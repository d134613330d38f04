"""A run's settings: as given, as resolved, and those of the papers' tables."""
