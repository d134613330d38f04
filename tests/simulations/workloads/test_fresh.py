"""A run trains a module that nobody else holds, whatever its builder gives."""

import functools

import pytest
import torch
from torch import nn

from fedlsg.simulations.workloads.base.initial_model import build_model, fresh
from tests.simulations.support.own import build, load, quick, workload


class Stateful(nn.Module):
    """Parameters, a buffer, a generator, a counter and a frozen part."""

    def __init__(self):
        super().__init__()
        self.layer, self.head, self.calls = nn.Linear(8, 4), nn.Linear(4, 3), 0
        self.layer.requires_grad_(False)
        self.register_buffer("mean", torch.zeros(8))
        self.draws = torch.Generator()

    def forward(self, x):
        self.calls += 1
        return self.head(torch.tanh(self.layer(x - self.mean)))


def storages(model: nn.Module) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}


def builders() -> dict:
    net, backbone, lazy = build(), nn.Linear(8, 4), functools.cache(build)
    return {
        "one module": lambda: net,
        "a cache": lazy,
        "a shared part": lambda: nn.Sequential(backbone, nn.Linear(4, 3)),
        "with state": functools.cache(Stateful),
        "new ones": build,
    }


@pytest.mark.parametrize("name", builders())
def test_two_builds_share_nothing(name):
    loaded = load(workload(model=builders()[name]))
    kept = loaded.models["own"]()
    built = [build_model(loaded, seed=3) for _ in range(3)]
    memory = [storages(model) for model in (kept, *built)]
    assert len(set.union(*memory)) == sum(map(len, memory))
    assert all(
        torch.equal(a, b) for a, b in zip(built[0].parameters(), built[1].parameters(), strict=True)
    )


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", builders())
def test_equal_runs_are_equal_and_leave_the_builders_module_alone(name, tmp_path):
    make = builders()[name]
    kept = make()
    before = {key: value.clone() for key, value in kept.state_dict().items()}
    losses = [
        quick(tmp_path / str(k), model=make, learning_rate=2.0).summary["loss"] for k in range(2)
    ]
    assert losses[0] == losses[1]
    assert all(torch.equal(before[key], value) for key, value in kept.state_dict().items())
    assert getattr(kept, "calls", 0) == 0


class Closed(nn.Module):
    """Its forward pass is a function that holds the module itself: a copy would call the
    original.
    """

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.how = lambda x: self.layer(x)

    def forward(self, x):
        return self.how(x)


def old_weight_norm() -> nn.Module:
    """Cannot be copied: its weight is no leaf."""
    return nn.utils.weight_norm(nn.Linear(8, 3))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`")
@pytest.mark.parametrize("make", [Closed, old_weight_norm])
def test_what_cannot_be_copied_is_built_anew_or_refused(make):
    made = []
    assert fresh(lambda: made.append(make()) or made[-1]) is made[1]
    kept = make()
    with pytest.raises(
        ValueError, match="two calls of its function give the same module, or share weights"
    ):
        fresh(lambda: kept)
