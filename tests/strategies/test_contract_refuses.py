"""What every recipe has to refuse, naming the setting: no noise, no clip, shares outside [0, 1),
mixed examples.
"""

import math
from typing import Any

import pytest
import torch
from torch import nn

from fedlsg.carriers import prepare_model
from fedlsg.state.public_state import PublicState
from fedlsg.state.server_state import ServerState
from fedlsg.strategies import default_mechanism, own_settings, recipe
from tests.strategies.contract import FEATURES, PROBES, SCHEDULE, SMALL, WIDTH, mlp
from tests.strategies.contract_cases import RECIPES

SHARES = (1.0, -0.1, 1.5, math.nan, math.inf)
POSITIVE = (0.0, -1.0, math.nan, math.inf)
WRONG: dict[str, tuple[Any, ...]] = {
    "noise_multiplier": POSITIVE,
    "clip_norm": POSITIVE,
    "norms_clip_weight": POSITIVE,
    "classifier_clip_weight": POSITIVE,
    "learning_rate": POSITIVE,
    "norms_learning_rate": (-0.1, math.nan, math.inf),
    "classifier_learning_rate": (-0.1, math.nan, math.inf),
    "momentum": (-0.1, 1.0, math.nan),
    "weight_decay": (-0.1, math.nan, math.inf),
    "estimator": ("eq4",),
    "optimizer": ("lamb",),
    "schedule": ("triangle",),
    "clip": ("blockwise",),
    "mechanism": ("laplace",),
    "sparsify_update": SHARES,
    "ema": SHARES,
    "rank": (0, -3),
    "out_rank": (0,),
    "refresh_rounds": (0,),
    "probes": (0,),
    "power": (-0.1, 1.5, math.nan),
    "damping": POSITIVE,
    "power_steps": (0,),
    "warmup": (0,),
    "sparsity": SHARES,
    "sparsity_from": SHARES,
    "drop_rate": SHARES,
    "topk_rate": (0.0, -0.5, 1.5, math.nan),
    "prune_rate": SHARES,
    "prune_epsilon_share": (0.0, *SHARES),
    "prune_clip_norm": POSITIVE,
    "lora_alpha": POSITIVE,
    "direction": ("left",),
    "importance": ("gradients",),
    "redraw": ("never",),
    "ranking": ("weights",),
    "carrier": ("sparse",),
    "prune": ("snip",),
    "drop": ("all",),
}
COMMON = {key for key in WRONG if all(key not in own_settings(name) for name in RECIPES)}
EMBEDDING = [name for name in RECIPES if recipe(name).carrier.form.embeds]
"""Recipes that embed every parameter, however few values it has, within a joint clip alone."""
SILENT = [name for name in RECIPES if default_mechanism(name) == "none"]
NEEDED = {("sgd", "clip_norm"): {"mechanism": "clip-only"}, ("rs", "rank"): {"carrier": "low-rank"}}
"""What makes a setting count that a recipe does not look at by default."""

UNREAD = {name: ("noise_multiplier", *(() if name == "sgd" else ("clip_norm",))) for name in SILENT}
"""What a recipe without noise never looks at; with error feedback neither the clip."""


def message(name: str, setting: str, value: Any) -> str:
    """What a recipe says to a value; empty where it takes it."""
    try:
        recipe(name, **NEEDED.get((name, setting), {}), **{setting: value})
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", RECIPES)
def test_wrong_values_are_refused_by_name(name):
    looked_at = (WRONG.keys() & (COMMON | own_settings(name))) - set(UNREAD.get(name, ()))
    taken = [
        (key, v)
        for key in sorted(looked_at)
        for v in WRONG[key]
        if key not in message(name, key, v)
    ]
    assert len(looked_at) > 10
    assert taken == []


def start(name: str, model: nn.Module, **settings: Any) -> ServerState:
    """The server of a recipe at its small settings, as a run makes it: first the model, made ready
    for the method.
    """
    defaults = {key: value for key, value in SMALL.items() if key in own_settings(name)}
    method = recipe(name, **(defaults | settings))
    prepare_model(model, method.carrier, classifier="classifier", seed=0)
    probe = torch.zeros(1, FEATURES)
    return ServerState(
        PublicState.start(model, method, SCHEDULE, seed=0, classifier="classifier", source=PROBES),
        divisor=1.0,
        pruning_inputs=probe,
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_model_that_mixes_examples_is_refused(name):
    for affine in (True, False):
        mixing = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.BatchNorm1d(WIDTH, affine=affine))
        mixing.add_module("classifier", nn.Linear(WIDTH, WIDTH))
        with pytest.raises(ValueError, match="BatchNorm1d"):
            start(name, mixing)
    start(name, mlp())


@pytest.mark.parametrize(
    "name", [name for name in RECIPES if "rank" in own_settings(name) and name not in EMBEDDING]
)
def test_a_rank_that_carries_no_layer_is_refused(name):
    """LoRA finds nothing to adapt where low-rank carriers find nothing to carry."""
    needed = NEEDED.get((name, "rank"), {})
    with pytest.raises(
        ValueError, match=r"rank=40.* carries no layer.*give rank=\d+, which carries"
    ):
        start(name, mlp(), rank=40, **needed)
    start(name, mlp(), rank=2, **needed)
