"""The audit of secure sums: outputs are sums of integers with discrete noise, less what the readers know."""

from dataclasses import replace

import pytest
import torch

from fedlsg.attacks.audit.setting import Setting
from fedlsg.attacks.audit.unit_mode import rounds_of, values_of
from tests.fedlsg.support.audit_setting import at_client_level, secure, setting


def silent(made: Setting, rounds: int = 30) -> torch.Tensor:
    return values_of(rounds_of(made, torch.zeros(1, made.frame.kept), "silent", 0, rounds, lambda: None))


@pytest.mark.parametrize("made", [secure(setting()), at_client_level(setting(), "secure")], ids=["example", "client"])
def test_the_noise_of_an_output_is_that_of_the_honest_clients(made):
    assert float(silent(made).std()) == pytest.approx(made.noise_std, rel=0.03)


def test_an_output_that_keeps_the_readers_noise_would_have_too_much():
    """Negative control: with one share more the same clients reach sqrt(4 / 3) of what the readers are left with."""
    made = secure(setting())
    own = replace(made.stated, min_survivors=5)  # one more, whose noise is not taken off
    assert float(silent(replace(made, stated=own)).std()) == pytest.approx(made.noise_std * (4 / 3) ** 0.5, rel=0.03)


def test_a_client_moves_a_sum_by_its_clipped_update():
    made = at_client_level(setting(), "secure")
    made = replace(made, mechanism=replace(made.mechanism, noise_multiplier=0.001))
    row = torch.zeros(1, made.frame.kept)
    row[0, :2] = 30.0  # far above the clip
    output = values_of(rounds_of(made, row.expand(4, -1), "alike", 0, 1, lambda: None))[0]
    wanted = 4 * made.sensitivity * row[0] / row[0].norm()
    assert float((output - wanted).norm()) < 0.05 * float(wanted.norm())


def test_noise_that_is_planned_for_another_number_is_refused_by_the_release():
    made = secure(setting())
    short = replace(made, mechanism=replace(made.mechanism, noise_share=4**-0.5))
    with pytest.raises(ValueError, match="expected noise_share"):
        silent(short, 1)
