"""Where nobody is clipped, one backward pass gives the sum that the per-example gradients have."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlsg.frame import Block, Coordinates, Frame, Keep, make_blocks
from fedlsg.gradients.per_example import per_example_gradients
from fedlsg.gradients.plain_sum import summable, summed_gradient


def losses(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def subject(dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 16, 4)).to(dtype)
    where = tuple(Coordinates(name=n, shape=tuple(p.shape)) for n, p in model.named_parameters())
    return model, Frame(coordinates=where, blocks=make_blocks(where))


@pytest.mark.parametrize("batch", [0, 1, 7])
def test_it_is_the_sum_over_rows(batch):
    model, frame = subject()
    kept = Block(parameter="3.weight", part="dense", shape=(4, 48), keep=Keep(axis=1, index=torch.tensor([1, 5])))
    masked = Frame(coordinates=frame.coordinates, blocks=(*frame.blocks[:2], kept, frame.blocks[3]))
    inputs, targets = torch.randn(batch, 1, 6, 6, dtype=torch.float64), torch.randint(4, (batch,))
    for f in (frame, masked):
        rows = per_example_gradients(model, losses, inputs, targets, f)
        found = summed_gradient(model, losses, inputs, targets, f)
        torch.testing.assert_close(found, torch.cat([block.sum(0) for block in rows]), rtol=1e-12, atol=1e-14)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_a_mean_loss_is_refused():
    model, frame = subject()
    with pytest.raises(ValueError, match="one loss an example"):
        summed_gradient(model, F.cross_entropy, torch.randn(2, 1, 6, 6).double(), torch.tensor([0, 1]), frame)


def test_carriers_and_weighted_blocks_are_not_summable():
    _, frame = subject()
    assert summable(frame)
    where = (Coordinates(name="w", shape=(4, 5), L=torch.eye(4, 2), R=torch.eye(2, 5)),)
    assert not summable(Frame(coordinates=where, blocks=make_blocks(where)))
    heavy = (Block(parameter="w", part="dense", shape=(4, 5), weight=2.0),)
    assert not summable(Frame(coordinates=(Coordinates(name="w", shape=(4, 5)),), blocks=heavy))
