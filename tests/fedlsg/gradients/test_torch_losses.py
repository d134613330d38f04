"""Every loss of torch.nn: the gradient of an example is torch's of that example alone, or the loss
is refused by name.

Oracle: autograd of torch's loss under the asked reduction, on one example. Two things differ, as
``losses`` says: class weights are not divided by their sum, and the average over no counted target
is 0.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError
from fedlsg.gradients.independence import check_model
from fedlsg.gradients.losses import per_example_loss

B, K = 4, 3
W = torch.tensor([0.5, 1.0, 2.0])
SHAPES = ((B,), (B, K), (B, 2, K), (B, 2, 1, K))
REDUCTIONS = ("none", "mean", "sum")


def numbers(shape: Sequence[int], seed: int = 2) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(shape: Sequence[int]) -> Tensor:
    """One class for each place: the outputs' shape without dimension 1."""
    return torch.randint(K, (shape[0], *shape[2:]), generator=torch.Generator().manual_seed(2))


def signs(shape: Sequence[int]) -> Tensor:
    return numbers(shape).sign()


def shares(shape: Sequence[int]) -> Tensor:
    return numbers(shape).sigmoid()


def lists(shape: Sequence[int]) -> Tensor:
    """The classes of each row, up to the first -1."""
    return torch.tensor([[0, -1, 1], [1, 2, -1], [-1, 0, 0], [2, -1, -1]])


def unchanged(outputs: Tensor) -> Tensor:
    return outputs


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss of torch with its targets. ``prepare``: from any numbers to outputs that it takes."""

    targets: Callable[[Sequence[int]], Tensor] = numbers
    prepare: Callable[[Tensor], Tensor] = unchanged
    shapes: Sequence[tuple[int, ...]] = SHAPES
    settings: Sequence[dict[str, Any]] = field(default=({},))
    reductions: Sequence[str] = REDUCTIONS


BY_CLASS = ((B, K), (B, K, 2), (B, K, 2, 2))
WEIGHTED: Sequence[dict[str, Any]] = (
    {},
    {"weight": W},
    {"weight": W, "ignore_index": 1},
    {"ignore_index": 1},
)
SMOOTH: Sequence[dict[str, Any]] = ({"label_smoothing": 0.1}, {"label_smoothing": 0.2, "weight": W})
LOSSES = {
    "L1Loss": Loss(),
    "MSELoss": Loss(),
    "SmoothL1Loss": Loss(settings=({}, {"beta": 0.3})),
    "HuberLoss": Loss(settings=({}, {"delta": 0.3})),
    "BCELoss": Loss(targets=shares, prepare=torch.sigmoid),
    "BCEWithLogitsLoss": Loss(
        targets=shares,
        settings=({}, {"pos_weight": W}, {"weight": W}),
        shapes=SHAPES[1:],
        reductions=REDUCTIONS,
    ),
    "KLDivLoss": Loss(
        targets=shares,
        prepare=partial(F.log_softmax, dim=-1),
        settings=({}, {"log_target": True}),
        shapes=SHAPES[1:],
        reductions=(*REDUCTIONS, "batchmean"),
    ),
    "PoissonNLLLoss": Loss(
        targets=shares, settings=({}, {"log_input": False}, {"full": True}), prepare=F.softplus
    ),
    "HingeEmbeddingLoss": Loss(targets=signs, settings=({}, {"margin": 0.4})),
    "SoftMarginLoss": Loss(targets=signs),
    "MultiLabelSoftMarginLoss": Loss(
        targets=shares, shapes=((B, K),), settings=({}, {"weight": W})
    ),
    "MultiLabelMarginLoss": Loss(targets=lists, shapes=((B, K),)),
    "MultiMarginLoss": Loss(
        targets=classes, shapes=((B, K),), settings=({}, {"weight": W}, {"p": 2})
    ),
    "NLLLoss": Loss(
        targets=classes, prepare=partial(F.log_softmax, dim=1), shapes=BY_CLASS, settings=WEIGHTED
    ),
    "CrossEntropyLoss": Loss(targets=classes, shapes=BY_CLASS, settings=(*WEIGHTED, *SMOOTH)),
}
"""By torch's name; ``SOFT`` has cross-entropy with a share for each class."""
SOFT = Loss(
    targets=lambda shape: numbers(shape).softmax(1),
    shapes=BY_CLASS,
    settings=({}, {"weight": W}, *SMOOTH),
)
FUNCTIONS = {
    "L1Loss": F.l1_loss,
    "MSELoss": F.mse_loss,
    "SmoothL1Loss": F.smooth_l1_loss,
    "HuberLoss": F.huber_loss,
    "BCELoss": F.binary_cross_entropy,
    "BCEWithLogitsLoss": F.binary_cross_entropy_with_logits,
    "KLDivLoss": F.kl_div,
    "PoissonNLLLoss": F.poisson_nll_loss,
    "HingeEmbeddingLoss": F.hinge_embedding_loss,
    "SoftMarginLoss": F.soft_margin_loss,
    "MultiLabelSoftMarginLoss": F.multilabel_soft_margin_loss,
    "MultiLabelMarginLoss": F.multilabel_margin_loss,
    "MultiMarginLoss": F.multi_margin_loss,
    "NLLLoss": F.nll_loss,
    "CrossEntropyLoss": F.cross_entropy,
}
MORE = {
    "CosineEmbeddingLoss": "input1, input2, target",
    "MarginRankingLoss": "input1, input2, target",
    "TripletMarginLoss": "anchor, positive, negative",
    "TripletMarginWithDistanceLoss": "anchor, positive, negative",
    "CTCLoss": "log_probs, targets, input_lengths, target_lengths",
    "GaussianNLLLoss": "input, target, var",
}
"""Losses that a function of (outputs, targets) must call, by the arguments that they need."""
TRAINED = {"AdaptiveLogSoftmaxWithLoss": (4, 6, [2]), "LinearCrossEntropyLoss": (4, 6)}
"""Losses that have weights to train, with the arguments that make one."""
EVERY = [*LOSSES.items(), ("CrossEntropyLoss", SOFT)]


