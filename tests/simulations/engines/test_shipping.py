"""Own code and data on their way to workers of Ray that never imported them."""

import importlib
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedlsg
from fedlsg.simulations.engines.cluster import Cluster
from fedlsg.simulations.engines.shipping import Shipment, put
from tests.simulations.support.own import CLASSES, quick


def weights(run):
    return torch.cat([w.flatten() for w in run.model.state_dict().values()])


def in_main(code: str, name: str):
    """A function of a notebook or script: workers cannot import its module."""
    space = {"__name__": "__main__", "nn": nn, "fedlsg": fedlsg, "functional": functional}
    exec(code, space)
    return space[name]


class Net(nn.Module):
    """A class of this file."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, CLASSES))

    def forward(self, x):
        return self.layers(x)


METHOD = """
def f(*, width: int = 1, mechanism, server):
    "Mine."
    carrier = fedlsg.recipe("rgp-random", rank=width).carrier
    return fedlsg.Method(name="f", carrier=carrier, mechanism=mechanism, server=server)
"""
LOSS = """
class Loss(nn.Module):
    def forward(self, o, t):
        return functional.nll_loss(o.log_softmax(1), t, reduction="none")
"""
WAYS = {
    "lambdas": {
        "model": lambda: Net(4),
        "loss": lambda o, t: functional.cross_entropy(o, t, reduction="none"),
    },
    "partial and dict": {
        "model": partial(Net, 4),
        "transform": lambda x: {"x": x / 2},
        "metrics": {"m": fedlsg.Lower(lambda o, t: o.mean())},
    },
    "a script": {
        "model": in_main("def f(): return nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 3))", "f"),
        "method": in_main(METHOD, "f"),
        "width": 1,
        "loss": in_main(LOSS, "Loss")(),
    },
}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("way", WAYS)
def test_ray_gives_the_weights_of_local(way, tmp_path, on_ray: Cluster):
    width = 4
    changes = dict(WAYS[way])
    if way == "lambdas":
        changes["model"] = lambda: Net(width)  # a closure, too
    found = [
        quick(tmp_path / engine, rounds=2, engine=engine, **changes) for engine in ("local", "ray")
    ]
    assert torch.equal(weights(found[0]), weights(found[1]))
    assert found[1].summary["rounds"] == 2


LOCKED = """
import threading
LOCK = threading.Lock()
def f(*, mechanism, server):
    with LOCK:
        return None
"""


@pytest.mark.parametrize("installed", [False, True])
def test_an_error_names_the_part_that_cannot_be_pickled(installed, tmp_path, monkeypatch):
    import ray
    from ray import cloudpickle

    folder = tmp_path / "dist-packages" if installed else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "locked_code.py").write_text(LOCKED)
    monkeypatch.syspath_prepend(folder)
    locked = importlib.import_module("locked_code")
    monkeypatch.setattr(ray, "put", cloudpickle.dumps)
    good = {"good": in_main(METHOD, "f")}
    cases = {
        "method bad": Shipment(recipes=good | {"bad": locked.f}, layers={}, workload=None),
        "gradients of layer Linear": Shipment(
            recipes=good, layers={nn.Linear: locked.f}, workload=None
        ),
    }
    try:
        for words, shipped in cases.items():
            if installed:
                assert put(shipped), "by name, so that the lock is not sent"
            else:
                with pytest.raises(ValueError, match=f"^{words} cannot be sent to Ray workers"):
                    put(shipped)
    finally:
        del sys.modules["locked_code"]
