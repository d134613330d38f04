"""Closed forms of single linear layers: the input of the first one, labels and inputs of the
classifier.

Symbols: g (m,) gradient at the layer's output, x (n,) its input, v = L^T g (r,), s noise deviation.
    right = v x^T, bias = g    =>    x = right^T v / |v|^2
    (Phong et al. 2018 for dense gradients, where v = g)
A clip factor, a learning rate and several local steps on the same example multiply v and cancel.
Masked columns of ``right`` are not in the equation. Without a bias right = v x^T is the same for (v
/ t, t x). The other layers are not: of all t x, replayed through the client's own step under a
label, the one that gives what was received is the input.

The classifier, which methods send dense: c classes, p (B, c) softmax outputs, f (B, h) its inputs
("penultimate features"), y labels.
    db = sum_i w_i (p_i - e_y_i)      dW = sum_i w_i (p_i - e_y_i) f_i^T      w_i clip factors
Cross-entropy makes the entry of an example's own label negative and all others positive (iDLG, Zhao
et al. 2020): other losses of classes are tried, and refused where they do not.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from fedlsg.attacks.inversion.label_fit import (
    Equations,
    by_signs,
    nearest,
    outputs_alike,
    round_to,
)
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.inversion.received_layer import (
    Received,
    ReceivedLayer,
    direction,
    ratio,
    received_first_layer,
    received_layer,
)
from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation
from fedlsg.attacks.replay import replay
from fedlsg.carriers import find_output_layer

Values = Float[Tensor, " n"]

DECADES, STEP = 2.0, 0.1
"""Powers of ten within which a scale is searched, and the distance of those that are tried
first.
"""


def output_gradient(layer: ReceivedLayer) -> Float[Tensor, " m"] | None:
    """g from the bias, frozen entries filled in from left = g u^T, NaN where neither was sent; None
    without a bias.
    """
    bias, left = layer.bias, layer.left
    if bias is None or not layer.scaled_alike or not bool((bias.values != 0).any()):
        return None
    g = torch.where(bias.kept, bias.values, torch.nan)
    if left is None or bias.whole:
        return g
    u = ratio(left, g).x  # left = g u^T has g in its rows, too
    return torch.where(bias.kept, g, ratio(left.mT, u).x)


def input_of_linear(observation: Observation, prior: Prior) -> Guess:
    """The input of the first linear layer as (1, *prior.shape).

    Guarantee: for one example, no noise, and a bias that was sent, every kept column of x is exact
    to rounding, whatever the joint clip, the clip's weights or the mask; a frozen column is NaN,
    unless R (which multiplies all columns into dL) has rank enough to solve for all of them.
    Without a bias, under per-block clipping, or where too little of the bias was sent, the
    direction is exact and the prior's range settles sign and scale. For several examples it is a
    mean of theirs, weighted by v. With noise x is clamped to the prior's range.
    ``objective``: the residual of right = v x^T.
    Raises DoesNotApply where no linear layer is first, its inputs are not those of the prior, or
    nothing was sent.
    """
    layer = received_first_layer(observation, prior.size)
    g = output_gradient(layer)
    v = None if g is None else layer.outer(g)
    if g is None or v is None or bool(v.isnan().all()):
        x, residual = direction(layer.right)
        x = fit_range(x, prior)
        note = "direction from the gradient, sign and scale from the prior's range"
        return Guess(
            inputs=x.reshape(1, *prior.shape), objective=residual, scale_open=True, note=note
        )
    if not bool(v.nan_to_num(0.0).any()):
        raise DoesNotApply(
            "L^T db is zero: nothing of the gradient reaches the carriers (LoRA's B may still be 0)"
        )
    guess = ratio(layer.right, v)
    x = frozen_columns(layer, guess.x, g)
    if layer.right.noise_std > 0:
        x = clamp(x, prior)
    unknown = int(x.isnan().sum())
    note = (
        f"v^T right / |v|^2; {unknown} of {layer.inputs} inputs unknown"
        if unknown
        else "v^T right / |v|^2"
    )
    return Guess(inputs=x.reshape(1, *prior.shape), objective=guess.residual, note=note)


def frozen_columns(layer: ReceivedLayer, x: Values, g: Float[Tensor, " m"]) -> Values:
    """x with its unknown entries solved from left = g (R x)^T where that determines them, NaN where
    it does not.
    """
    frozen = x.isnan()
    if layer.left is None or layer.R is None or not 0 < int(frozen.sum()) <= len(layer.R):
        return x
    u = ratio(layer.left, g).x
    known = u.isfinite()
    R = layer.R[known]
    if torch.linalg.matrix_rank(R[:, frozen]) < int(frozen.sum()):
        return x
    rest = u[known] - R[:, ~frozen] @ x[~frozen]
    filled = x.clone()
    filled[frozen] = torch.linalg.lstsq(R[:, frozen], rest).solution
    return filled


def fit_range(x: Values, prior: Prior) -> Values:
    """x with the sign and the largest scale that keep it in the prior's range; its middle value
    where it cannot be.

    Of both signs the one that allows the larger scale, which for images in [0, 1] is the positive
    one.
    """
    low, high = (end.flatten() for end in prior.bounds)

    def largest(y: Tensor) -> float:
        ends = torch.where(y > 0, high / y, torch.where(y < 0, low / y, torch.inf))
        return float(ends[y.isfinite() & (y.abs() > 1e-9 * y.nan_to_num(0.0).abs().max())].min())

    scale, sign = max((largest(sign * x), sign) for sign in (1.0, -1.0))
    return x * sign * scale if 0 < scale < torch.inf else x


def clamp(x: Values, prior: Prior) -> Values:
    """x pulled into the prior's range, NaN left alone."""
    low, high = (end.flatten() for end in prior.bounds)
    return torch.where(x.isnan(), x, x.clamp(low, high))