def test_every_loss_of_torch_is_here():
    known = {name for name in dir(nn) if name.endswith("Loss")}
    assert known <= LOSSES.keys() | MORE.keys() | TRAINED.keys()


def alone(
    name: str, settings: dict[str, Any], reduction: str, output: Tensor, target: Tensor
) -> Tensor:
    """The loss of one example in torch; "none" is our mean over its values."""
    asked = "mean" if reduction == "none" else reduction
    if (
        asked == "mean"
        and "weight" in settings
        and not target.is_floating_point()
        and name != "MultiMarginLoss"
    ):
        counted = (target != settings.get("ignore_index", -100)).sum().clamp(min=1)
        return getattr(nn, name)(reduction="sum", **settings)(output, target) / counted
    found = getattr(nn, name)(reduction=asked, **settings)(output, target)
    return found.nan_to_num(0.0)  # torch's mean over no target


def gradients(loss: Any, prepare: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    outputs = outputs.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(prepare(outputs), targets).sum(), outputs)
    return found


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
@pytest.mark.parametrize(("name", "loss"), EVERY)
def test_the_gradient_of_an_example_is_that_of_torch_alone(name, loss):
    for case in itertools.product(loss.shapes, loss.settings, loss.reductions):
        check_gradients(name, loss, *case)


def check_gradients(
    name: str, loss: Loss, shape: Sequence[int], settings: dict[str, Any], reduction: str
) -> None:
    outputs, targets = numbers(shape, seed=1), loss.targets(shape)
    wanted = torch.cat(
        [
            gradients(
                partial(alone, name, settings, reduction),
                loss.prepare,
                outputs[i : i + 1],
                targets[i : i + 1],
            )
            for i in range(B)
        ]
    ).nan_to_num(0.0)
    module = getattr(nn, name)(reduction=reduction, **settings)
    function = partial(FUNCTIONS[name], reduction=reduction, **settings)
    if "log_input" in settings or "full" in settings:
        function = module
    for own in (module, function):
        found = gradients(per_example_loss(own), loss.prepare, outputs, targets)
        torch.testing.assert_close(
            found, wanted, msg=lambda text: f"{name} {shape} {settings} {reduction}: {text}"
        )
        assert bool((found != 0).any()) or reduction == "none" or name == "HingeEmbeddingLoss"


class Shaped(nn.Module):
    """A linear layer whose outputs have the shape and the range that a loss takes."""

    def __init__(self, shape: tuple[int, ...], prepare: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(5, max(1, int(torch.tensor(shape[1:]).prod())))
        self.shape = shape
        self.prepare = prepare

    def forward(self, x: Tensor) -> Tensor:
        return self.prepare(self.layer(x).reshape(len(x), *self.shape[1:]))


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("name", "loss"), EVERY)
@pytest.mark.parametrize("form", ["module", "function"])
def test_every_loss_passes_the_check_in_float64_and_is_not_changed(name, loss, form):
    """Class weights are float32, and the model of the check is float64."""
    for settings in loss.settings:
        shape = loss.shapes[-1]
        own = (
            getattr(nn, name)(**settings)
            if form == "module"
            else partial(FUNCTIONS[name], **settings)
        )
        torch.manual_seed(0)
        model = Shaped(shape, loss.prepare)
        check_model(model, per_example_loss(own), [(numbers((B, 5)), loss.targets(shape))])
        if form == "module":
            assert all(buffer.dtype == torch.float32 for buffer in own.buffers())
            assert own.reduction == "mean"
        assert W.dtype == torch.float32


@pytest.mark.parametrize("name", MORE)
def test_a_loss_of_more_arguments_names_them(name):
    made = getattr(nn, name)()
    needed = MORE[name].count(",") + 1
    with pytest.raises(
        ValueError, match=rf"^{name} needs {needed} arguments \({MORE[name]}\).*a function of \("
    ):
        per_example_loss(made)


