"""The client's computation on a candidate batch, differentiable in its inputs: what an adaptive adversary runs.

Per-example gradients come from autograd with a graph (``per_example_gradients`` builds none). All later steps are the
client's own code: ``Form.project``, ``kept_values``, ``per_unit``, ``clipped_sum``. A change there
changes the adversary too. The naive adversary compares dense gradients instead: Eq. 3 of what it received.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from fedlsg.attacks.observation import Observation
from fedlsg.carriers.powersgd import decode, encode
from fedlsg.frame import Frame
from fedlsg.gradients import Batch, batch_size, kept_values, trainable
from fedlsg.gradients.embedding import embed
from fedlsg.privacy import clipped_sum
from fedlsg.training import per_unit

Gradients = Mapping[str, Float[Tensor, "batch *shape"]]


def dense_gradients(
    seen: Observation, inputs: Batch, targets: Tensor, *, weights: Mapping[str, Tensor] | None = None
) -> dict[str, Float[Tensor, "batch *shape"]]:
    """Each example's gradient of every trainable parameter, with a graph back to ``inputs`` (and soft ``targets``).

    ``weights`` replace W_t where given: later local steps start from weights that depend on the candidate, too.
    """
    own = trainable(seen.model)
    if targets.is_floating_point():
        targets = targets.to(seen.values)
    at = {name: (p.detach().requires_grad_() if weights is None else weights[name]) for name, p in own.items()}
    rows = []
    for row in range(batch_size(inputs, targets)):
        one = _row(inputs, row)
        outputs = functional_call(seen.model, at, *(((one,), {}) if isinstance(one, Tensor) else ((), one)))
        loss = seen.loss_fn(outputs, targets[row : row + 1]).sum()
        rows.append(torch.autograd.grad(loss, list(at.values()), create_graph=True, materialize_grads=True))
    return {name: torch.stack([row[i] for row in rows]) for i, name in enumerate(at)}


def _row(inputs: Batch, row: int) -> Batch:
    if isinstance(inputs, Tensor):
        return inputs[row : row + 1]
    return {name: tensor[row : row + 1] for name, tensor in inputs.items()}


def in_frame(gradients: Gradients, frame: Frame) -> list[Float[Tensor, "batch kept"]]:
    """Kept coordinates of each example's gradient, one tensor a block: equal to ``per_example_gradients``."""
    if frame.embedded is not None:
        return embed([gradients[c.name].flatten(1) for c in frame.coordinates], frame)
    coordinates = {c.name: c for c in frame.coordinates}
    values = []
    for block in frame.blocks:
        c, G = coordinates[block.parameter], gradients[block.parameter]
        if c.L is not None and c.R is not None:
            place = c.parts.index(block.part)
            G = torch.stack([c.form.project(one, c.L.to(one), c.R.to(one))[place] for one in G])
        values.append(kept_values(G.reshape(len(G), *block.shape), block.keep).flatten(1))
    return values


def replay(seen: Observation, inputs: Batch, targets: Tensor) -> Float[Tensor, " kept"]:
    """What a client would have sent for this batch, without noise: the adaptive adversary's model of a payload.

    K local steps on the same batch stand for K Poisson batches (the surrogate model extension): the momentum and moves
    are those of ``client_step``.
    """
    local, frame = seen.local, seen.frame
    weights: dict[str, Tensor] | None = None
    velocity = accumulated = torch.zeros(())
    for step in range(local.steps):
        units = per_unit(in_frame(dense_gradients(seen, inputs, targets, weights=weights), frame), frame, 1)
        velocity = local.momentum * velocity + clipped_sum(units, seen.mechanism) - local.pull * accumulated
        accumulated = accumulated + velocity
        if step + 1 < local.steps:
            scale = local.learning_rate / local.expected_batch
            moved = frame.gradients(velocity)
            at = weights or {name: p.detach() for name, p in trainable(seen.model).items()}
            weights = {name: W - scale * moved[name].to(W) for name, W in at.items()}
    return decode(encode(accumulated, frame), frame)


def lifted(seen: Observation) -> dict[str, Tensor]:
    """Dense gradients by Eq. 3 or L S R from what was received: all that the naive adversary looks at."""
    return seen.frame.gradients(seen.values)