def settle_scale(observation: Observation, guess: Guess, label: int) -> Guess:
    """``guess`` of one input, known up to sign and scale, at the sign and scale that explain the
    payload best.

    Scales within ``DECADES`` powers of ten around the guess's own are tried on a grid, and the best
    one of either sign refined. ``objective``: |replay - received| / |received|; without noise it is
    0 at the input, to about 1e-8.
    Raises DoesNotApply for several inputs, or one with unknown entries.
    """
    if len(guess.inputs) != 1 or not bool(guess.inputs.isfinite().all()):
        raise DoesNotApply(
            "the scale is searched for one input whose entries are all known up to it"
        )
    target, size = torch.tensor([label]), float(observation.values.norm())
    start = guess.inputs.to(observation.values)

    def off(sign: float, power: float) -> float:
        sent = replay(observation, _scaled(start, sign, power), target).detach()
        return float((sent - observation.values).norm()) / size

    tried = itertools.product((1.0, -1.0), np.arange(-DECADES, DECADES + STEP / 2, STEP).tolist())
    _, sign, power = min((off(sign, power), sign, power) for sign, power in tried)
    best = minimize_scalar(
        lambda p: off(sign, p),
        bounds=(power - STEP, power + STEP),
        method="bounded",
        options={"xatol": 1e-12},
    )
    inputs = _scaled(start, sign, float(best.x)).to(guess.inputs)
    return Guess(
        inputs=inputs,
        labels=target,
        objective=float(best.fun),
        note="direction exact, scale from a replay",
    )


def _scaled(start: Tensor, sign: float, power: float) -> Tensor:
    return start * (sign * math.pow(10.0, power))


def head_of(observation: Observation) -> ReceivedLayer:
    """The classifier's equations.

    Raises DoesNotApply for a model that has none, or sent nothing of it, and where the targets are
    no classes.
    """
    if not observation.class_targets:
        raise DoesNotApply(
            "label rules read the number of a class, and these targets are no classes"
        )
    path = find_output_layer(observation.model)
    if not isinstance(observation.model.get_submodule(path), nn.Linear):
        raise DoesNotApply(f"{path or 'the model'} is no linear layer: label rules read one")
    layer = received_layer(observation, path)
    if layer.L is not None:
        raise DoesNotApply(f"{path} is carried: label rules read the rows of a dense classifier")
    return layer


def label_of_one(observation: Observation) -> int:
    """The label of one example: the negative entry of db (iDLG), without a whole db the largest row
    of dW.

    Both are exact for one example without noise, whatever the clip: the entries of p - e_y sum to
    zero and only that of y is negative, so that it is also the largest. With masked entries of dW
    its row factors are fitted first.
    """
    layer = head_of(observation)
    _check_signs(observation, layer.right.values.shape[0])
    if layer.bias is not None and layer.bias.whole:
        return int(layer.bias.values.argmin())
    if layer.bias is not None and layer.bias.noise_std == 0 and bool((layer.bias.values < 0).any()):
        return int(layer.bias.values.argmin())
    rows, _ = direction(layer.right.mT)
    return int(rows.nan_to_num(0.0).abs().argmax())


def _check_signs(observation: Observation, classes: int) -> None:
    """Raise DoesNotApply unless the loss pulls the output of the own class up, and more than any
    other down.
    """
    outputs = (
        torch.randn(classes, classes, generator=torch.Generator().manual_seed(0))
        .to(observation.values)
        .requires_grad_()
    )
    try:
        losses = observation.loss_fn(outputs, torch.arange(classes, device=outputs.device))
        (d,) = torch.autograd.grad(losses.sum(), outputs)
    except Exception as error:  # a loss of a user's own may raise anything
        raise DoesNotApply(
            f"label rules need a loss of (outputs, classes): {type(error).__name__}: {error}"
        ) from error
    diagonal, others = d.diagonal(), d.detach().clone().fill_diagonal_(0)
    if not bool(
        (diagonal < 0).all()
        and (others >= 0).all()
        and (others.amax(1) <= -diagonal * (1 + 1e-5)).all()
    ):
        raise DoesNotApply(
            "the gradient of this loss does not point to the label: label rules need cross-entropy"
        )


