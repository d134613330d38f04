"""What is filled where nobody chose: the rule's parts, the rate of a head, the device."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedlsg
from fedlsg import strategies
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.earlier_runs.continuity import (
    check_unchanged,
    fingerprint,
    keep_data_digest,
)
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.server import ready
from fedlsg.simulations.settings.automatic import LOADED, device_of, rule_line
from fedlsg.simulations.settings.resolve import build_method, fill
from fedlsg.simulations.settings.settings import from_mapping, values_of
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads.text_sets import DEFAULTS
from tests.simulations.support.own import CLASSES, WIDTH, build, quick, refused, workload
from tests.simulations.support.runs import SMALL

NAME = "rule-test"
RULE = {"optimizer": "adam", "optimizer_options": "betas=0.5 0.99", "layer_rates": "fan-in"}
OLD = {"optimizer": "sgd", "layer_rates": "equal", "ema": 0.0}


def filled(given=(), **made):
    """The settings of a run of a small own workload, by name."""
    workloads.give(NAME, workload(**made))
    return values_of(
        prepare(
            from_mapping({"workload": NAME, "engine": "local", "clients": 2, **dict(given)})
        ).settings
    )


PARTIAL = {
    "nothing": (
        {},
        {"rounds": 40, "sample_rate": 0.5, "learning_rate": 0.06325, "ema": 0.875, **RULE},
    ),
    "epochs": (
        {"epochs": 5},
        {"rounds": 40, "sample_rate": 0.125, "learning_rate": 0.06325, **RULE},
    ),
    "rounds": (
        {"rounds": 80},
        {"rounds": 80, "sample_rate": 0.25, "learning_rate": 0.04472, "ema": 0.9375, **RULE},
    ),
    "sample rate": (
        {"sample_rate": 0.1},
        {"rounds": 200, "sample_rate": 0.1, "learning_rate": 0.02828, **RULE},
    ),
    "batch size": (
        {"batch_size": 3},
        {"rounds": 200, "batch_size": 3, "learning_rate": 0.02828, **RULE},
    ),
    "both": (
        {"rounds": 4, "sample_rate": 0.1},
        {"rounds": 4, "sample_rate": 0.1, "learning_rate": 0.08, **RULE},
    ),
    "some clients a round": (
        {"clients": 8, "clients_per_round": 2},
        {"rounds": 80, "sample_rate": 1.0, **RULE},
    ),
    "local steps": ({"local_steps": 4}, {"rounds": 40, "sample_rate": 0.125, **RULE}),
    "another average": ({"ema": 0.0}, {"rounds": 40, "learning_rate": 0.06325, **RULE, "ema": 0.0}),
    "another optimizer": (
        {"optimizer": "AdamW"},
        {"rounds": 40, "learning_rate": 0.06325, "optimizer": "AdamW"},
    ),
    "a learning rate": (
        {"learning_rate": 0.1},
        {"rounds": 10, "sample_rate": 0.1, "learning_rate": 0.1, **OLD},
    ),
    "SGD": ({"optimizer": "sgd"}, {"rounds": 10, "sample_rate": 0.1, "learning_rate": 0.1, **OLD}),
    "momentum": ({"momentum": 0.9}, {"rounds": 10, "sample_rate": 0.1, "momentum": 0.9, **OLD}),
    "a rate and epochs": (
        {"learning_rate": 0.1, "epochs": 60},
        {"rounds": 60, "sample_rate": 1.0, **OLD},
    ),
    "a rate and rounds": (
        {"learning_rate": 0.1, "rounds": "auto"},
        {"rounds": 40, "sample_rate": 0.5, **OLD},
    ),
    "low rank": (
        {"method": "lsg", "rank": 1},
        {"rounds": 40, "learning_rate": 0.03162, "layer_rates": "equal"},
    ),
}


@pytest.mark.parametrize("case", PARTIAL)
def test_each_setting_can_be_given_alone(case):
    given, expected = PARTIAL[case]
    found = filled({"method": "dpsgd"} | given)
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"epochs": 5, "rounds": 10, "sample_rate": 0.1},
            "epochs=5 chooses rounds, and rounds=10 is given",
        ),
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": 4, "rounds": 3}, "epochs=4 do not fit into rounds=3.* give 4 rounds or more"),
        (
            {"method": "dpsgd", "uplink_budget": 100},
            "uplink_budget=100 needs method=auto: .* is given .'dpsgd'",
        ),
        (
            {"uplink_budget": 10},
            "uplink_budget=10: with codec float32 dense updates of this model have 204 bytes",
        ),
        ({"rank": 2, "topk_rate": 0.5}, "name one with method="),
        ({"sample_rate": "auto"}, "expected a number"),
    ],
)
def test_what_does_not_fit_is_refused(given, why):
    with pytest.raises(ValueError, match=why):
        filled(given)


WIDE = {"model": lambda: nn.Sequential(nn.Linear(WIDTH, 200), nn.Tanh(), nn.Linear(200, CLASSES))}
"""2,403 values: 9,612 bytes, of which ``lsg`` at rank 1 sends 3,688."""


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({"uplink_budget": 9612}, "dpsgd"),
        ({"uplink_budget": 9611}, "lsg"),
        ({"uplink_budget": 4806, "codec": "float16"}, "dpsgd"),
        ({"uplink_budget": 4805, "codec": "float16"}, "lsg"),
        ({"uplink_budget": 2500, "codec": "int8"}, "dpsgd"),
        ({"uplink_budget": 400, "codec": "sign"}, "dpsgd"),
        ({"uplink_budget": 1200, "codec": "noise-floor"}, "dpsgd"),
        ({"uplink_budget": 1200, "codec": "noise-floor", "noise_floor_step": 0.01}, None),
        ({"uplink_budget": 800, "codec": "noise-floor"}, "lsg"),
        ({"uplink_budget": 9612, "trust": "secure"}, "dpsgd"),
    ],
)
def test_the_budget_is_that_of_values_as_the_codec_sends_them(given, method, tmp_path):
    """The size that was planned is not passed, and float32 is the control."""
    nothing = {"method": "auto", "rounds": 2, "noise_multiplier": None, "epsilon": 8.0}
    if method is None:
        with refused("with codec noise-floor dense updates", "a codec of fewer bits a value"):
            quick(tmp_path / "run", **nothing, **WIDE, **given)
        return
    run = quick(tmp_path / "run", **nothing, **WIDE, **given)
    assert run.summary["method"] == method
    sent = max(row["values_bytes"] for row in run.bytes if row["direction"] == "up")
    assert sent <= given["uplink_budget"]


@pytest.mark.parametrize(
    ("given", "method", "rank"),
    [
        ({}, "lsg", 4),
        ({"uplink_budget": 19240}, "dpsgd", None),
        ({"uplink_budget": 1500, "codec": "noise-floor"}, "lsg", 16),
        ({"uplink_budget": 1500, "codec": "noise-floor", "rank": 2}, "lsg", 2),
    ],
)
def test_the_budget_chooses_for_a_workload_with_a_preset_too(given, method, rank):
    """The preset's rank 4 would leave two thirds of 1,500 bytes unused."""
    filled = fill(from_mapping(given), workloads.load("digits"))
    assert (filled.method, filled.parameters.get("rank")) == (method, rank)


