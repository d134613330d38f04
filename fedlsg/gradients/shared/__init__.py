"""Values that all examples share: parameters without a layer, tied weights, and what is computed from them."""
