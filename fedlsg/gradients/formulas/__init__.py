"""Formulas of one layer: gradients of each example from the layer's input and the gradient at its
output.
"""