def test_a_budget_that_is_too_small_is_told_the_least():
    given = {"uplink_budget": 300, "codec": "noise-floor"}
    with pytest.raises(ValueError, match="give uplink_budget=414, or a codec"):
        fill(from_mapping(given), workloads.load("digits"))
    fill(from_mapping({**given, "uplink_budget": 414}), workloads.load("digits"))


def test_an_update_that_is_longer_than_planned_is_refused(tmp_path, monkeypatch):
    """Where the noise is short, a codec that takes its grid from the noise sends more."""
    given = {"method": "auto", "codec": "noise-floor", "uplink_budget": 1200, **WIDE}
    with refused("in a round on public rows an update of method dpsgd", "longer than their noise"):
        quick(tmp_path / "a", **given, noise_multiplier=0.05)
    quick(tmp_path / "b", **given, noise_multiplier=2.0)  # control
    rehearsed = list[int]()  # control: the largest batch of public rows is more than was planned
    monkeypatch.setattr(ready, "check_budget", lambda _, sent: rehearsed.append(sent))
    quick(tmp_path / "c", **given, noise_multiplier=0.05)
    assert rehearsed[0] > 1200


def test_a_run_with_nothing_but_epsilon_and_clients_learns(tmp_path):
    """Three classes, 60 rows, two clients: guessing is .42, and the old default stayed there."""
    nothing = {
        "method": "auto",
        "rounds": None,
        "sample_rate": None,
        "noise_multiplier": None,
        "epsilon": 50.0,
    }
    run = quick(tmp_path / "run", **nothing)
    assert run.summary["accuracy"] > 0.6
    assert run.summary["method"] == "dpsgd"


