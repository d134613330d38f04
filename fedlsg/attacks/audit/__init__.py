"""Falsify a claimed epsilon: canaries, planted mistakes, bounds and verdict."""
