"""Noise with an exact law: discrete Gaussians around real numbers, made of secret bits by integers.

``add_gaussian`` is the noise of every payload, count and saliency of one sender.
``discrete_gaussian`` is that of secure sums, in grid steps.
"""

from fedlsg.noise.gaussian import add_gaussian, check_std
from fedlsg.noise.sampler import discrete_gaussian

__all__ = ["add_gaussian", "check_std", "discrete_gaussian"]