@pytest.fixture(scope="module")
def with_head():
    """Digits with the preset of texts, which has a rate for the classifier."""
    return replace(workloads.load("digits"), defaults=DEFAULTS, method_defaults={})


@pytest.mark.parametrize(
    ("settings", "rate", "head"),
    [
        ({"method": "dpsgd", "features": "scattering", "learning_rate": 30.0}, 30.0, None),
        ({"method": "linear-probe", "learning_rate": 30.0}, 30.0, None),
        ({"method": "dp-tl", "sparsity": 0.5, "learning_rate": 30.0}, 30.0, None),
        ({"method": "linear-probe"}, 1e-3, 0.05),
        (
            {"method": "linear-probe", "learning_rate": 30.0, "classifier_learning_rate": 2.0},
            30.0,
            2.0,
        ),
        ({"method": "dpsgd", "learning_rate": 30.0}, 30.0, 0.05),
        ({"method": "lora", "learning_rate": 30.0}, 30.0, 0.05),
    ],
)
def test_a_given_learning_rate_is_that_of_what_is_trained(with_head, settings, rate, head):
    filled = fill(from_mapping(settings), with_head)
    assert filled.parameters["learning_rate"] == rate
    assert filled.parameters.get("classifier_learning_rate") == head


HEAD = {"optimizer": "adam", "layer_rates": "equal", "clip_norm": 1.0}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {},
            {"method": "dpsgd", "rounds": 40, "sample_rate": 1.0, "learning_rate": 0.03162, **HEAD},
        ),
        ({"rounds": 20}, {"rounds": 20, "sample_rate": 1.0, "learning_rate": 0.04472, **HEAD}),
        ({"rounds": 80}, {"rounds": 80, "sample_rate": 0.5, "learning_rate": 0.02236, **HEAD}),
        ({"sample_rate": 0.1}, {"rounds": 400, "sample_rate": 0.1, "learning_rate": 0.01, **HEAD}),
        # as the preset says
        ({"method": "dpsgd", "learning_rate": 0.8}, {"rounds": 100, "momentum": 0.9}),
        ({"method": "dpsgd", "momentum": 0.5}, {"learning_rate": 0.4, "rounds": 100}),
        ({"model": "mlp"}, {"method": "lsg", "learning_rate": 0.8, "rounds": 100, "rank": 4}),
    ],
)
def test_a_linear_head_on_features_has_the_rule_and_no_preset(given, expected, heads):
    filled = values_of(fill(from_mapping({"features": "patches", **given}), heads))
    assert {name: filled.get(name) for name in expected} == expected


def test_a_head_that_passes_the_budget_is_told_how_many_axes_fit(heads):
    given = {"features": "patches", "uplink_budget": 800}
    with pytest.raises(
        ValueError, match=r"has 1,320 bytes with codec float32: give feature_axes=19, or a codec"
    ):
        fill(from_mapping(given), heads)
    options = workloads.Options(
        features="patches", patch_filters=4, patch_size=3, train_rows=20, feature_axes=19
    )
    fits = workloads.load("digits", options=options)
    assert fill(from_mapping({**given, "feature_axes": 19}), fits).method == "dpsgd"


