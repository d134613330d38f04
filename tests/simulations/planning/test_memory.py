"""The microbatch follows from memory: what an example of each method takes, and what is public."""

from dataclasses import replace

import pytest
import torch

from fedlsg.simulations.planning.base import memory
from fedlsg.simulations.planning.base.memory import (
    DEFAULT_MICROBATCH,
    memory_of,
    microbatch_of,
    with_microbatch,
)
from tests.simulations.support.runs import plan_at

SMALL = {"microbatch_size": None}


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    root = tmp_path_factory.mktemp("plans")
    own = {"lsg": {}, "dpsgd": {"rank": None, "sparsity": None}}
    return {
        name: plan_at(root / name, method=name, **more, **SMALL)[0] for name, more in own.items()
    }


def test_small_models_have_the_microbatch_of_before(plans):
    assert {plan.settings.microbatch_size for plan in plans.values()} == {DEFAULT_MICROBATCH}
    assert {plan.local.microbatch_size for plan in plans.values()} == {DEFAULT_MICROBATCH}


def test_a_dense_method_forms_gradients_for_each_example(plans):
    low, dense = (memory_of(plans[name]) for name in ("lsg", "dpsgd"))
    weights = sum(p.numel() for p in plans["dpsgd"].initial.model().parameters())
    assert dense.gradients >= 4 * weights
    assert low.gradients < dense.gradients
    assert low.activations == dense.activations > 0


@pytest.mark.parametrize("method", ["lora", "ffa-lora", "fed-sb", "linear-probe", "gep"])
def test_methods_that_change_the_model_have_an_estimate(method, tmp_path):
    """Without one they would silently take the largest microbatch; the model is changed once."""
    plan, _ = plan_at(tmp_path, method=method, rank=None, sparsity=None, **SMALL)
    assert memory_of(plan).each > 0


def test_less_memory_gives_a_smaller_microbatch_and_one_example_at_least(plans, monkeypatch):
    found = memory_of(plans["dpsgd"])
    for room, expected in ((0, 1), (20.5, 16), (1e6, DEFAULT_MICROBATCH)):
        budget = found.fixed + int(room * found.each)
        monkeypatch.setattr(memory, "memory_limit", lambda base, budget=budget: budget)
        assert microbatch_of(plans["dpsgd"]) == expected


def test_a_given_size_stays(plans):
    base = plans["lsg"]
    assert with_microbatch(base) is base
    given = replace(base, settings=replace(base.settings, microbatch_size=None))
    assert with_microbatch(given).settings.microbatch_size == DEFAULT_MICROBATCH


def test_activations_of_a_row_do_not_depend_on_its_values(plans):
    base = plans["lsg"]
    model, (inputs, _) = base.initial.model(), base.workload.test.batch(torch.arange(1))
    assert memory._saved_bytes(model, inputs) == memory._saved_bytes(model, inputs * 0 + 7)
    two = base.workload.test.batch(torch.arange(2))[0]
    assert memory._saved_bytes(model, two) > memory._saved_bytes(model, inputs)


def test_every_engine_takes_the_same_on_processors(plans):
    budgets = {
        memory.memory_limit(replace(base, settings=replace(base.settings, engine=engine)))
        for base in plans.values()
        for engine in ("local", "ray", "auto")
    }
    assert len(budgets) == 1
