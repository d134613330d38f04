"""One client's clipped update, the term of a round's sum that its clip bounds.

Symbols: v the accumulated sum of gradients of the local steps, B the public expected batch, C the clip norm.
McMahan et al. 2018, Alg. 1 (UserUpdate): u = v / B, times min(1, C / ||u||). It differs from the paper in its units: u
is in those of a gradient, -(W - W_t) / (local learning rate), so that the server's optimizer takes it as it takes
gradients. With one learning rate for both, the server's step is the mean of the clients' changes of W.
"""

from dataclasses import replace
from typing import Any

from jaxtyping import Float, Float64
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.gradients import LossFunction
from fedlsg.privacy.mechanism import Mechanism, add_noise, clipped_sum
from fedlsg.randomness import SecretStream
from fedlsg.training import Batch, LocalTraining
from fedlsg.training.client import AddNoise, client_step


def client_update(
    model: nn.Module,
    batch: Batch,
    loss_fn: LossFunction,
    *,
    frame: Frame,
    mechanism: Mechanism,
    local: LocalTraining,
    noise: SecretStream,
    add: AddNoise | None = None,
    **given: Any,
) -> Float64[Tensor, " kept"]:
    """K plain local steps, the clip of the update as a whole, and the client's noise: a private payload.

    ``given``: the other arguments of ``client_step``, whose guarantees on the charge hold here. ``add`` takes the place
    of ``add_noise``: noise on a grid, under a secure sum.
    """
    plain = replace(mechanism, kind="none")
    values = client_step(model, batch, loss_fn, frame=frame, mechanism=plain, local=local, noise=noise, **given)
    update = clipped_update(values, frame=frame, mechanism=mechanism, expected_batch=local.expected_batch)
    return (add_noise if add is None else add)(update, mechanism, noise)


def clipped_update(
    values: Float[Tensor, " kept"], *, frame: Frame, mechanism: Mechanism, expected_batch: float
) -> Float64[Tensor, " kept"]:
    """v / B, clipped to C in L2 as a whole, or block by block: its norm is at most ``mechanism.sensitivity``.

    ``values``: v, of plain local training: any function of this client's data, the public state and fresh draws.
    An update that is not finite gives zeros. ``expected_batch``: B, a public constant that depends on no data.
    """
    update = values / expected_batch
    blocks = [part.unsqueeze(0) for part in update.split([block.kept for block in frame.blocks])]
    return clipped_sum(blocks, mechanism, wide=True)


def norm_of(values: Float[Tensor, " kept"], *, expected_batch: float) -> float:
    """||v / B|| before the clip; infinite for an update that is not finite."""
    norm = float((values / expected_batch).double().norm())
    return norm if norm == norm else float("inf")
