"""What the local steps of a client's round have in common."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.gradients import Checked, LossFunction
from fedlsg.privacy import BernoulliSource, Mechanism
from fedlsg.training.local import Batch, LocalTraining
from fedlsg.training.microbatches import Groups


@dataclass(frozen=True, kw_only=True, eq=False)
class StepInputs:
    """The arguments of ``client_step`` that every local step reads.

    ``parameters``: those of the model, checked against the frame. ``draws`` decide which examples join which batch.
    """

    model: nn.Module
    batch: Batch
    loss_fn: LossFunction
    frame: Frame
    mechanism: Mechanism
    local: LocalTraining
    num_examples: int
    draws: BernoulliSource
    groups: Groups
    scale: Sequence[Float[Tensor, " kept"]] | None
    parameters: Checked
