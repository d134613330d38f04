"""The contract of a recipe for methods of plain functions, with its negative controls; and what is
refused at once.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import fedlsg.training.client_round
from fedlsg.carriers import Carrier, OwnCarriers
from fedlsg.masks.mask import Mask
from fedlsg.method import Method, Schedule
from fedlsg.privacy.clip_norms import clip_factors
from fedlsg.privacy.mechanism import Mechanism, add_noise
from fedlsg.state.public_state import PublicState
from tests.fedlsg.support.own_methods import CORE, OWN_MASK, PROBE, TANGENT, scaled
from tests.strategies.contract import (
    LEAST_DRAWS,
    MODELS,
    NOISE,
    Case,
    data_set,
    noise_defects,
    sensitivity_defects,
    subject,
)
from tests.strategies.small_federation import model as small_model

CLIENT = fedlsg.training.client_round
PARTS: dict[str, dict[str, Any]] = {
    "core": {"carrier": CORE},
    "core, own mask": {"carrier": CORE, "mask": OWN_MASK},
    "core, uniform mask": {"carrier": CORE, "mask": Mask(kind="uniform", sparsity=0.5)},
    "core, per block": {"carrier": CORE, "mechanism": Mechanism(**NOISE, clip="per-block")},
    "core, weights of groups": {
        "carrier": CORE,
        "mechanism": Mechanism(**NOISE, norms_clip_weight=3.0),
    },
    "own carriers": {"carrier": TANGENT},
    "own carriers, units": {"carrier": TANGENT, "mask": Mask(kind="units", sparsity=0.4)},
    "own carriers, own mask": {"carrier": TANGENT, "mask": OWN_MASK},
    "probe": {"carrier": PROBE},
    "dense, own mask": {"mask": OWN_MASK},
}


@dataclass(frozen=True)
class Own(Case):
    """A method that no recipe makes."""

    @property
    def method(self) -> Method:
        return Method(**{"name": "own", "mechanism": Mechanism(**NOISE)} | PARTS[self.name])


@cache
def of(name: str, model: str = "mlp"):
    return subject(Own(name), MODELS[model])


cases = pytest.mark.parametrize("name", [name for name in PARTS if name != "probe"])


@pytest.mark.thinned(11)
@cases
@pytest.mark.parametrize("model", MODELS)
def test_one_example_moves_the_clipped_sum_by_the_claimed_sensitivity_at_most(name, model):
    assert sensitivity_defects(of(name, model), range(2)) == []


@pytest.mark.thinned(24)
@cases
def test_server_and_client_derive_one_frame(name):
    """Each from a model of its own."""
    s = of(name, "cnn")
    assert s.frame.digest == s.derived.digest
    assert torch.equal(s.frame.indices, s.derived.indices)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", ["core, own mask", "own carriers, own mask"])
def test_noise_has_its_variance_in_every_block(name):
    assert noise_defects(of(name), LEAST_DRAWS // 4) == []


@cases
def test_the_ledger_counts_the_blocks_of_the_frame(name):
    """One a core, two a tangent pair: the count that a plan is calibrated by is that of the frame
    that is charged.
    """
    s = of(name)
    method = Own(name).method
    trainable, carried = len(s.state.parameters), len(s.state.carried)
    blocks = trainable + carried * (len(method.carrier.parts) - 1)
    assert len(s.frame.blocks) == blocks
    charged = s.plan.charge(100)
    assert charged["noise_multiplier"] == s.mechanism.effective_noise_multiplier(blocks)
    assert (charged["noise_multiplier"] < s.mechanism.noise_multiplier) == (
        s.mechanism.clip == "per-block"
    )


def core_outside_the_clip(gradients, mechanism, **options):
    """The norm of everything but the cores: they ride along."""
    blocks = of("core").frame.blocks
    rest = torch.cat(
        [g for g, b in zip(gradients, blocks, strict=True) if b.part != "core"], dim=1
    ).nan_to_num()
    factors = clip_factors(rest.norm(dim=1), mechanism.clip_norm, rest.dtype, 0)
    return torch.cat([factors @ g.nan_to_num() for g in gradients])


def clipped_before_it_is_scaled(gradients, mechanism, **options):
    """The norm that cores of orthonormal carriers would have."""
    s = of("core")
    scales = {
        c.name: torch.outer(c.L.norm(dim=0), c.R.norm(dim=1))
        for c in s.frame.coordinates
        if c.carried
    }
    own = [
        g / scales[b.parameter].flatten() if b.part == "core" else g
        for g, b in zip(gradients, s.frame.blocks, strict=True)
    ]
    joint = torch.cat(own, dim=1).nan_to_num()
    factors = clip_factors(joint.norm(dim=1), mechanism.clip_norm, joint.dtype, 0)
    return torch.cat([factors @ g.nan_to_num() for g in gradients])


@pytest.mark.parametrize("plant", [core_outside_the_clip, clipped_before_it_is_scaled])
def test_a_core_that_is_not_clipped_jointly_is_caught(plant, monkeypatch):
    s = of("core")
    monkeypatch.setattr(CLIENT, "clipped_sum", plant)
    monkeypatch.setattr(CLIENT, "allows_ghost_clipping", lambda frame: False)
    assert sensitivity_defects(s) != []


def test_noise_on_another_mask_than_the_values_is_caught(monkeypatch):
    """Half of each block without noise, as if another mask had been drawn for it."""
    s = of("core, own mask")

    def planted(total, mechanism, noise):
        return torch.where(
            torch.arange(len(total)) % 2 == 0, add_noise(total, mechanism, noise), total
        )

    monkeypatch.setattr(CLIENT, "add_noise", planted)
    assert noise_defects(s, LEAST_DRAWS // 8) != []


def test_no_step_on_private_data_changes_the_carriers_of_a_probe():
    """The next frame is the same whatever the data are; negative control: it is another one for
    other weights.
    """
    s = of("probe")
    first = s.state.frame(1, updates=0).digest
    for seed in (0, 1):
        s.step(data_set(seed))
        assert s.state.frame(1, updates=0).digest == first
    weight = s.state.model.get_parameter("0.weight").data
    weight += 1
    assert s.state.frame(1, updates=0).digest != first
    weight -= 1


def global_torch(public):
    return {
        name: (torch.randn(m, r), torch.randn(s, n))
        for name, (m, r, s, n) in public.carried.items()
    }


def global_numpy(block, public):
    return torch.from_numpy(np.random.rand(*block.shape) < 0.5).index_fill(
        0, torch.tensor([0]), True
    )


def unseeded(public):
    draw = np.random.default_rng()
    return {name: (L * draw.random(), R) for name, (L, R) in scaled(public).items()}


def own_state(**parts: Any) -> PublicState:
    method = Method(name="own", **parts)
    return PublicState.start(
        small_model(), method, Schedule(rounds=5), seed=0, classifier="classifier"
    )


def core_of(make) -> Carrier:
    return OwnCarriers(make=make, form="core", rank=3)


DRAWS = {
    "global_torch": {"carrier": core_of(global_torch)},
    "unseeded": {"carrier": core_of(unseeded)},
    "global_numpy": {"mask": Mask(kind="own", choose=global_numpy)},
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_function_that_draws_from_elsewhere_is_refused_and_has_another_digest_on_a_client(name):
    server, client = (own_state(**DRAWS[name]) for _ in range(2))
    assert server.frame(1, updates=0).digest != client.frame(1, updates=0).digest
    with pytest.raises(
        ValueError,
        match=rf"test_own_methods.{name} gives other values .* draw from public.generator",
    ):
        server.check_repeatable()
