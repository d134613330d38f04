"""Closed forms of linear layers: the first layer's input, the classifier's labels and inputs.

First layer. Symbols: g (m,) gradient at the layer's output, x (n,) its input, v = L^T g (r,).
    right = v x^T, bias = g    =>    x = right^T v / |v|^2
    (Phong et al. 2018 for dense gradients, where v = g)
A clip factor, a learning rate and several local steps on the same example multiply v and cancel.
Masked columns of ``right`` are not in the equation. Without a bias, (v / t, t x) gives the same
``right`` for every t. Then each t x is replayed through the client's own step under a label: the
other layers show which t gives the received values.

Classifier, which methods send dense. Symbols: c classes, p (B, c) softmax outputs, f (B, h) its
inputs ("penultimate features"), y labels.
    db = sum_i w_i (p_i - e_y_i)      dW = sum_i w_i (p_i - e_y_i) f_i^T      w_i clip factors
Cross-entropy makes the entry of an example's own label negative and all others positive (iDLG, Zhao
et al. 2020). Other losses of classes are tested for this, and refused if they do not.
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

DECADES = 2.0
"""Powers of ten up and down within which a scale is searched."""
STEP = 0.1
"""Distance between the powers of ten of the first grid."""
LEAST_ENTRY = 1e-9
"""Entries of an input below this share of the largest are rounding, and limit no scale."""


def output_gradient(layer: ReceivedLayer) -> Float[Tensor, " m"] | None:
    """g from the bias; its frozen entries from left = g u^T.

    NaN in entries of which neither was sent; None without a bias.
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
    """x with its unknown entries solved from left = g (R x)^T.

    x as it is where that does not determine them.
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
    """x with the sign and the largest scale that keep it in the prior's range.

    Of both signs the one that allows the larger scale, which for images in [0, 1] is the positive
    one. x as it is if no scale fits.
    """
    low, high = (end.flatten() for end in prior.bounds)

    def largest_scale(y: Tensor) -> float:
        scales = torch.where(y > 0, high / y, torch.where(y < 0, low / y, torch.inf))
        counts = y.abs() > LEAST_ENTRY * y.nan_to_num(0.0).abs().max()
        return float(scales[y.isfinite() & counts].min())

    scale, sign = max((largest_scale(sign * x), sign) for sign in (1.0, -1.0))
    return x * sign * scale if 0 < scale < torch.inf else x


def clamp(x: Values, prior: Prior) -> Values:
    """x pulled into the prior's range, NaN left alone."""
    low, high = (end.flatten() for end in prior.bounds)
    return torch.where(x.isnan(), x, x.clamp(low, high))


