"""What an adversary computes on a candidate batch: the update, and its distance from the received.

The names of the distances are those of ``distances``.
Symbols: y the received kept values, f(x) = replay(x) what a client would have sent for x; how far
they are apart is one of ``distances``.
Everything is differentiable in the inputs. Per-example gradients come from autograd with a graph
(``per_example_gradients`` builds none). All later steps are the client's own code:
``Form.project``, ``kept_values``, ``per_unit``, ``clipped_sum``. A change there changes the
adversary too.
An adaptive adversary compares in the frame: f(x) is projected, masked and clipped by the client's
own code. A naive one compares the dense gradients of x with Eq. 3's lifted values and knows of no
clip: what it misses does not count as protection. Candidates and public values go in, no truth.
"""

from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from fedlsg.attacks.distances import DISTANCES, Distance, squared_norm
from fedlsg.attacks.observation import DoesNotApply, Observation
from fedlsg.carriers.powersgd import decode, encode
from fedlsg.frame import Frame
from fedlsg.gradients import Batch, batch_size, kept_values, trainable
from fedlsg.gradients.formulas.embedded_gradients import embed
from fedlsg.privacy import clipped_sum
from fedlsg.tensors import each
from fedlsg.training import per_unit

Gradients = Mapping[str, Float[Tensor, "batch *shape"]]


def dense_gradients(
    observation: Observation,
    inputs: Batch,
    targets: Tensor,
    *,
    weights: Mapping[str, Tensor] | None = None,
) -> dict[str, Float[Tensor, "batch *shape"]]:
    """Each example's gradient of every trainable parameter, with a graph back to the inputs.

    Also to soft ``targets``.
    ``weights`` replace W_t where given: later local steps start from weights that depend on the
    candidate, too.
    """
    parameters = trainable(observation.model)
    if targets.is_floating_point():
        targets = targets.to(observation.values)
    at = {
        name: (p.detach().requires_grad_() if weights is None else weights[name])
        for name, p in parameters.items()
    }
    rows = []
    for row in range(batch_size(inputs, targets)):
        example = each(inputs, methodcaller("narrow", 0, row, 1))
        arguments = ((example,), {}) if isinstance(example, Tensor) else ((), example)
        outputs = functional_call(observation.model, at, *arguments)
        loss = observation.loss_fn(outputs, targets[row : row + 1]).sum()
        rows.append(
            torch.autograd.grad(loss, list(at.values()), create_graph=True, materialize_grads=True)
        )
    return {name: torch.stack([row[i] for row in rows]) for i, name in enumerate(at)}


def in_frame(gradients: Gradients, frame: Frame) -> list[Float[Tensor, "batch kept"]]:
    """Kept coordinates of each example's gradient, one tensor a block.

    They equal those of ``per_example_gradients``.
    """
    if frame.embedded is not None:
        return embed([gradients[c.name].flatten(1) for c in frame.coordinates], frame)
    coordinates = {c.name: c for c in frame.coordinates}
    values = []
    for block in frame.blocks:
        c, G = coordinates[block.parameter], gradients[block.parameter]
        if c.L is not None and c.R is not None:
            place = c.parts.index(block.part)
            G = torch.stack(
                [
                    c.form.project(gradient, c.L.to(gradient), c.R.to(gradient))[place]
                    for gradient in G
                ]
            )
        values.append(kept_values(G.reshape(len(G), *block.shape), block.keep).flatten(1))
    return values


