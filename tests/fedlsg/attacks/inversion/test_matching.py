import inspect
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fedlsg.attacks.inversion.matching import ATTACKS, Matching, match
from fedlsg.attacks.inversion.prior import Prior, prior_from
from fedlsg.attacks.metrics import best_matching, psnr, squared_errors
from fedlsg.attacks.observation import DoesNotApply, Knowledge, Observation
from fedlsg.attacks.replay import objective
from fedlsg.training.client import LocalTraining
from tests.fedlsg.support.observed import cross_entropy, digits, method, mlp, observe

PRIOR = Prior(shape=(1, 8, 8), low=0.0, high=1.0)
METHODS = {"dpsgd": {}, "rgp": {}, "lsg": {"sparsity": 0.5}, "rs": {"sparsity": 0.5}}
DLG = replace(ATTACKS["dlg"], restarts=2)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def attacked(seen: Observation, labels: Tensor | None, examples: int | None, attack: Matching = DLG) -> Tensor:
    """The guess of an attack that knows nothing else: the truth is not in reach of this function."""
    known = Knowledge(labels=labels, examples=examples)
    return match(seen, known, PRIOR, attack=attack, generator=generator())


def decibels(guess: Tensor, truth: Tensor) -> Tensor:
    guesses, truths = best_matching(squared_errors(guess, truth))
    return psnr(guess[guesses], truth[truths], data_range=1.0)


@pytest.mark.parametrize("name", METHODS)
def test_noise_free_digits_come_back(name):
    found = []
    for start in range(5):
        x, y = digits(1, start)
        seen = observe(method(name, **METHODS[name]), mlp(), x, y)
        found.append(decibels(attacked(seen, y, 1).inputs, x).item())
    assert sum(value > 40 for value in found) >= 4, found


@pytest.mark.parametrize("name", ["rgp", "lsg", "rs"])
def test_adaptive_beats_naive_at_the_same_budget(name):
    """Without a clip, which the naive adversary does not know of: what is left is the projection and the mask."""
    x, y = digits(1, 3)
    seen = observe(method(name, mechanism="none", **METHODS[name]), mlp(), x, y)
    adaptive, naive = (attacked(seen, y, 1, replace(DLG, compare=c)) for c in ("adaptive", "naive"))
    assert decibels(adaptive.inputs, x).item() > decibels(naive.inputs, x).item() + 20


@pytest.mark.parametrize("steps", [1, 2])
def test_a_batch_comes_back_in_some_order_also_after_several_steps(steps):
    x, y = digits(2, 5)
    local = LocalTraining(steps=steps, learning_rate=0.5, momentum=0.5, expected_batch=2.0)
    seen = observe(method("lsg", sparsity=0.5), mlp(), x, y, local=local)
    assert decibels(attacked(seen, y.flip(0), 2).inputs, x).min() > 40


def test_one_gradient_does_not_explain_several_steps():
    """The negative control of the surrogate model extension: an adversary that replays one step looks elsewhere."""
    x, y = digits(1, 5)
    local = LocalTraining(steps=3, learning_rate=8.0, expected_batch=1.0)
    seen = observe(method("dpsgd", clip_norm=1.0), mlp(), x, y, local=local)
    wrong = replace(seen, local=local.single())
    assert objective(seen, distance="cosine")(x, y) < 1e-20
    assert objective(wrong, distance="cosine")(x, y) > 1e-4


def test_labels_that_nobody_grants_are_found_with_the_image():
    x, y = digits(1, 2)
    seen = observe(method("lsg", sparsity=0.5), mlp(), x, y)
    guess = attacked(seen, None, None)
    assert guess.labels.tolist() == y.tolist()
    assert decibels(guess.inputs, x).item() > 40
    assert "soft" in guess.note
    assert "expected batch" in guess.note


def test_inverting_gradients_sees_a_digit():
    x, y = digits(1, 1)
    seen = observe(method("lsg", sparsity=0.5), mlp(), x, y)
    quick = replace(ATTACKS["inverting-gradients"], restarts=1, evaluations=120)
    assert decibels(attacked(seen, y, 1, quick).inputs, x).item() > 20
    plain = replace(quick, optimizer="adam", total_variation=0.0)
    assert decibels(attacked(seen, y, 1, plain).inputs, x).item() > 20


@pytest.mark.parametrize(("sigma", "low", "high"), [(0.002, 20.0, 60.0), (2.0, -1.0, 1.5)])
def test_map_gains_where_noise_is_small_and_nothing_where_it_is_large(sigma, low, high):
    public, labels = digits(500, 500)
    prior = prior_from(public, labels, low=0.0, high=1.0)
    gains = []
    for start in range(2):
        x, y = digits(1, start)
        noisy = method("rgp", mechanism="dp", noise_multiplier=sigma, clip_norm=0.5)
        seen = observe(noisy, mlp(), x, y, seed=start)
        guess = match(
            seen,
            Knowledge(labels=y, examples=1),
            prior,
            attack=replace(ATTACKS["map"], evaluations=80, restarts=1),
            generator=generator(),
        )
        gains.append((decibels(guess.inputs, x) - decibels(prior.expected(1, y), x)).item())
    assert low < sum(gains) / 2 < high, gains