def settle_scale(observation: Observation, guess: Guess, label: int) -> Guess:
    """A guess of one input, at the sign and scale that explain the payload best.

    guess: known up to sign and scale.
    Scales within ``DECADES`` powers of ten around the guess's own are tried on a grid with both
    signs, and the best one is refined. ``objective`` of the result: |replay - received| /
    |received|; without noise it is 0 at the input, to about 1e-8.
    Raises DoesNotApply for several inputs, or one with unknown entries.
    """
    if len(guess.inputs) != 1 or not bool(guess.inputs.isfinite().all()):
        raise DoesNotApply(
            "the scale is searched for one input whose entries are all known up to it"
        )
    target, size = torch.tensor([label]), float(observation.values.norm())
    start = guess.inputs.to(observation.values)

    def error(sign: float, power: float) -> float:
        sent = replay(observation, _scaled(start, sign, power), target).detach()
        return float((sent - observation.values).norm()) / size

    grid = itertools.product((1.0, -1.0), np.arange(-DECADES, DECADES + STEP / 2, STEP).tolist())
    _, sign, power = min((error(sign, power), sign, power) for sign, power in grid)
    best = minimize_scalar(
        lambda p: error(sign, p),
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
    """What was received of the classifier, the model's last linear layer.

    Raises DoesNotApply for a model without a linear classifier, for one that is carried or of which
    nothing was sent, and for targets that are no classes.
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
    """The label of one example: the negative entry of db (iDLG), or the largest row of dW.

    The row is read if db was not sent as a whole. Both are exact for one example without noise,
    whatever the clip: the entries of p - e_y sum to zero and only that of y is negative, so that it
    is also the largest. With masked entries of dW its row factors are fitted first.
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
    """Raise DoesNotApply unless the loss pulls the output of an example's class up most.

    That is: the gradient is negative at the class, not negative elsewhere, and nowhere larger than
        at the class.
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
    label: what one example of class c would leave, clipped. Candidates for the counts are
        - least squares on the bias, if it was sent as a whole;
        - least squares on all that was sent;
        - least squares with the outputs of the batch's own mean feature (``outputs_alike``);
        - the signs of db.
    Each is rounded to sum to B, or to the sum of the first least squares if B is not granted. The
    candidate whose replay is nearest is the result. The batch's own outputs judge, too, where they
    are exact (no noise) or nothing is known of inputs.
    An estimate: it assumes equal outputs p and clip factors for all examples.
    Raises DoesNotApply if nothing was sent of the classifier.
    """
    layer = head_of(observation)
    classes = range(len(layer.right.values))
    alone = [one_example(observation, prior, label, layer.path) for label in classes]
    on_all = _equations(alone, layer, bias_only=False)
    problems, judges = [on_all], [on_all]
    if layer.bias is not None and layer.bias.whole:
        problems.insert(0, _equations(alone, layer, bias_only=True))
    if not bool(problems[0].received.any()):
        raise DoesNotApply("nothing was sent of the classifier: label counts read its gradient")
    examples = known.examples or max(1, round(float(problems[0].solve().sum())))
    db, dW = _logit_gradient(layer), layer.right
    if db is not None and dW.whole and layer.bias is not None:
        module: Any = observation.model.get_submodule(layer.path)
        of_batch = outputs_alike(db, dW.values, module.weight.detach(), module.bias.detach())
        if of_batch is not None:
            problems.append(of_batch)
            if observation.noise_std == 0 or prior.mean is None:
                judges.append(of_batch)
    candidates = [round_to(problem.solve(), examples) for problem in problems]
    if db is not None:
        candidates.append(by_signs(db, examples))
    return nearest(candidates, judges)


def _logit_gradient(layer: ReceivedLayer) -> Float[Tensor, " c"] | None:
    """db; without a bias the sums of the rows of dW.

    The sums have the signs of db where features are positive. None if neither was sent as a whole.
    """
    if layer.bias is not None:
        return layer.bias.values if layer.bias.whole else None
    return layer.right.values.sum(1) if layer.right.whole else None


def _equations(
    alone: Sequence[ReceivedLayer], layer: ReceivedLayer, *, bias_only: bool
) -> Equations:
    """What single examples of each class would leave of the classifier, and what was received.

    bias_only: of db alone.
    """
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
    """The batch's labels, ascending: by iDLG for one example, by counts for more.

    Raises DoesNotApply as those do.
    """
    if known.examples == 1:
        return torch.tensor([label_of_one(observation)])
    counts = label_counts(observation, prior, known)
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def features(observation: Observation, prior: Prior, known: Knowledge) -> Guess:
    """Inputs of the classifier (present, h): one for each class in the batch, with its label.

    One example: exact with a bias (f = dW^T db / |db|^2), up to sign and scale without one. More
    examples: the row of a class over its db, a mean of features in which examples of that class
    weigh most; exact in the limit of confident outputs. Entries of dW that were not sent are left
    out; a column without any is NaN. ``objective``: residual of one example.
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
    """The row of dW of a class over its db; NaN in entries that were not sent."""
    f: Tensor = torch.where(right.kept[label], right.values[label] / db[label], torch.nan)
    return f