def label_counts(observation: Observation, prior: Prior, known: Knowledge) -> Int[Tensor, " c"]:
    """How often each class is in the batch, from what was sent of the classifier (``label_fit``).

    The expected input of the prior is sent through the client's own step once with each class as
    label: what one example of class c would leave, clipped. Least squares, on the bias and on all
    that was sent, the outputs of the batch's own mean feature, and the signs of db each give
    counts that sum to B (to the sum of the least squares where B is not granted). Those whose
    replay is nearest are kept. The batch's own outputs judge, too, where they are exact (no noise)
    or nothing is known of inputs.
    An estimate: it takes outputs p and clip factors for alike.
    Raises DoesNotApply where nothing was sent of the classifier.
    """
    layer = head_of(observation)
    classes = range(len(layer.right.values))
    alone = [one_example(observation, prior, label, layer.path) for label in classes]
    replays = [_equations(alone, layer, bias_only=False)]
    db, dW = _logit_gradient(layer), layer.right
    if layer.bias is not None and layer.bias.whole:
        replays.insert(0, _equations(alone, layer, bias_only=True))
    if not bool(replays[0].received.any()):
        raise DoesNotApply("nothing was sent of the classifier: label counts read its gradient")
    examples = known.examples or max(1, round(float(replays[0].solve().sum())))
    judges = replays[-1:]
    if db is not None and dW.whole and layer.bias is not None:
        module: Any = observation.model.get_submodule(layer.path)
        equations_here = outputs_alike(db, dW.values, module.weight.detach(), module.bias.detach())
        if equations_here is not None:
            replays.append(equations_here)
            if observation.noise_std == 0 or prior.mean is None:
                judges = [*judges, equations_here]
    candidates = [round_to(equations.solve(), examples) for equations in replays]
    if db is not None:
        candidates.append(by_signs(db, examples))
    return nearest(candidates, judges)


def _logit_gradient(layer: ReceivedLayer) -> Float[Tensor, " c"] | None:
    """db; without a bias the sums of the rows of dW, which have its signs where features are
    positive; None where neither was sent as a whole.
    """
    if layer.bias is not None:
        return layer.bias.values if layer.bias.whole else None
    return layer.right.values.sum(1) if layer.right.whole else None


def _equations(
    alone: Sequence[ReceivedLayer], layer: ReceivedLayer, *, bias_only: bool
) -> Equations:
    """What single examples of each class leave of the classifier, and what was received."""
    of_class = torch.stack([_sent(gradient, bias_only) for gradient in alone], 1)
    return Equations(of_class=of_class, received=_sent(layer, bias_only))


def _sent(layer: ReceivedLayer, bias_only: bool) -> Float[Tensor, " numbers"]:
    """db, or everything that was sent of the classifier."""
    parts = [] if layer.bias is None else [layer.bias]
    if not bias_only:
        parts.append(layer.right)
    return torch.cat([part.values[part.kept] for part in parts])


def one_example(observation: Observation, prior: Prior, label: int, path: str) -> ReceivedLayer:
    """What the prior's expected input would leave of the classifier at ``path`` under a label."""
    target = torch.tensor([label])
    inputs = prior.expected(1, target).to(next(observation.model.parameters()))
    values = replay(observation, inputs, target).detach()
    return received_layer(replace(observation, values=values.to(observation.values)), path)


def labels_of(observation: Observation, prior: Prior, known: Knowledge) -> Int[Tensor, " batch"]:
    """The batch's labels, ascending: iDLG for one example, counts for more. Raises DoesNotApply as
    those do.
    """
    if known.examples == 1:
        return torch.tensor([label_of_one(observation)])
    counts = label_counts(observation, prior, known)
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def features(observation: Observation, prior: Prior, known: Knowledge) -> Guess:
    """Inputs of the classifier, one a class that is in the batch, (present, h), with that class as
    label.

    One example: exact with a bias (f = dW^T db / |db|^2), up to sign and scale without. More: the
    row of a class over its db, a mean of features in which examples of that class weigh most; exact
    in the limit of confident outputs. Entries of dW that were not sent are left out, a column
    without any is NaN. ``objective``: residual of one example.
    """
    layer = head_of(observation)
    labels = labels_of(observation, prior, known).unique()
    if layer.bias is None or not layer.scaled_alike:
        if known.examples != 1:
            raise DoesNotApply(
                "features of several examples need the gradient of the classifier's bias"
            )
        f, residual = direction(layer.right)
        note = "up to sign and scale"
        return Guess(
            inputs=f.unsqueeze(0), labels=labels, objective=residual, scale_open=True, note=note
        )
    db = torch.where(layer.bias.kept, layer.bias.values, torch.nan)
    if known.examples == 1:
        guess = ratio(layer.right, db)
        return Guess(
            inputs=guess.x.unsqueeze(0),
            labels=labels,
            objective=guess.residual,
            note="dW^T db / |db|^2",
        )
    rows = [_row(layer.right, db, int(label)) for label in labels]
    return Guess(
        inputs=torch.stack(rows),
        labels=labels,
        note="a class's row of dW over its db: means, not examples",
    )


def _row(right: Received, db: Float[Tensor, " c"], label: int) -> Float[Tensor, " h"]:
    f: Tensor = torch.where(right.kept[label], right.values[label] / db[label], torch.nan)
    return f
