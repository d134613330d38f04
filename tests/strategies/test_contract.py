"""The contract of a recipe, over every file of strategies/ and every variant that the papers
report.

A new recipe is found by its name and needs no entry here. That each check catches the mistake that
it is there for is shown in test_contract_controls.py.
"""

from collections.abc import Callable

import pytest
import torch

from fedlsg import strategies
from fedlsg.carriers.powersgd import decode, encode
from tests.strategies.contract import (
    FEW_DRAWS,
    LEAST_DRAWS,
    MODELS,
    Subject,
    carrier_defects,
    data_set,
    lift_defects,
    noise_defects,
    random_values,
    received,
    sensitivity_defects,
)
from tests.strategies.contract_cases import CASES, RECIPES, has_own_step, of, repeats

BOTH = [(case, model) for model in MODELS for case in CASES]


def slow_where(repeated: Callable[[str, str], bool]) -> pytest.MarkDecorator:
    """All cases on all models; those that repeat what another one shows run with the slow tests."""
    pairs = [
        pytest.param(*pair, marks=pytest.mark.slow) if repeated(*pair) else pair for pair in BOTH
    ]
    return pytest.mark.parametrize(("case", "model"), pairs)


def shown_on_the_mlp(case: str, model: str) -> bool:
    """A variant of the frame is no other on a convolution: recipes and variants of the step run on
    both.
    """
    return repeats(case) or (model == "cnn" and case not in RECIPES and not has_own_step(case))


def shown_by_its_recipe(case: str, model: str) -> bool:
    """Noise sees the step's settings and how many values are kept, nothing else of a frame or a
    model.
    """
    return model == "cnn" or (case not in RECIPES and not has_own_step(case))


def test_every_recipe_has_the_contract():
    assert set(RECIPES) == set(strategies.names()) <= set(CASES)
    assert {case.name for case in CASES.values()} == set(strategies.names())


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_keeps_the_contract(recipe):
    """All checks on the plain case of each file, which no choice of cases thins out: on one data
    set, with few draws.
    """
    s = of(recipe)
    assert sensitivity_defects(s, range(1)) == []
    assert noise_defects(s, FEW_DRAWS) == []
    assert lift_defects(s) == []
    assert carrier_defects(s) == []
    check_frames(s)
    check_values(s)


@pytest.mark.thinned(5)
@slow_where(shown_on_the_mlp)
def test_one_example_moves_the_clipped_sum_by_the_claimed_sensitivity_at_most(case, model):
    assert sensitivity_defects(of(case, model), range(3 if model == "mlp" else 1)) == []


@pytest.mark.thinned(24)
@slow_where(shown_on_the_mlp)
def test_server_and_client_derive_one_frame(case, model):
    check_frames(of(case, model))


def check_frames(s: Subject) -> None:
    """Server and client derive one frame."""
    assert s.frame.digest == s.derived.digest
    assert torch.equal(s.frame.indices, s.derived.indices)
    assert [b.weight for b in s.frame.blocks] == [b.weight for b in s.derived.blocks]


@pytest.mark.thinned(24)
@slow_where(shown_on_the_mlp)
def test_carriers_are_orthonormal_where_their_form_needs_it(case, model):
    assert carrier_defects(of(case, model)) == []


@pytest.mark.thinned(5)
@slow_where(shown_by_its_recipe)
def test_noise_has_its_variance_in_every_block(case, model):
    """With as many draws as the controls need to find less noise."""
    assert noise_defects(of(case, model), LEAST_DRAWS // 4) == []


@pytest.mark.thinned(40)
@slow_where(shown_on_the_mlp)
def test_gradients_lie_on_the_kept_coordinates_and_on_nothing_else(case, model):
    assert lift_defects(of(case, model)) == []


@pytest.mark.thinned(24)
@slow_where(shown_on_the_mlp)
def test_the_server_gets_the_very_values_that_were_sent(case, model):
    """Bit for bit in float32; where factors are sent, the product of the factors of what was to be
    sent.
    """
    check_values(of(case, model))


def check_values(s: Subject) -> None:
    """What the server decodes is what the client sent."""
    values = s.step(data_set(1, s.multiplicity)).nan_to_num()
    values = values / max(1.0, float(values.norm()) / s.mechanism.clip_norm)
    wanted = decode(encode(values, s.derived).float(), s.frame)
    assert torch.equal(received(s, values, "derived"), wanted)
    assert torch.equal(received(s, values, "explicit"), wanted)
    if s.frame.sent is None:
        assert torch.equal(wanted, values.float())


@pytest.mark.parametrize(
    "case", [name for name, case in RECIPES.items() if case.method.carrier.kind == "factors"]
)
def test_factors_stand_for_a_projection_of_what_was_sent(case):
    """By hand: P the orthonormal columns of G R^T, and P P^T G arrives; what is dense arrives as it
    was.
    """
    s = of(case, "cnn")
    values = random_values(s.derived, 0)
    sent, got = s.derived.split(values), s.frame.split(decode(encode(values, s.derived), s.frame))
    carried = 0
    for c, G, arrived in zip(s.frame.wire.coordinates, sent, got, strict=True):
        if c.R is not None:
            P = torch.linalg.svd(G.flatten(1) @ c.R.mT, full_matrices=False).U
            G, carried = (P @ P.mT @ G.flatten(1)).reshape(G.shape), carried + 1
        torch.testing.assert_close(arrived, G, rtol=1e-9, atol=1e-9)
    assert carried > 0
