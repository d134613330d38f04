"""Labels, and inputs of the classifier, from the gradient of the classifier itself, which methods send dense.

Symbols: c classes, p (B, c) softmax outputs, f (B, h) the classifier's inputs ("penultimate features"), y labels.
    db = sum_i w_i (p_i - e_y_i)          dW = sum_i w_i (p_i - e_y_i) f_i^T          w_i clip factors
Cross-entropy makes the entry of an example's own label negative and all others positive (iDLG, Zhao et al. 2020): other
losses of classes are tried, and refused where they do not.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from scipy.optimize import nnls
from torch import Tensor, nn

from fedlsg.attacks.inversion.linear_input import direction, ratio
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.inversion.received_layer import Received, ReceivedLayer, received_layer
from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation
from fedlsg.attacks.replay import replay
from fedlsg.carriers import find_output_layer


def head_of(seen: Observation) -> ReceivedLayer:
    """The classifier's equations.

    Raises DoesNotApply for a model that has none, or sent nothing of it, and where the targets are no classes.
    """
    if not seen.class_targets:
        raise DoesNotApply("label rules read the number of a class, and these targets are no classes")
    path = find_output_layer(seen.model)
    if not isinstance(seen.model.get_submodule(path), nn.Linear):
        raise DoesNotApply(f"{path or 'the model'} is no linear layer: label rules read one")
    layer = received_layer(seen, path)
    if layer.L is not None:
        raise DoesNotApply(f"{path} is carried: label rules read the rows of a dense classifier")
    return layer


def label_of_one(seen: Observation) -> int:
    """The label of one example: the negative entry of db (iDLG), without a whole db the largest row of dW.

    Both are exact for one example without noise, whatever the clip: the entries of p - e_y sum to zero and only that
    of y is negative, so that it is also the largest. With masked entries of dW its row factors are fitted first.
    """
    layer = head_of(seen)
    _check_signs(seen, layer.right.values.shape[0])
    if layer.bias is not None and layer.bias.whole:
        return int(layer.bias.values.argmin())
    if layer.bias is not None and layer.bias.noise_std == 0 and bool((layer.bias.values < 0).any()):
        return int(layer.bias.values.argmin())
    right = layer.right
    rows, _ = direction(Received(values=right.values.mT, kept=right.kept.mT, noise_std=right.noise_std))
    return int(rows.nan_to_num(0.0).abs().argmax())


def _check_signs(seen: Observation, classes: int) -> None:
    """Raise DoesNotApply unless the loss pulls the output of the own class up, and more than any other down."""
    outputs = torch.randn(classes, classes, generator=torch.Generator().manual_seed(0)).to(seen.values).requires_grad_()
    try:
        losses = seen.loss_fn(outputs, torch.arange(classes, device=outputs.device))
        (d,) = torch.autograd.grad(losses.sum(), outputs)
    except Exception as error:  # a loss of a user's own may raise anything
        raise DoesNotApply(f"label rules need a loss of (outputs, classes): {type(error).__name__}: {error}") from error
    own, others = d.diagonal(), d.detach().clone().fill_diagonal_(0)
    if not bool((own < 0).all() and (others >= 0).all() and (others.amax(1) <= -own * (1 + 1e-5)).all()):
        raise DoesNotApply("the gradient of this loss does not point to the label: label rules need cross-entropy")


def label_counts(seen: Observation, prior: Prior, known: Knowledge) -> Int[Tensor, " c"]:
    """How often each class is in the batch, from db (after LLG, Wainakh et al. 2022, with W_t known).

    The expected input of the prior is sent through the client's own step once with each class as label: u_c is the db
    that one example of class c would leave, clipped. db = sum_c n_c u_c is solved for n >= 0, and rounded to sum to B
    where B is granted, one by one where not. Where entries of db are masked, what was sent of dW is used, too.
    An estimate: it takes outputs p and clip factors for alike, and features where dW is needed.
    Raises DoesNotApply where nothing was sent of the bias.
    """
    layer = head_of(seen)
    if layer.bias is None or not bool(layer.bias.kept.any()):
        raise DoesNotApply("label counts need the gradient of the classifier's bias")
    classes, whole = len(layer.bias.values), layer.bias.whole
    U = torch.stack([_sent(one_example(seen, prior, label, layer.path), whole) for label in range(classes)], 1)
    n = torch.from_numpy(nnls(U.numpy(), _sent(layer, whole).numpy())[0])
    if known.examples is None:
        return n.round().long()
    n = n * known.examples / n.sum() if float(n.sum()) > 0 else torch.full_like(n, known.examples / classes)
    counts = n.floor().long()
    rest = (n - counts).argsort(descending=True, stable=True)[: known.examples - int(counts.sum())]
    counts[rest] += 1
    return counts


def _sent(layer: ReceivedLayer, bias_only: bool) -> Float[Tensor, " numbers"]:
    """db, or, where classes are missing from it, everything that was sent of the classifier."""
    assert layer.bias is not None
    if bias_only:
        return layer.bias.values
    return torch.cat([layer.bias.values[layer.bias.kept], layer.right.values[layer.right.kept]])


def one_example(seen: Observation, prior: Prior, label: int, path: str) -> ReceivedLayer:
    """What the prior's expected input would leave of the classifier at ``path`` under a label."""
    target = torch.tensor([label])
    inputs = prior.expected(1, target).to(next(seen.model.parameters()))
    values = replay(seen, inputs, target).detach()
    return received_layer(replace(seen, values=values.to(seen.values)), path)


def labels_of(seen: Observation, prior: Prior, known: Knowledge) -> Int[Tensor, " batch"]:
    """The batch's labels, ascending: iDLG for one example, counts for more. Raises DoesNotApply as those do."""
    if known.examples == 1:
        return torch.tensor([label_of_one(seen)])
    counts = label_counts(seen, prior, known)
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def features(seen: Observation, prior: Prior, known: Knowledge) -> Guess:
    """Inputs of the classifier, one a class that is in the batch, (present, h), with that class as label.

    One example: exact with a bias (f = dW^T db / |db|^2), up to sign and scale without. More: the row of a class over
    its db, a mean of features in which examples of that class weigh most; exact in the limit of confident outputs.
    Entries of dW that were not sent are left out, a column without any is NaN. ``objective``: residual of one example.
    """
    layer = head_of(seen)
    labels = labels_of(seen, prior, known).unique()
    if layer.bias is None or not layer.scaled_alike:
        if known.examples != 1:
            raise DoesNotApply("features of several examples need the gradient of the classifier's bias")
        f, residual = direction(layer.right)
        note = "up to sign and scale"
        return Guess(inputs=f.unsqueeze(0), labels=labels, objective=residual, scale_open=True, note=note)
    db = torch.where(layer.bias.kept, layer.bias.values, torch.nan)
    if known.examples == 1:
        found = ratio(layer.right, db)
        return Guess(inputs=found.x.unsqueeze(0), labels=labels, objective=found.residual, note="dW^T db / |db|^2")
    rows = [_row(layer.right, db, int(label)) for label in labels]
    return Guess(inputs=torch.stack(rows), labels=labels, note="a class's row of dW over its db: means, not examples")


def _row(right: Received, db: Float[Tensor, " c"], label: int) -> Float[Tensor, " h"]:
    f: Tensor = torch.where(right.kept[label], right.values[label] / db[label], torch.nan)
    return f
