"""``fedlsg calibrate``: what is printed is not below what is spent; of shuffled batches, epochs begun are counted."""

import re
from typing import Any

import pytest
from typer.testing import CliRunner

from fedlsg.accounting import calibrate_noise_multiplier, epsilon
from simulations.cli.app import app

OF_EPOCH = 50


def printed(*given: str) -> tuple[float, float, str]:
    """(noise multiplier, epsilon, everything) that the command prints."""
    done = CliRunner().invoke(app, ["calibrate", "--delta", "1e-5", *given], standalone_mode=False)
    assert done.exception is None
    found = re.search(r"noise multiplier ([\d.]+): epsilon ([\d.]+) at", done.output)
    assert found is not None
    return float(found[1]), float(found[2]), done.output


@pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (50, 1), (51, 2), (149, 3), (2400, 48)])
def test_epsilon_of_shuffled_batches_is_that_of_the_epochs_begun(steps, epochs):
    given: list[Any] = ["--steps", steps, "--epoch-batches", OF_EPOCH, "--noise-multiplier", 8.0]
    _, found, said = printed(*map(str, given))
    true = epsilon(sample_rate=1.0, noise_multiplier=8.0, steps=epochs, delta=1e-5).upper
    assert true <= found < true + 1e-4
    assert f"{epochs} epochs, zero-out, no" in " ".join(said.split())
    if epochs > 1:  # control: whole epochs alone would claim less
        assert found > epsilon(sample_rate=1.0, noise_multiplier=8.0, steps=epochs - 1, delta=1e-5).upper


def test_shuffled_batches_are_not_amplified():
    given = ["--steps", "100", "--epoch-batches", str(OF_EPOCH), "--epsilon", "3"]
    sigma, found, _ = printed(*given)
    assert sigma == pytest.approx(
        calibrate_noise_multiplier(epsilon=3.0, delta=1e-5, sample_rate=1.0, steps=2), rel=1e-4
    )
    assert found <= 3.0
    poisson, _, _ = printed(*given[:2], *given[4:], "--sample-rate", "0.02")
    assert poisson < 0.7 * sigma


@pytest.mark.parametrize("target", [0.5, 1.0, 2.0, 4.0])
def test_what_is_printed_is_never_less_than_what_is_spent(target):
    """The noise multiplier as it is printed keeps the target, and the epsilon next to it is not below what it costs."""
    given = ["--steps", "100", "--sample-rate", "0.05"]
    sigma, found, _ = printed(*given, "--epsilon", str(target))
    spent = epsilon(sample_rate=0.05, noise_multiplier=sigma, steps=100, delta=1e-5).upper
    assert spent <= found <= target + 1e-4
    assert spent <= target


def test_an_epoch_without_batches_is_refused():
    done = CliRunner().invoke(
        app, ["calibrate", "--steps", "9", "--epoch-batches", "0", "--noise-multiplier", "1"], standalone_mode=False
    )
    assert "expected --epoch-batches=0 >= 1" in str(done.exception)
