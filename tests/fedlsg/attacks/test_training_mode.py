"""Canary examples seen through real payloads: what they add, and what the payloads' noise gives away."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedlsg.attacks.training_mode import clipped_rows, enough, look, scored, unlike
from tests.fedlsg.attacks.observed import digits, method, mlp, observe

IMAGES, LABELS = digits(6)


def seen(name="lsg", rows=slice(0, 6)):
    """A noise-free payload in which every one of these examples took part, as if noise of deviation 1e-3 was added."""
    made = observe(method(name), mlp(), IMAGES[rows], LABELS[rows])
    return replace(made, noise_std=1e-3)


@pytest.mark.parametrize("name", ["lsg", "rgp", "rs", "dpsgd"])
def test_rows_add_up_to_the_payload(name):
    made = seen(name)
    assert_close(clipped_rows(made, IMAGES, LABELS).sum(0), made.values, rtol=1e-6, atol=1e-9)


def test_a_canary_that_is_in_stands_one_above_one_that_is_out():
    """At q = 1 by hand: what is left of the payload is half of the canary's gradient, or minus half of it."""
    canaries, rest = (IMAGES[:1], LABELS[:1]), (IMAGES[1:], LABELS[1:])
    present, absent = look(seen(), canaries, rest), look(seen(rows=slice(1, 6)), canaries, rest)
    assert present.components.item() == pytest.approx(1.0, abs=1e-6)
    assert absent.components.item() == pytest.approx(0.0, abs=1e-6)
    assert present.lengths.item() == pytest.approx(0.1, rel=1e-6)
    assert present.residual.norm().item() == pytest.approx(0.05 / 1e-3, rel=1e-5)
    assert scored([present], 1e-3, 1.0).item() > 0 > scored([absent], 1e-3, 1.0).item()


def test_a_company_that_is_not_known_moves_the_canary():
    """Negative control: without the others' expected sum the component is far from 1."""
    nobody = (IMAGES[:0], LABELS[:0])
    assert abs(look(seen(), (IMAGES[:1], LABELS[:1]), nobody).components.item() - 1) > 0.1


def residuals(count=20, scale=1.0):
    return list(np.random.default_rng(0).normal(scale=scale, size=(count, 400)))


def test_checks_of_payloads():
    assert enough(residuals()).passed
    assert enough([one + 3.0 for one in residuals()]).passed
    assert not enough(residuals(scale=0.9)).passed
    assert unlike(residuals()).passed
    assert not unlike([*residuals(), residuals()[4] + 0.1]).passed
    assert unlike([np.ones(3), np.ones(4)]).passed


def test_a_batch_of_no_canaries_is_empty():
    assert clipped_rows(seen(), IMAGES[:0], LABELS[:0]).shape == (0, seen().frame.kept)
    assert torch.isfinite(look(seen(), (IMAGES[:0], LABELS[:0]), (IMAGES, LABELS)).residual).all()
