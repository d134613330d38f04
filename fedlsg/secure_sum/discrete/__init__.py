"""Discrete Gaussian noise on a grid of integers, which a secure sum can add: sampler, grid,
rotation, accounting.
"""

from fedlsg.noise.sampler import discrete_gaussian
from fedlsg.secure_sum.discrete.grid import add_modulo, rotate
from fedlsg.secure_sum.discrete.sum_release import Release, SumTerms, most_log_ratio, plan_release

__all__ = [
    "Release",
    "SumTerms",
    "add_modulo",
    "discrete_gaussian",
    "most_log_ratio",
    "plan_release",
    "rotate",
]
