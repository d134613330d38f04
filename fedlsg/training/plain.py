"""Local steps without clip, noise or mask: no flat vector is formed before the last step."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.gradients import summed_gradients
from fedlsg.privacy import ShuffledBatches, poisson_batch
from fedlsg.training.local import Drawn, LocalTraining, StepInputs
from fedlsg.training.microbatches import runs_of, shape_of

Gradients = list[Tensor]
"""One tensor a parameter, in its shape."""


def plain_steps(x: StepInputs) -> Float[Tensor, " kept"]:
    """What ``client_step`` gives where ``unprotected``, bit for bit; it was charged. The model comes back unchanged."""
    owned: list[Tensor] = list(x.parameters.values())
    start = [p.detach().clone() for p in owned] if x.local.steps > 1 else []
    try:
        return _steps(owned, lambda: _batch_gradients(x), x.local)
    finally:
        if start:
            with torch.no_grad():
                torch._foreach_copy_(owned, start)


def _steps(owned: list[Tensor], gradients: Callable[[], Gradients], local: LocalTraining) -> Float[Tensor, " kept"]:
    """A_K = sum_k v_k, v_k = m v_(k-1) + s_k - lr mu A_(k-1); W moves by -lr / expected_batch times v_k after each step
    but the last.
    """
    rate = -local.learning_rate / local.expected_batch
    velocity = gradients()
    with torch.no_grad():
        accumulated = torch.cat([v.flatten() for v in velocity])
        runs = accumulated.split([p.numel() for p in owned])
        parts = [run.view(p.shape) for run, p in zip(runs, owned, strict=True)]
        if local.momentum:  # changed in place below, and autograd may give one tensor to two parameters
            velocity = [v.clone() for v in velocity]
        for _ in range(local.steps - 1):
            torch._foreach_add_(owned, velocity, alpha=rate)
            step = gradients()
            if local.momentum:
                torch._foreach_mul_(velocity, local.momentum)
                torch._foreach_add_(velocity, step)
            else:
                velocity = step
            if local.pull:
                velocity = list(torch._foreach_add(velocity, parts, alpha=-local.pull))
            torch._foreach_add_(parts, velocity)
    return accumulated


def _batch_gradients(x: StepInputs) -> Gradients:
    """Sum over a batch, microbatch by microbatch; in float64 where there are several."""
    local, total = x.local, None
    if isinstance(x.draws, Drawn):
        positions = x.draws.positions
    elif isinstance(x.draws, ShuffledBatches):
        positions = x.draws.next_batch()
    else:
        positions = poisson_batch(x.num_examples, local.sample_rate, x.draws)
    runs = runs_of(positions, x.groups, shape_of(local, x.parameters.values()))
    for _, micro in runs:
        part = summed_gradients(
            x.model, x.loss_fn, *x.batch(micro), x.frame, checked=x.parameters, precision=local.precision
        )
        if local.multiplicity > 1:
            part = [g / local.multiplicity for g in part]
        part = [g.double() for g in part] if len(runs) > 1 else part
        total = part if total is None else [t.add_(g) for t, g in zip(total, part, strict=True)]
    assert total is not None  # runs_of() gives at least one run, an empty one for an empty batch
    types = [torch.promote_types(p.dtype, torch.float32) for p in x.parameters.values()]
    return [g.to(dtype).contiguous() for g, dtype in zip(total, types, strict=True)]