def test_map_under_heavy_noise_is_the_blind_guess():
    x, y = digits(1)
    seen = observe(method("rgp", mechanism="dp", noise_multiplier=1e4, clip_norm=0.5), mlp(), x, y)
    guess = attacked(seen, y, 1, ATTACKS["map"])
    assert (guess.inputs - 0.5).abs().max() < 1e-2


def test_restarts_are_chosen_by_the_objective():
    x, y = digits(2, 3)
    seen = observe(method("lsg", sparsity=0.5), mlp(), x, y)
    few = replace(DLG, evaluations=15, tolerance=0.0)
    objectives = [attacked(seen, y, 2, replace(few, restarts=n)).objective for n in (1, 2, 4)]
    assert all(later <= sooner for sooner, later in pairwise(objectives))
    guess = attacked(seen, y, 2, replace(few, restarts=4))
    assert objective(seen, distance="euclidean")(guess.inputs, y).item() == pytest.approx(guess.objective)


def test_the_same_generator_gives_the_same_guess():
    x, y = digits(1)
    seen = observe(method("rs", sparsity=0.5), mlp(), x, y)
    few = replace(DLG, evaluations=10)
    one, two = (attacked(seen, y, 1, few).inputs for _ in range(2))
    other = match(seen, Knowledge(labels=y, examples=1), PRIOR, attack=few, generator=torch.Generator().manual_seed(9))
    assert torch.equal(one, two)
    assert not torch.equal(one, other.inputs)


def test_values_stay_in_the_range_and_the_model_as_it_was():
    x, y = digits(1)
    seen = observe(method("lsg", sparsity=0.5), mlp(), x, y, dtype=torch.float32)
    before = {name: p.clone() for name, p in seen.model.named_parameters()}
    low, high = 0.2, 0.7
    prior = Prior(shape=(1, 8, 8), low=low, high=high)
    for attack in (replace(DLG, evaluations=20), replace(ATTACKS["inverting-gradients"], evaluations=20, restarts=1)):
        known = Knowledge(labels=y, examples=1)
        guess = match(seen, known, prior, attack=attack, generator=generator())
        assert guess.inputs.dtype == torch.float32
        assert guess.inputs.min() >= low - 1e-6
        assert guess.inputs.max() <= high + 1e-6
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in seen.model.named_parameters())


def test_float32_payloads_are_enough():
    x, y = digits(1, 4)
    seen = observe(method("lsg", sparsity=0.5), mlp(), x, y, dtype=torch.float32).in_float64()
    assert decibels(attacked(seen, y, 1, replace(DLG, evaluations=100, restarts=1)).inputs, x).item() > 40


def test_progress_rises_to_the_end_and_time_is_kept():
    x, y = digits(2)
    seen = observe(method("rgp"), mlp(), x, y)
    told: list[tuple[int, int, str]] = []
    known = Knowledge(labels=y, examples=2)
    slow = Matching(optimizer="signed-adam", evaluations=100_000, restarts=3, seconds=0.3)
    match(seen, known, PRIOR, attack=slow, generator=generator(), progress=lambda *report: told.append(report))
    done = [report[0] for report in told]
    assert done == sorted(done)
    assert told[-1][:2] == (300_000, 300_000)
    assert all(report[0] % 100_000 < 5_000 for report in told)  # the restarts share the time
    assert told[0][2].startswith("restart 1 of 3, objective ")


def test_a_loss_without_soft_labels_is_refused_only_where_they_are_needed():
    x, y = digits(1)

    def hard(outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.is_floating_point():
            raise TypeError("class numbers only")
        return cross_entropy(outputs, targets)

    seen = replace(observe(method("rgp"), mlp(), x, y), loss_fn=hard)
    with pytest.raises(DoesNotApply, match="soft labels"):
        attacked(seen, None, 1)
    assert attacked(seen, y, 1, replace(DLG, evaluations=3)).labels.tolist() == y.tolist()


@pytest.mark.parametrize(
    "wrong", [{"evaluations": 0}, {"restarts": 0}, {"step_size": 0.0}, {"seconds": 0.0}, {"optimizer": "sgd"},
              {"total_variation": -1.0}, {"tolerance": -1.0}]
)  # fmt: skip
def test_what_settings_refuse(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Matching(**wrong)


def test_no_parameter_could_carry_the_truth():
    parameters = inspect.signature(match).parameters
    assert set(parameters) == {"observation", "knowledge", "prior", "attack", "generator", "progress"}
