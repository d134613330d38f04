"""The table of what is carried, dense and frozen, against the frame that a step really uses."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedlsg.carriers import Lora, LowRank, carried_parameters, prepare_model, step_carrier
from fedlsg.carriers.layout import LayerRow, group_layers, layer_table, totals
from fedlsg.carriers.lora import frozen_bases
from fedlsg.gradients.supported import trainable
from fedlsg.masks import Mask
from fedlsg.method import Method, Schedule, make_frame


def make_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("embed", nn.Conv2d(3, 8, 3))
    model.add_module(
        "layers", nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 3), nn.GroupNorm(1, 8)) for _ in range(3)))
    )
    model.add_module("hidden", nn.Linear(32, 24))
    model.add_module("classifier", nn.Linear(24, 20))
    model.embed.requires_grad_(False)
    return model


def test_the_table_by_hand():
    rows = {row.name: row for row in layer_table(make_model(), LowRank(rank=2), "classifier")}
    assert rows["embed.weight"] == LayerRow(name="embed.weight", shape=(8, 3, 3, 3), travel="frozen", values=0)
    assert rows["layers.0.0.weight"].values == 2 * (8 + 72)
    assert rows["hidden.weight"] == LayerRow(name="hidden.weight", shape=(24, 32), travel="carried", values=2 * 56)
    assert (rows["hidden.bias"].travel, rows["hidden.bias"].values) == ("dense", 24)
    assert (rows["classifier.weight"].travel, rows["classifier.weight"].values) == ("dense", 480)
    assert len(rows) == len(list(make_model().parameters()))


@given(rank=st.integers(1, 4), kind=st.sampled_from(["dense", "low-rank", "low-rank-change", "random", "lora"]))
def test_the_values_are_those_of_the_frame(rank, kind):
    carrier = Lora(rank=rank) if kind == "lora" else step_carrier(kind, rank)
    model = prepare_model(make_model(), carrier, classifier="classifier", seed=0)
    rows = layer_table(model, carrier, "classifier")
    carried = carried_parameters(model, carrier, classifier="classifier")
    weights = {name: p.detach() for name, p in trainable(model).items()}
    initial = {name: weights[name] for name in carried}
    frame = make_frame(
        Method(name="made", carrier=carrier), weights, initial, carried=carried, round=1, updates=0,
        schedule=Schedule(rounds=1), seed=0,
    )  # fmt: skip
    assert sum(row.count * row.values for row in rows) == frame.size
    mask = Mask() if kind == "dense" else Mask(kind="units", sparsity=0.5)
    kept = make_frame(
        Method(name="made", carrier=carrier, mask=mask), weights, initial | frozen_bases(model), carried=carried,
        round=1, updates=0, schedule=Schedule(rounds=1), seed=0,
    )  # fmt: skip
    after = layer_table(model, carrier, "classifier", blocks=kept.blocks)
    assert sum(row.sent for row in after) == kept.kept
    assert (kept.kept < frame.size) == (kind != "dense")
    assert [replace(row, sent=None) for row in after] == rows
    assert sum(row.sent for row in group_layers(after)) == kept.kept
    assert sum(entries for _, entries, _ in totals(rows).values()) == sum(p.numel() for p in make_model().parameters())
    assert [row.name for row in rows] == [name for name, _ in make_model().named_parameters()]
