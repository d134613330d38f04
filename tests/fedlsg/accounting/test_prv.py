"""The witness answers as its library does where every shortcut is left out, and a planted shortcut
is caught.
"""

import subprocess
import sys
from contextlib import suppress
from dataclasses import astuple

import pytest
from prv_accountant import PoissonSubsampledGaussianMechanism
from prv_accountant.accountant import compute_safe_domain_size
from prv_accountant.privacy_random_variables import PrivacyRandomVariableTruncated

from fedlsg.accounting import prv as accountant_prv
from fedlsg.accounting.events import Event


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.5, 0.7, 2), (0.01, 1.1, 300), (1.0, 5.0, 4)])
def test_remembered_divergences_change_no_answer(q, sigma, steps, monkeypatch):
    events = (Event(sample_rate=q, noise_multiplier=sigma, steps=steps),)
    accountant_prv.interval.cache_clear()
    ours = accountant_prv.interval(events, 1e-5)
    accountant_prv.interval.cache_clear()
    monkeypatch.setattr(accountant_prv, "_Step", PoissonSubsampledGaussianMechanism)
    assert accountant_prv.interval(events, 1e-5) == ours
    accountant_prv.interval.cache_clear()
    accountant_prv._renyi.cache_clear()
    monkeypatch.setattr(
        accountant_prv, "_Step", lambda q, sigma: PoissonSubsampledGaussianMechanism(q, 2 * sigma)
    )
    assert accountant_prv.interval(events, 1e-5) != ours  # negative control
    accountant_prv.interval.cache_clear()


@pytest.mark.parametrize(
    "settings",
    [[(0.5, 0.7, 2)], [(0.01, 1.1, 300)], [(1.0, 5.0, 4)], [(0.3, 2.0, 40), (0.1, 0.9, 3)]],
)
def test_the_witness_answers_as_its_library_does_in_full(settings, monkeypatch):
    """A grid as wide, and masses as large, as with every order and every cell."""
    events = tuple(
        Event(sample_rate=q, noise_multiplier=sigma, steps=steps) for q, sigma, steps in settings
    )
    steps, parts = [e.steps for e in events], accountant_prv._steps_of(events)
    width = accountant_prv._half_width(parts, steps, 0.01, 1e-8)
    assert width == pytest.approx(
        float(compute_safe_domain_size(parts, steps, 0.01, 1e-8)), rel=1e-12
    )
    ours = accountant_prv._compose(events, 1e-5, 0.01)
    with monkeypatch.context() as library:
        library.setattr(
            accountant_prv._TruncatedLoss, "probability", PrivacyRandomVariableTruncated.probability
        )
        assert astuple(accountant_prv._compose(events, 1e-5, 0.01)) == pytest.approx(
            astuple(ours), abs=1e-7
        )
    losses = accountant_prv._TruncatedLoss._losses
    monkeypatch.setattr(
        accountant_prv._TruncatedLoss,
        "_losses",
        lambda self, n: losses(self, n) * (0.4 if n == 2 else 1),
    )
    with suppress(RuntimeError):  # negative control: tails are cut that count
        assert astuple(accountant_prv._compose(events, 1e-5, 0.01)) != pytest.approx(
            astuple(ours), abs=1e-7
        )


@pytest.mark.slow
def test_the_witness_leaves_scipy_signal_to_who_needs_it():
    code = (
        "import sys; from fedlsg.accounting import prv\n"
        "assert not {'scipy.signal', 'scipy.stats'} & sys.modules.keys()\n"
        "from scipy.signal import butter, convolve; assert convolve is not prv._convolve\n"
        "assert list(prv._convolve([1, 2], [1, 1])) == [1, 3, 2]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
