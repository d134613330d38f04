"""Probe, the carrier in the directions of public gradients, and ProbeSource, the probe's public
inputs, targets and loss.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from fedlsg.carriers.base import Carrier, Rank, of_pairs
from fedlsg.carriers.own_carriers import OutRank
from fedlsg.config import Setting, check_declared
from fedlsg.config.rules import idle_unless
from fedlsg.frame import Block, Coordinates
from fedlsg.frame.forms import CORE, EMBEDDING, FORMS, PRECONDITIONED, TANGENT, Sizes, find_form
from fedlsg.frame.public import Public
from fedlsg.gradients import LossFunction, trainable
from fedlsg.privacy import Mechanism

Draw = Callable[[int, torch.Generator], Any]
"""``draw(count, generator)``: ``count`` public inputs as the model takes them, or a pair (inputs,
targets).
"""


class CannotDrawError(ValueError):
    """This process cannot, or must not, make the inputs of a probe; carriers must be sent to it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbeSource:
    """Public inputs of a probe, and the loss of the workload.

    name: for reports.
    draw: makes inputs; deterministic in its generator, from public values only. None if this
        process cannot draw.
    loss: of the workload.
    num_classes: number of classes, of which targets are drawn here; None if ``draw`` gives targets.
    """

    name: str
    draw: Draw | None
    loss: LossFunction
    num_classes: int | None = None

    def drawn(self, count: int, generator: torch.Generator) -> Any:
        """The result of ``draw``. Raises CannotDrawError if this process cannot draw."""
        if self.draw is None:
            raise CannotDrawError(
                f"the inputs of probe source {self.name!r} are not here: the carriers must be sent"
            )
        return self.draw(count, generator)

    def inputs(self, count: int, generator: torch.Generator) -> Any:
        """``count`` inputs without targets. Raises as ``drawn``."""
        inputs = self.drawn(count, generator)
        return inputs[0] if isinstance(inputs, tuple) else inputs

    def batch(
        self, model: nn.Module, count: int, *, trained: bool, generator: torch.Generator
    ) -> tuple[Any, Any]:
        """``count`` inputs with targets, on the model's device.

        Classes are uniform for an untrained model, and drawn from its own prediction once it is
        ``trained``.
        Raises ValueError if ``draw`` must give targets and does not, CannotDrawError if this
        process cannot draw.
        """
        sample = self.drawn(count, generator)
        if self.num_classes is None:
            if not isinstance(sample, tuple) or len(sample) != 2:
                raise ValueError(
                    f"probe source {self.name!r} must give (inputs, targets): the targets are no "
                    "classes"
                )
            return on_device_of(model, sample[0]), on_device_of(model, sample[1])
        inputs = on_device_of(model, sample[0] if isinstance(sample, tuple) else sample)
        if trained:
            with torch.no_grad():
                outputs: Tensor = model(**inputs) if isinstance(inputs, dict) else model(inputs)
            chances = outputs.double().softmax(-1).cpu()
            targets = torch.multinomial(chances, 1, generator=generator).squeeze(1)
        else:
            targets = torch.randint(self.num_classes, (count,), generator=generator)
        return inputs, on_device_of(model, targets)


def on_device_of(model: nn.Module, part: Any) -> Any:
    """Inputs or targets, a tensor or tensors by keyword, on the device of the model."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if isinstance(part, dict):
        return {name: value.to(device) for name, value in part.items()}
    return part.to(device)


CarrierRefresh = Annotated[
    int,
    Setting("Rounds until carriers are probed again.", "rounds", at_least=1, name="refresh_rounds"),
]
ProbeInputs = Annotated[
    str,
    Setting(
        "Public inputs of a probe: auto, leaves, pink, tokens, data:, FILE.py:NAME.", name="source"
    ),
]
Probes = Annotated[
    int, Setting("Number of inputs that a probe pushes through the model.", "examples", at_least=1)
]
Power = Annotated[
    float,
    Setting("S is divided by (predicted spectrum + damping) to this power.", at_least=0, at_most=1),
]
Damping = Annotated[
    float,
    Setting(
        "Added to the predicted spectrum, whose mean is 1, before the power.",
        above=0,
        below=math.inf,
    ),
]
ResidualClip = Annotated[
    float,
    Setting(
        "Clip norm of what embeddings leave, as a share of the embeddings'.",
        above=0,
        below=math.inf,
        rules=(idle_unless("biased=false"),),
    ),
]


PROBED = tuple(name for name in FORMS if name != "left")
"""Forms of a probe's carriers: it scales them, and ``left`` needs orthonormal rows."""
MAX_EVEN_SCALE = 4.0
"""Largest scale on either side of a weight at which microbatches may have several numbers of rows:
see "One shape" in carriers/base.py.
"""


