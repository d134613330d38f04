"""The carrier in the directions of public gradients, and what its probe pushes through the model.

That is public inputs, targets for them, and the loss.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from fedlsg.carriers.base import MAX_EVEN_SCALE, Carrier, Rank, longest, of_pairs
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
    """This process must not, or cannot, make the inputs of a probe: what it would derive has to be
    sent to it.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbeSource:
    """Public inputs of a probe, and the loss of the workload.

    ``name`` is what a report prints. ``draw`` is deterministic in its generator, and reads public
    values only; it is None where this process cannot draw. ``num_classes`` is None where ``draw``
    gives targets; otherwise targets are drawn here.
    """

    name: str
    draw: Draw | None
    loss: LossFunction
    num_classes: int | None = None

    def drawn(self, count: int, generator: torch.Generator) -> Any:
        """What ``draw`` gives. Raises CannotDrawError where this process cannot draw."""
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
        """``count`` inputs with targets: uniform classes at the start, from the model's own
        prediction once trained.

        Raises ValueError where nothing gives targets, CannotDrawError where this process cannot
        draw.
        """
        drawn = self.drawn(count, generator)
        if self.num_classes is None:
            if not isinstance(drawn, tuple) or len(drawn) != 2:
                raise ValueError(
                    f"probe source {self.name!r} must give (inputs, targets): the targets are no "
                    "classes"
                )
            return on_device_of(model, drawn[0]), on_device_of(model, drawn[1])
        inputs = on_device_of(model, drawn[0] if isinstance(drawn, tuple) else drawn)
        if not trained:
            return inputs, on_device_of(
                model, torch.randint(self.num_classes, (count,), generator=generator)
            )
        with torch.no_grad():
            outputs: Tensor = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        chances = outputs.double().softmax(-1).cpu()
        return inputs, on_device_of(
            model, torch.multinomial(chances, 1, generator=generator).squeeze(1)
        )


def on_device_of(model: nn.Module, part: Any) -> Any:
    """Inputs or targets, a tensor or tensors by keyword, where the model computes."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return (
        {name: value.to(device) for name, value in part.items()}
        if isinstance(part, dict)
        else part.to(device)
    )


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
"""A probe scales its carriers, and ``left`` needs orthonormal rows."""


@dataclass(frozen=True, kw_only=True)
class Probe(Carrier):
    """The top eigenvectors of the second moments of gradients of public inputs, made again every
    ``refresh`` rounds from ``probes`` inputs of ``source``.

    In the form ``core`` carriers are scaled by (lambda / mean + ``damping``)^-``power``, where
    lambda is the spectrum that is predicted, times a constant. In the form ``preconditioned`` both
    are symmetric: the eigenvectors, scaled so, and turned back. In the form ``embedding`` every
    parameter, flattened (m,), has a basis L (m, r) of anchor gradients, r at most ``rank``. An
    example sends w = L^T g, clipped to C / sqrt(2), and g - L w, clipped to ``residual_clip`` times
    that; ``embedding-only`` sends w alone (biased).
    Raises ValueError for another form, for ``out_rank`` in another form than core, and for a rank
    of 0 where there is one.
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
        """With the rank of either side."""
        sizes: Sizes = self.form.sizes(W, self.rank, self.out_rank)
        return sizes

    def carried(self, model: nn.Module, *, classifier: str | None) -> tuple[str, ...]:
        """All parameters, where they are embedded."""
        return (
            tuple(trainable(model))
            if self.form.embeds
            else super().carried(model, classifier=classifier)
        )

    def coordinates(self, public: Public) -> tuple[Coordinates, ...]:
        """In the carriers of the last refresh, in the weights' own type."""
        weights = public.weights
        pairs = {
            name: (L.to(weights[name]), R.to(weights[name]))
            for name, (L, R) in public.pairs.items()
        }
        return of_pairs(weights, pairs, self.form)

    def weigh(
        self, blocks: tuple[Block, ...], mechanism: Mechanism
    ) -> tuple[tuple[Block, ...], float | None]:
        """Rests are clipped to their share: to the same norm after this weight."""
        if self.form is not EMBEDDING:
            return blocks, None
        share = self.residual_clip
        norm = mechanism.clip_norm / math.sqrt(2) if mechanism.clips else None
        return tuple(
            replace(b, weight=b.weight / share) if b.part == "rest" else b for b in blocks
        ), norm

    def needs_one_shape(self, where: Sequence[Coordinates]) -> bool:
        """Where rests, or large scales, are."""
        # the largest possible one, as L and R are powers of whole moments
        if self.form is PRECONDITIONED:
            return bool(self.damping**-self.power > MAX_EVEN_SCALE)
        return self.form is EMBEDDING or (
            self.form is CORE
            and any(
                c.L is not None
                and c.R is not None
                and longest(c.L, 0) * longest(c.R, 1) > MAX_EVEN_SCALE**2
                for c in where
            )
        )
