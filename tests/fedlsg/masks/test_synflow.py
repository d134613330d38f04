"""SynFlow against products of matrices, its conservation law, and what it refuses."""

import itertools

import torch
from torch import Tensor, nn

from fedlsg.masks.synflow import flow, keep_synflow, linear_model


def linear_net(*widths: int) -> nn.Sequential:
    torch.manual_seed(2)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*[m for layer in layers for m in (layer, nn.Tanh())][:-1])


def everything(model: nn.Module) -> dict[str, Tensor]:
    return {n: torch.ones_like(p, dtype=torch.bool) for n, p in model.named_parameters() if p.ndim >= 2}


def test_flow_is_the_product_of_magnitudes():
    """Oracle: R = 1^T abs(W3) abs(W2) abs(W1) 1, and a weight's score what it carries of it: left * abs(w) * right."""
    model = linear_net(5, 4, 3, 2)
    got = flow(linear_model(model), torch.ones(1, 5).double(), everything(model))
    W1, W2, W3 = (model[i].weight.detach().abs().double() for i in (0, 2, 4))
    right = [torch.ones(5).double(), W1.sum(1), W2 @ W1.sum(1)]
    left = [W3.sum(0) @ W2, W3.sum(0), torch.ones(2).double()]
    for name, W, before, after in zip(("0.weight", "2.weight", "4.weight"), (W1, W2, W3), right, left, strict=True):
        torch.testing.assert_close(got[name], after.unsqueeze(1) * W * before)


def test_pruning_in_one_shot_leaves_no_path_where_iterations_do():
    """Why it is iterative. Negative control: one iteration at this rate cuts the network."""

    def flows(iterations: int) -> bool:
        model = linear_net(64, 64, 64, 64, 10)
        kept = keep_synflow(model, torch.zeros(1, 64), 0.995, iterations=iterations)
        path = torch.ones(64).double()
        for name in kept:
            path = kept[name].double() @ path
        return float(path.sum()) > 10

    assert flows(100)
    assert not flows(1)
