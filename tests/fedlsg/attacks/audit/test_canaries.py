"""Canaries against the shipped client: what they are, and that nothing but the backward pass is replaced."""

import pytest
import torch
from torch.testing import assert_close

from fedlsg.attacks.audit.shipped import make_canaries, release
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.randomness import reproducible_stream
from fedlsg.training.client import LocalTraining
from tests.fedlsg.support.audit_setting import setting

GENERATOR = torch.Generator


def canaries(made, count=60):
    return make_canaries(made, count, GENERATOR().manual_seed(0))


def sent(made, rows, **changes):
    local = LocalTraining(**{"sample_rate": 1.0, **changes})
    noiseless = Mechanism(kind="clip-only", clip_norm=made.mechanism.clip_norm, clip=made.mechanism.clip)
    streams = {"sampler": reproducible_stream(0, "s"), "noise": reproducible_stream(0, "n")}
    return release(rows, model=made.model, frame=made.frame, mechanism=noiseless, local=local, **streams)


@pytest.mark.parametrize("name", ["lsg", "rgp", "rs", "dpsgd"])
def test_clipped_canaries_are_orthogonal_of_norm_c_with_energy_in_every_block(name):
    made = setting(name, clip_norm=0.5)
    found = canaries(made).clipped.double()
    assert_close(found @ found.T / 0.25, torch.eye(60, dtype=torch.float64), atol=1e-5, rtol=0)
    for block in found.split([b.kept for b in made.frame.blocks], dim=1):
        assert block.norm(dim=1).min() > 0.05


def test_a_canary_adds_to_the_sum_what_it_says():
    made = setting(clip_norm=0.5, classifier_clip_weight=3.0)
    found = canaries(made)
    assert_close(sent(made, found.gradients[:5]), found.clipped[:5].sum(0), atol=1e-6, rtol=1e-5)
