"""Dead leaves have the sizes, the cover and the scale law of their model, and equal bits for equal
seeds.
"""

import hashlib

import torch

from fedlsg.carriers.probe.synthetic import dead_leaves, smallest, squared_radii


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_bits_are_those_of_every_machine():
    """Golden: uniform draws and IEEE arithmetic alone; a function that rounds otherwise elsewhere
    would move it.
    """
    digest = hashlib.sha256(dead_leaves(4, (3, 32, 32), generator(7)).numpy().tobytes()).hexdigest()
    assert digest[:16] == "635f88557849fbed"


def test_radii_follow_the_power_law():
    """P(r > x) = (x^-2 - b^-2) / (a^-2 - b^-2) for a density proportional to r^-3 on a .. b."""
    radii = squared_radii(40_000, 32, generator()).sqrt()
    a, b = smallest(32), 16.0
    assert a <= radii.min() <= radii.max() <= b
    for x in (4.0, 6.0, 10.0):
        expected = (x**-2 - b**-2) / (a**-2 - b**-2)
        assert abs(float((radii > x).double().mean()) - expected) < 0.01
