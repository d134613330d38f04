"""Losses in torch's usual form give one loss for each example; whatever averages or mixes is refused."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlsg.gradients.losses import per_example_loss

B, T, V = 5, 3, 4


def classes(*shape, high=V):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(0))


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def one_by_one(loss, outputs, targets):
    """The oracle: torch's loss in its usual form, on each example alone."""
    return torch.stack([loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(targets))])


@pytest.mark.parametrize("loss", [
    nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), F.cross_entropy,
    partial(F.cross_entropy, label_smoothing=0.2), partial(F.cross_entropy, reduction="mean"), nn.MultiMarginLoss(),
])  # fmt: skip
def test_classification_equals_each_example_alone(loss):
    outputs, targets = numbers(B, V), classes(B)
    torch.testing.assert_close(per_example_loss(loss)(outputs, targets), one_by_one(loss, outputs, targets))


@pytest.mark.parametrize("ignored", [None, 2])
def test_tokens_equal_each_text_alone(ignored):
    given = {} if ignored is None else {"ignore_index": ignored}
    outputs, targets = numbers(B, T, V), classes(B, T)
    targets[0, :2] = -100 if ignored is None else ignored
    wanted = [F.cross_entropy(o, t, **given) for o, t in zip(outputs, targets, strict=True)]
    for loss in (nn.CrossEntropyLoss(**given), partial(F.cross_entropy, **given)):
        torch.testing.assert_close(per_example_loss(loss)(outputs, targets), torch.stack(wanted))
        wrapped = SimpleNamespace(logits=outputs)
        torch.testing.assert_close(per_example_loss(loss)(wrapped, targets), torch.stack(wanted))
        first = per_example_loss(loss)(outputs.movedim(2, 1), targets)
        torch.testing.assert_close(first, torch.stack(wanted))


def test_an_own_function_is_called_as_it_is_and_its_other_dimensions_are_averaged():
    outputs, targets = numbers(B, 3), numbers(B, 3, seed=2)
    found = per_example_loss(lambda o, t: (o - t).square())(outputs, targets)
    torch.testing.assert_close(found, (outputs - targets).square().mean(1))
    own = per_example_loss(lambda o, t: (o["a"] - t["b"]).abs().sum(1))
    torch.testing.assert_close(own({"a": outputs}, {"b": targets}), (outputs - targets).abs().sum(1))


@pytest.mark.parametrize("loss", [
    lambda o, t: F.cross_entropy(o, t), lambda o, t: 1.0, lambda o, t: (o.sum(1) - t).square()[:2],
])  # fmt: skip
def test_a_loss_that_averages_over_the_batch_is_refused(loss):
    with pytest.raises(
        ValueError, match=r"expected one loss an example, shape \(5,\).*averages over the batch"
    ) as error:
        per_example_loss(loss)(numbers(B, V), classes(B))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("loss", [nn.MSELoss(), F.l1_loss, nn.SmoothL1Loss()])
@pytest.mark.parametrize("targets", [numbers(B), classes(B)])
def test_targets_that_torch_would_broadcast_over_the_batch_are_refused(loss, targets):
    with pytest.raises(ValueError, match=r"one shape for \w+, got \(5, 1\) and \(5,\)"):
        per_example_loss(loss)(numbers(B, 1), targets)