@dataclass(frozen=True, kw_only=True)
class Probe(Carrier):
    """The top eigenvectors of the second moments of gradients of public inputs (basis.py).

    form: ``tangent``; or ``core``, whose carriers are scaled by D = (lambda / mean +
        damping)^-power, lambda the predicted eigenvalues, times a constant; or ``preconditioned``,
        whose carriers are X D X^T, X all eigenvectors. In the form ``embedding`` every parameter,
        flattened (m,), has a basis L (m, r) of anchor gradients. An example then sends w = L^T g,
        clipped to C / sqrt(2), and g - L w, clipped to ``residual_clip`` times that;
        ``embedding-only`` sends w alone (biased).
    rank: columns of the carriers, at most.
    out_rank: columns of L in the form core; None means ``rank``.
    refresh: rounds from one probe to the next.
    source: name of the probe's public inputs.
    probes: number of these inputs.
    power, damping: of the scales D.
    residual_clip: clip norm of the rest g - L w over that of w.
    Raises ValueError for another form, for ``out_rank`` in another form than core, and for a rank
    of 0 in a form with a rank.
    """

    kind: ClassVar[str] = "probe"
    predicts: ClassVar[bool] = True
    form: Any = TANGENT
    rank: Rank = 0
    out_rank: OutRank | None = None
    refresh: CarrierRefresh = 20
    source: ProbeInputs = "auto"
    probes: Probes = 1000
    power: Power = 0.25
    damping: Damping = 0.01
    residual_clip: ResidualClip = 1.0

    def __post_init__(self) -> None:
        check_declared(self)
        object.__setattr__(self, "form", find_form(self.form, self.rank, self.out_rank, PROBED))

    def sizes(self, W: Tensor) -> Sizes:
        """The sizes of the carriers of a weight, with ``out_rank`` columns of L."""
        sizes: Sizes = self.form.sizes(W, self.rank, self.out_rank)
        return sizes

    def carried(self, model: nn.Module, *, classifier: str | None) -> tuple[str, ...]:
        """All parameters in the embedding forms; the weights that pay in the others."""
        if self.form.embeds:
            return tuple(trainable(model))
        return super().carried(model, classifier=classifier)

    def coordinates(self, public: Public) -> tuple[Coordinates, ...]:
        """Coordinates in the carriers of the last refresh, in the weights' own type."""
        weights = public.weights
        pairs = {
            name: (L.to(weights[name]), R.to(weights[name]))
            for name, (L, R) in public.pairs.items()
        }
        return of_pairs(weights, pairs, self.form)

    def weigh(
        self, blocks: tuple[Block, ...], mechanism: Mechanism
    ) -> tuple[tuple[Block, ...], float | None]:
        """Rests with the weight 1 / ``residual_clip``, and the norm C / sqrt(2) of both parts.

        A rest of norm ``residual_clip`` C / sqrt(2) has this norm after the weight.
        """
        if self.form is not EMBEDDING:
            return blocks, None
        share = self.residual_clip
        norm = mechanism.clip_norm / math.sqrt(2) if mechanism.clips else None
        weighted = (replace(b, weight=b.weight / share) if b.part == "rest" else b for b in blocks)
        return tuple(weighted), norm

    def needs_one_shape(self, where: Sequence[Coordinates]) -> bool:
        """True for rests, and for scales above MAX_EVEN_SCALE."""
        if self.form is PRECONDITIONED:
            # lambda = 0 has the largest scale: L and R are powers of whole moments
            return bool(self.damping**-self.power > MAX_EVEN_SCALE)
        if self.form is not CORE:
            return self.form is EMBEDDING
        for c in where:
            if c.L is None or c.R is None:
                continue
            if _longest(c.L, 0) * _longest(c.R, 1) > MAX_EVEN_SCALE**2:
                return True
        return False


def _longest(matrix: Tensor, dim: int) -> float:
    """The norm of the longest column (``dim`` 0) or row (1)."""
    return float(vector_norm(matrix.float(), dim=dim).max())
