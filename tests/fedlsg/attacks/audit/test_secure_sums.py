"""The audit of secure sums: outputs are sums of integers with discrete noise, as a server decodes them."""

from dataclasses import replace

import pytest
import torch

from fedlsg.attacks.audit.unit_mode import Setting, rounds_of
from fedlsg.discrete import SumTerms
from tests.fedlsg.support.audit_setting import audit, setting


def secure() -> Setting:
    """Three clients of whom one may collude: the outputs are sums of the two whose noise counts."""
    made = setting("lsg", rounds=4)
    sums = SumTerms(
        clients=3, min_survivors=3, colluders=1, expected_examples=50.0, releases=made.rounds, delta=1e-5
    )  # fmt: skip
    mechanism = replace(made.mechanism, noise_share=sums.contributors**-0.5)
    return replace(made, mechanism=mechanism, sums=sums)


@pytest.mark.parametrize(("plant", "falsified"), [(None, False), ("halved-noise", True), ("no-clip", True)])
def test_discrete_noise_is_as_claimed_unless_a_mistake_is_planted(plant, falsified):
    assert audit(secure(), plant=plant, canaries=100).falsified == falsified


def test_outputs_are_on_the_grid_and_their_noise_is_that_of_the_honest():
    made = secure()
    outputs = rounds_of(made, torch.zeros(1, made.frame.kept), "silent", 0, 30, lambda: None)
    assert float(outputs.std()) == pytest.approx(made.noise_std, rel=0.03)


def test_noise_that_is_planned_for_all_clients_is_too_small():
    """Planted: shares for three honest clients, and one of them colludes."""
    made = secure()
    assert made.sums is not None
    short = replace(made, mechanism=replace(made.mechanism, noise_share=3**-0.5))
    with pytest.raises(ValueError, match="expected noise_share"):
        rounds_of(short, torch.zeros(1, made.frame.kept), "silent", 0, 1, lambda: None)
