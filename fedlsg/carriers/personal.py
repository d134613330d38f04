"""Personal parameters: a part of the model that each client keeps and never sends, such as the
classifier.

The gradient of an example in the shared part depends on the personal part, and so on every example
that trained it. So personal gradients are in the same frame, joint clip, noise and ledger entry as
shared ones. What a client keeps is as private as what it sends, and the next rounds read only noisy
values. A step's values are
    shared     sent: ``Frame.wire`` has their blocks
    personal   applied to the client's own parameters, at its own learning rate
Differs from FedPer (Arivazhagan et al. 2019) and FedRep (Collins et al. 2021): there the personal
part is trained without a clip and without noise, and no epsilon covers it.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.frame import Frame

CLASSIFIER = "classifier"
"""Value of ``personal`` for the head, whatever its path is."""


def personal_names(names: Iterable[str], personal: str, classifier: str) -> tuple[str, ...]:
    """The parameters that ``personal`` selects: those of the head, or those whose name starts so.

    Raises ValueError if it selects none of them, or all.
    """
    start = f"{classifier}." if personal == CLASSIFIER else personal
    known = list(names)
    chosen = tuple(name for name in known if personal and name.startswith(start))
    if not 0 < len(chosen) < len(known):
        which = "all" if chosen else "no"
        raise ValueError(
            f"personal={personal!r} means {which} trained parameters: name a part of the model, "
            f"the classifier or the start of some of these names: {', '.join(known)}"
        )
    return chosen


def shared_values(values: Float[Tensor, " kept"], frame: Frame) -> Float[Tensor, " sent"]:
    """The values of a step that are sent, in the order of ``frame.wire``."""
    parts = zip(frame.blocks, values.split([block.kept for block in frame.blocks]), strict=True)
    return torch.cat([part for block, part in parts if block.parameter not in frame.personal])


def with_zeros(sent: Float[Tensor, " sent"], frame: Frame) -> Float[Tensor, " kept"]:
    """A step's values from those that were sent, with 0 for personal parameters."""
    of_blocks = iter(sent.split([block.kept for block in frame.wire.blocks]))
    values = []
    for block in frame.blocks:
        personal = block.parameter in frame.personal
        values.append(sent.new_zeros(block.kept) if personal else next(of_blocks))
    return torch.cat(values)


def personal_size(frame: Frame) -> int:
    """The number of coordinates of the personal parameters, which a client keeps."""
    return sum(block.size for block in frame.blocks if block.parameter in frame.personal)


def personal_gradient(values: Float[Tensor, " kept"], frame: Frame) -> Float[Tensor, " size"]:
    """The personal part of a step's values in float64: all coordinates, 0 for frozen ones."""
    parts = zip(frame.blocks, frame.unflatten(values), strict=True)
    gradients = [part.flatten() for block, part in parts if block.parameter in frame.personal]
    return torch.cat(gradients).double().cpu()


def personal_weights(
    weights: Mapping[str, Tensor], names: Sequence[str], displacement: Float[Tensor, " size"]
) -> dict[str, Tensor]:
    """A client's personal parameters: the common start in ``weights`` plus its displacement."""
    parts = displacement.split([weights[name].numel() for name in names])
    moved = {}
    for name, part in zip(names, parts, strict=True):
        W = weights[name].detach()
        moved[name] = (W.cpu().double() + part.reshape(W.shape)).to(W)
    return moved