def replay(observation: Observation, inputs: Batch, targets: Tensor) -> Float[Tensor, " kept"]:
    """What a client would have sent for this batch, without noise.

    This is the adaptive adversary's model of a payload.
    K local steps on the same batch stand for K Poisson batches (the surrogate model extension): the
    momentum and moves are those of ``client_step``.
    """
    local, frame = observation.local, observation.frame
    weights: dict[str, Tensor] | None = None
    velocity = accumulated = torch.zeros(())
    for step in range(local.steps):
        gradients = dense_gradients(observation, inputs, targets, weights=weights)
        units = per_unit(in_frame(gradients, frame), frame, 1)
        gradient = clipped_sum(units, observation.mechanism)
        velocity = local.momentum * velocity + gradient - local.pull * accumulated
        accumulated = accumulated + velocity
        if step + 1 < local.steps:
            moved = frame.gradients(velocity)
            at = weights or {name: p.detach() for name, p in trainable(observation.model).items()}
            weights = {name: W - local.step_rate * moved[name].to(W) for name, W in at.items()}
    return decode(encode(accumulated, frame), frame)


def lifted(observation: Observation) -> dict[str, Tensor]:
    """Dense gradients by Eq. 3 or L S R from the received values.

    The naive adversary sees nothing else.
    """
    return observation.frame.gradients(observation.values)


Compare = Literal["adaptive", "naive"]
Objective = Callable[[Batch, Tensor], Tensor]
"""(inputs, targets) -> a scalar with a graph back to both."""


def objective(
    observation: Observation, *, distance: str, compare: Compare = "adaptive"
) -> Objective:
    """The distance of a candidate batch to this observation.

    Guarantee: at the private batch itself, without noise, an adaptive distance is 0 to rounding.
    Several local steps are replayed by an adaptive adversary; a naive one sees a single gradient at
    W_t.
    Raises ValueError for an unknown choice and for a naive likelihood; DoesNotApply for a
    likelihood without noise, and for a payload of nothing but zeros.
    """
    for name, value, options in (
        ("distance", distance, tuple(DISTANCES)),
        ("compare", compare, get_args(Compare)),
    ):
        if value not in options:
            raise ValueError(f"expected {name} in {options}, got {value!r}")
    measured = DISTANCES[distance]
    if not bool(observation.values.any()):
        raise DoesNotApply("the payload is all zeros: no gradient was sent that could be matched")
    if measured.likelihood and compare == "naive":
        raise ValueError(
            "a likelihood needs the client simulated: choose compare='adaptive', or another "
            "distance"
        )
    if measured.likelihood and not observation.noise_std > 0:
        raise DoesNotApply(
            "a likelihood needs noise, and none was added: choose the distance 'euclidean' or "
            "'cosine'"
        )
    if compare == "naive":
        return _naive(observation, measured)
    split, received = observation.frame.split, observation.values

    def adaptive(inputs: Batch, targets: Tensor) -> Tensor:
        sent = replay(observation, inputs, targets)
        if measured.by_block:
            return measured.measure(split(sent), split(received))
        far = measured.measure(sent, received)
        return far / (2 * observation.noise_std**2) if measured.likelihood else far

    return adaptive


def unexplained(observation: Observation, inputs: Batch, targets: Tensor, *, scaled: bool) -> float:
    """The part of the received squared norm that a candidate batch does not explain.

    Beyond what the noise explains by chance.
    ``scaled``: of the best multiple of what the batch sends, for distances that compare directions.
    0 at the private batch; a search that ends far above 0 did not converge, and says nothing about
    privacy.
    """
    sent, y = replay(observation, inputs, targets).detach(), observation.values
    if scaled and bool(sent.any()):
        sent = sent * (sent @ y) / squared_norm(sent)
    noise = observation.noise_std**2 * (len(y) + 3 * (2 * len(y)) ** 0.5)
    return max(0.0, float((squared_norm(sent - y) - noise) / squared_norm(y)))


def _naive(observation: Observation, distance: Distance) -> Objective:
    received = [gradient.flatten() for gradient in lifted(observation).values()]

    def naive(inputs: Batch, targets: Tensor) -> Tensor:
        gradients = dense_gradients(observation, inputs, targets)
        sent = [G.sum(0).flatten() for G in gradients.values()]
        if distance.by_block:
            return distance.measure(sent, received)
        return distance.measure(torch.cat(sent), torch.cat(received))

    return naive
