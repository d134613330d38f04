"""A client's personal parameters between rounds: its own displacement from the public initial ones.

It is kept in the client's own folder, in one file with the payload of the round (``FeedbackBox``): both change, or
neither. So a payload that is sent again moves nothing twice, and a resumed run continues bit for bit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.carriers.personal import personal_gradient, personal_size, personal_weights
from fedlsg.frame import Frame
from fedlsg.gradients import trainable
from fedlsg.payload import keeps_memory
from fedlsg.state import ClientTerms
from simulations.plan.base import Base


def remembers(base: Base) -> bool:
    """Whether clients keep something from round to round: the memory of error feedback, or personal parameters."""
    return keeps_memory(base.method, base.codec) or bool(base.method.personal)


def memory_size(frame: Frame) -> int:
    """How many numbers a client that ``remembers`` keeps."""
    return personal_size(frame) if frame.personal else frame.kept


@contextmanager
def own_parameters(model: nn.Module, names: Sequence[str], displacement: Float[Tensor, " size"]) -> Iterator[nn.Module]:
    """Inside, the model has a client's personal parameters; after it, the announced ones, bit for bit."""
    parameters = trainable(model)
    announced = {name: parameters[name].detach().clone() for name in names}
    try:
        _write(parameters, personal_weights(announced, names, displacement))
        yield model
    finally:
        _write(parameters, announced)


@torch.no_grad()
def _write(parameters: dict[str, nn.Parameter], values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        parameters[name].copy_(value)


def moved(
    displacement: Float[Tensor, " size"], values: Float[Tensor, " kept"], frame: Frame, base: Base, terms: ClientTerms
) -> Float[Tensor, " size"]:
    """The displacement after a round: a step of SGD by the client's own noisy values, over its own q_k N_k.

    ``values``: what the mechanism released, clipped with the shared part and noisy; nothing else of the data is read.
    """
    return displacement - base.personal_rate / (terms.sample_rate * terms.num_examples) * personal_gradient(
        values, frame
    )
