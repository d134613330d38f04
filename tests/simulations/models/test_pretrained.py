"""Pre-trained weights: what is loaded, what stays fresh, and what is refused."""

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedlsg.simulations.models import load_pretrained


def small(classes: int = 3, width: int = 4, bias: bool = True) -> nn.Module:
    return nn.Sequential(
        OrderedDict(hidden=nn.Linear(5, width), classifier=nn.Linear(width, classes, bias=bias))
    )


def seeded(seed: int, **given: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return small(**given)


def saved(weights: object, folder: Path, name: str = "weights.pt") -> str:
    path = folder / name
    if name.endswith(".safetensors"):
        assert isinstance(weights, dict)
        pytest.importorskip("safetensors.torch").save_file(weights, path)
    else:
        torch.save(weights, path)
    return str(path)


def equal(a: nn.Module, b: nn.Module, names: tuple[str, ...] = ("hidden", "classifier")) -> bool:
    return all(torch.equal(a.get_submodule(n).weight, b.get_submodule(n).weight) for n in names)


@pytest.mark.parametrize(
    "name", ["weights.pt", "weights.pth", "weights.safetensors", "pytorch_model.bin"]
)
def test_all_weights_are_loaded(name, tmp_path):
    source = saved(seeded(1).state_dict(), tmp_path, name)
    model, lines = seeded(2), []
    assert load_pretrained(model, source, say=lines.append) == ()
    assert equal(model, seeded(1))
    assert lines == []


def changed(**weights: Tensor) -> dict[str, Tensor]:
    return seeded(1).state_dict() | {name.replace("__", "."): t for name, t in weights.items()}


WRONG = {
    "missing": (
        {n: t for n, t in changed().items() if n != "hidden.bias"},
        r"missing: hidden\.bias",
    ),
    "unexpected": (changed(extra__weight=torch.zeros(2)), r"unexpected: extra\.weight"),
    "shape": (
        changed(hidden__bias=torch.zeros(7)),
        r"another shape: hidden\.bias \(7,\) instead of \(4,\)",
    ),
    "not finite": (changed(hidden__bias=torch.full((4,), torch.nan)), r"not finite: hidden\.bias"),
    "features": (
        changed(classifier__weight=torch.zeros(3, 9)),
        r"expected classifier\.weight to read \(4,\) features",
    ),
    "both": (
        {"body.weight": torch.zeros(1)},
        r"missing: hidden\.weight, hidden\.bias; unexpected: body\.weight.*choose the --model",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_weights_of_another_network_are_refused_whole(case, tmp_path):
    weights, message = WRONG[case]
    model = seeded(2)
    with pytest.raises(ValueError, match=message):
        load_pretrained(model, saved(weights, tmp_path))
    assert equal(model, seeded(2))  # nothing was written
