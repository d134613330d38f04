"""Discrete Gaussian noise on a grid of integers, which a secure sum can add: sampler, grid, rotation, accounting."""

from fedlsg.discrete.bound import log_ratio, rounding_deviation, sum_ripple, total_variation
from fedlsg.discrete.grid import DiscreteGrid, add_modulo, decode, encode, largest_plain, most_examples, plan_grid
from fedlsg.discrete.release import DiscreteCharge, Release, SumTerms, charge, delta_term, most_log_ratio, plan_release
from fedlsg.discrete.rotation import largest_rotated, random_signs, rotate, unrotate
from fedlsg.discrete.sampler import discrete_gaussian

__all__ = [
    "DiscreteCharge", "DiscreteGrid", "Release", "SumTerms", "add_modulo", "charge", "decode", "delta_term",
    "discrete_gaussian", "encode", "largest_plain", "largest_rotated", "log_ratio", "most_examples",
    "most_log_ratio", "plan_grid", "plan_release", "random_signs", "rotate", "rounding_deviation", "sum_ripple",
    "total_variation", "unrotate",
]  # fmt: skip
