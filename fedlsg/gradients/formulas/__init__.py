"""Formulas of single layers: gradients of examples from a layer's input and output gradient."""
