"""How far a candidate batch is from what was received: what the matching attacks minimise.

Symbols: y the received kept values, f(x) = replay(x) what a client would have sent for x, s the noise's deviation.
    euclidean   |f(x) - y|^2 / |y|^2             DLG (Zhu et al. 2019, Eq. 4), made free of the gradient's scale
    cosine      1 - <f(x), y> / (|f(x)| |y|)     Inverting Gradients (Geiping et al. 2020, Eq. 4), over all blocks
    blocks      the mean of that cosine over blocks: the classifier, half of the energy of a ResNet, counts as one
    likelihood  |f(x) - y|^2 / (2 s^2)           -log N(y; f(x), s^2 I): exact for one local step, clip simulated
An adaptive adversary compares in the frame: f(x) is projected, masked and clipped by the client's own code. A naive one
compares the dense gradients of x with Eq. 3's lifted values and knows of no clip: what it misses is no protection.
Candidates and public values go in, no truth.
"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.observation import DoesNotApply, Observation
from fedlsg.attacks.replay import dense_gradients, lifted, replay
from fedlsg.gradients import Batch

Distance = Literal["euclidean", "cosine", "blocks", "likelihood"]
Compare = Literal["adaptive", "naive"]
Objective = Callable[[Batch, Tensor], Tensor]
"""(inputs, targets) -> a scalar with a graph back to both."""


def euclidean(sent: Float[Tensor, " n"], received: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """|f - y|^2 / |y|^2: 0 for a match, 1 for a candidate that sends nothing."""
    return (sent - received).square().sum() / _energy(received)


def cosine(sent: Float[Tensor, " n"], received: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """1 - cos(f, y): between 0 and 2.

    Computed as half the squared distance of the directions, whose digits do not cancel where they nearly agree. A
    candidate that sends nothing is no better than one at a right angle: about 1/2 is given, without a gradient.
    """
    tiny = torch.finfo(sent.dtype).tiny ** 0.5
    between: Tensor = sent / sent.norm().clamp_min(tiny) - received / received.norm()
    return between.square().sum() / 2


def cosine_of_blocks(sent: Sequence[Tensor], received: Sequence[Tensor]) -> Float[Tensor, ""]:
    """The mean of ``cosine`` over the blocks that are not zero in what was received: between 0 and 2.

    Raises ValueError where all are zero.
    """
    distances = [cosine(f.flatten(), y.flatten()) for f, y in zip(sent, received, strict=True) if bool(y.any())]
    if not distances:
        raise ValueError("expected a received block that is not zero")
    return torch.stack(distances).mean()


def negative_log_likelihood(
    sent: Float[Tensor, " n"], received: Float[Tensor, " n"], noise_std: float
) -> Float[Tensor, ""]:
    """-log N(received; sent, noise_std^2 I) up to a constant. Raises ValueError for ``noise_std`` of 0."""
    if not noise_std > 0:
        raise ValueError(f"expected {noise_std=} > 0: without noise choose the distance 'euclidean' or 'cosine'")
    return (sent - received).square().sum() / (2 * noise_std**2)


def _energy(values: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    return values.square().sum()


def objective(seen: Observation, *, distance: Distance, compare: Compare = "adaptive") -> Objective:
    """The distance of a candidate batch to this observation.

    Guarantee: at the private batch itself, without noise, an adaptive distance is 0 to rounding.
    Several local steps are replayed by an adaptive adversary; a naive one sees a single gradient at W_t.
    Raises ValueError for an unknown choice and for a naive likelihood; DoesNotApply for a likelihood without noise, and
    for a payload of nothing but zeros.
    """
    for name, value, options in (("distance", distance, Distance), ("compare", compare, Compare)):
        if value not in get_args(options):
            raise ValueError(f"expected {name} in {get_args(options)}, got {value!r}")
    if not bool(seen.values.any()):
        raise DoesNotApply("the payload is all zeros: no gradient was sent that could be matched")
    if distance == "likelihood" and compare == "naive":
        raise ValueError("a likelihood needs the client simulated: choose compare='adaptive', or another distance")
    if distance == "likelihood" and not seen.noise_std > 0:
        raise DoesNotApply("a likelihood needs noise, and none was added: choose the distance 'euclidean' or 'cosine'")
    if compare == "naive":
        return _naive(seen, distance)

    def adaptive(inputs: Batch, targets: Tensor) -> Tensor:
        sent = replay(seen, inputs, targets)
        if distance == "likelihood":
            return negative_log_likelihood(sent, seen.values, seen.noise_std)
        if distance == "blocks":
            return cosine_of_blocks(seen.frame.split(sent), seen.frame.split(seen.values))
        return euclidean(sent, seen.values) if distance == "euclidean" else cosine(sent, seen.values)

    return adaptive


def unexplained(seen: Observation, inputs: Batch, targets: Tensor, *, scaled: bool) -> float:
    """Share of the received energy that a candidate batch leaves open, beyond what the noise explains by chance.

    ``scaled``: of the best multiple of what the batch sends, for distances that compare directions. 0 at the private
    batch; a search that ends far above 0 did not converge, and says nothing about privacy.
    """
    sent, y = replay(seen, inputs, targets).detach(), seen.values
    if scaled and bool(sent.any()):
        sent = sent * (sent @ y) / _energy(sent)
    noise = seen.noise_std**2 * (len(y) + 3 * (2 * len(y)) ** 0.5)
    return max(0.0, float((_energy(sent - y) - noise) / _energy(y)))


def _naive(seen: Observation, distance: Distance) -> Objective:
    received = [gradient.flatten() for gradient in lifted(seen).values()]
    measure = euclidean if distance == "euclidean" else cosine

    def naive(inputs: Batch, targets: Tensor) -> Tensor:
        sent = [G.sum(0).flatten() for G in dense_gradients(seen, inputs, targets).values()]
        if distance == "blocks":
            return cosine_of_blocks(sent, received)
        return measure(torch.cat(sent), torch.cat(received))

    return naive
