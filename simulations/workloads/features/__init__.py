"""Public features: what frozen filters or networks make of each example, computed once and kept in the cache."""