@pytest.fixture(scope="module")
def heads():
    """Digits as features; their preset has rates for a CNN."""
    options = workloads.Options(features="patches", patch_filters=4, patch_size=3, train_rows=20)
    return workloads.load("digits", options=options)


def with_cuda(patch: pytest.MonkeyPatch, there: bool) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: there)


@pytest.mark.parametrize(
    ("wanted", "there", "found"),
    [
        ("auto", True, "cuda"),
        ("auto", False, "cpu"),
        ("cpu", True, "cpu"),
        ("cpu", False, "cpu"),
        ("cuda", True, "cuda"),
    ],
)
def test_auto_is_cuda_where_torch_finds_it(monkeypatch, wanted, there, found):
    with_cuda(monkeypatch, there)
    assert device_of(wanted) == found


def test_a_run_that_is_resumed_on_another_device_says_so(tmp_path, monkeypatch):
    with_cuda(monkeypatch, False)
    plan, run = make_plan(from_mapping(SMALL)), RunDir(tmp_path)
    keep_data_digest(plan, run)
    saved = fingerprint(plan)
    assert check_unchanged(saved, plan, run) == []
    saved["settings"]["device"] = "cuda"
    assert check_unchanged(saved, plan, run) == ["device = cpu (was cuda)"]


def seeds_torch():
    torch.manual_seed(0)
    return build()


def has_a_generator():
    model, generator = build(), torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return model


def seeds_numpy():
    draws, model = np.random.default_rng(0), build()
    for parameter in model.parameters():
        values = draws.standard_normal(tuple(parameter.shape)).astype("float32")
        parameter.data.copy_(torch.from_numpy(values))
    return model


WEIGHTS = {name: torch.randn(W.shape) for name, W in build().state_dict().items()}


def loads():
    model = build()
    model.load_state_dict(WEIGHTS)
    return model


@pytest.mark.parametrize("model", [build, seeds_torch, has_a_generator, seeds_numpy])
def test_a_model_that_seeds_itself_is_not_taken_as_pretrained(model):
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    settings = filled(model=model)
    assert settings["learning_rate"] == filled()["learning_rate"]
    assert LOADED not in settings["auto"].split()
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert before[0].equal(after[0])
    assert before[1:] == after[1:]


def test_loaded_weights_have_a_tenth_of_the_rate_and_the_run_says_so():
    settings = filled(model=loads)
    assert settings["learning_rate"] == pytest.approx(0.2 / 40**0.5 / 10, rel=1e-3)
    assert LOADED in settings["auto"].split()
    words = rule_line(from_mapping({"workload": NAME, **settings}))
    assert "taken as pretrained" in words


def own_recipe(*, rank: int = 32, mechanism, server):
    """Random carriers, of a user."""
    carrier = strategies.recipe("rgp-random", rank=rank).carrier
    return fedlsg.Method(name="mine", carrier=carrier, mechanism=mechanism, server=server)


def test_a_preset_was_not_made_for_a_recipe_of_a_users_own():
    digits, name = workloads.load("digits"), "recipe-with-a-rank-of-its-own"
    strategies.give(name, own_recipe)
    try:
        theirs = build_method(fill(from_mapping({"method": name}), digits)).carrier.rank
        given = build_method(fill(from_mapping({"method": name, "rank": 8}), digits)).carrier.rank
        fedlsgs = build_method(fill(from_mapping({"method": "rgp-random"}), digits)).carrier.rank
        of_their_preset = filled({"method": name}, settings={"rank": 2, "learning_rate": 0.5})[
            "rank"
        ]
    finally:
        strategies.forget(name)
    assert (theirs, given, fedlsgs, of_their_preset) == (32, 8, 4, 2)