@pytest.mark.parametrize("name", [name for name in TRAINED if hasattr(nn, name)])
def test_a_loss_with_weights_to_train_names_them(name):
    made = getattr(nn, name)(*TRAINED[name])
    first = next(iter(dict(made.named_parameters())))
    with pytest.raises(ValueError, match=rf"trainable parameters \({first}"):
        per_example_loss(made)


def default_sum(outputs: Tensor, targets: Tensor, reduction: str = "sum") -> Tensor:
    values = (outputs - targets).abs()
    return values if reduction == "none" else getattr(values, reduction)()


@pytest.mark.parametrize(
    ("loss", "total"),
    [
        (default_sum, True),
        (partial(default_sum, reduction="mean"), False),
        (partial(default_sum, reduction="sum"), True),
        (partial(partial(F.l1_loss, reduction="sum")), True),
        (partial(default_sum, reduction="none"), False),
    ],
)
def test_the_reduction_of_a_function_is_its_default_or_what_was_given(loss, total):
    outputs, targets = numbers((B, K)), shares((B, K))
    values = (outputs - targets).abs()
    torch.testing.assert_close(
        per_example_loss(loss)(outputs, targets), values.sum(1) if total else values.mean(1)
    )


def test_a_weight_for_each_place_in_the_batch_is_refused():
    """``BCELoss(weight)`` of shape (B, 1) weighs places, not examples."""
    loss = per_example_loss(nn.BCEWithLogitsLoss(weight=torch.rand(B, 1)))
    with pytest.raises(
        UnsupportedLayerError, match=r"^the loss function: fails with RuntimeError: .* shape"
    ):
        check_model(nn.Linear(5, 2), loss, [(numbers((B, 5)), shares((B, 2)))])


ROWS, T, V = 5, 3, 4


def class_targets(*shape, high=V):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(0))


def number_targets(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("ignored", [None, 2])
def test_tokens_equal_each_text_alone(ignored):
    given = {} if ignored is None else {"ignore_index": ignored}
    outputs, targets = number_targets(ROWS, T, V), class_targets(ROWS, T)
    targets[0, :2] = -100 if ignored is None else ignored
    wanted = [F.cross_entropy(o, t, **given) for o, t in zip(outputs, targets, strict=True)]
    for loss in (nn.CrossEntropyLoss(**given), partial(F.cross_entropy, **given)):
        torch.testing.assert_close(per_example_loss(loss)(outputs, targets), torch.stack(wanted))
        wrapped = SimpleNamespace(logits=outputs)
        torch.testing.assert_close(per_example_loss(loss)(wrapped, targets), torch.stack(wanted))
        first = per_example_loss(loss)(outputs.movedim(2, 1), targets)
        torch.testing.assert_close(first, torch.stack(wanted))


def test_an_own_function_is_called_as_it_is_and_its_other_dimensions_are_averaged():
    outputs, targets = number_targets(ROWS, 3), number_targets(ROWS, 3, seed=2)
    found = per_example_loss(lambda o, t: (o - t).square())(outputs, targets)
    torch.testing.assert_close(found, (outputs - targets).square().mean(1))
    own = per_example_loss(lambda o, t: (o["a"] - t["b"]).abs().sum(1))
    torch.testing.assert_close(
        own({"a": outputs}, {"b": targets}), (outputs - targets).abs().sum(1)
    )


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: F.cross_entropy(o, t),
        lambda o, t: 1.0,
        lambda o, t: (o.sum(1) - t).square()[:2],
    ],
)
def test_a_loss_that_averages_over_the_batch_is_refused(loss):
    with pytest.raises(
        ValueError, match=r"expected one loss an example, shape \(5,\).*averages over the batch"
    ) as error:
        per_example_loss(loss)(number_targets(ROWS, V), class_targets(ROWS))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("loss", [nn.MSELoss(), F.l1_loss, nn.SmoothL1Loss()])
@pytest.mark.parametrize("targets", [number_targets(ROWS), class_targets(ROWS)])
def test_targets_that_torch_would_broadcast_over_the_batch_are_refused(loss, targets):
    with pytest.raises(ValueError, match=r"one shape for \w+, got \(5, 1\) and \(5,\)"):
        per_example_loss(loss)(number_targets(ROWS, 1), targets)


def test_outputs_without_a_dimension_name_squeeze_of_the_last_one():
    """A batch of one loses its batch by squeeze()."""
    loss = per_example_loss(nn.MSELoss())
    with pytest.raises(ValueError, match=r"got \(\) and \(1,\).*squeeze\(-1\)"):
        loss(torch.ones(1, 1).squeeze(), torch.ones(1))
    assert loss(torch.ones(1, 1).squeeze(-1), torch.ones(1)).shape == (1,)
    with pytest.raises(ValueError, match=r"targets\[:, None\]"):
        loss(torch.ones(2, 1), torch.ones(2))
